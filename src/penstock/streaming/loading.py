"""Spans of a recording through a user's load function, in the background."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import PlanError
from penstock.sources.base import Field
from penstock.streaming.memory import Slots, Token, followed
from penstock.streaming.prefetch import Prefetched
from penstock.streaming.transfer import Sent, Tensors, Transfer

LoadFn: TypeAlias = Callable[..., Any]
Array: TypeAlias = npt.NDArray[np.generic]
Chunk: TypeAlias = tuple[torch.Tensor, ...]
Loaded: TypeAlias = tuple[Tensors, list[Token]]


class ChunkLoading:
    """Loads spans in a thread, and copies them to an accelerator in another.

    Args:
        longest: Timesteps of the longest span.
        ahead: Chunks loaded before they are asked for.
        transfer: Copies chunks to an accelerator, in a thread of its own; None for the CPU.
    """

    def __init__(
        self, load_fn: LoadFn, *, longest: int, ahead: int, transfer: Transfer | None
    ) -> None:
        self._ahead, self._transfer = ahead, transfer
        self._host = HostChunks(load_fn, longest=longest, count=ahead + 1, pin=transfer is not None)
        self._stages: list[Prefetched[Any]] = []
        self._received = 0

    def chunks(self, spans: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
        """The spans' tensors, in order; loading begins now."""
        loaded = Prefetched(spans, self._host.load, ahead=self._ahead, name="chunks", parts=_tokens)
        self._stages = [loaded]
        if self._transfer is None:
            return map(self._count, map(_values, map(_tensors, loaded)))
        sent = Prefetched(
            map(_tensors, loaded), self._transfer.send, ahead=1, name="transfer", parts=_moved
        )
        self._stages.append(sent)
        return map(self._count, map(_values, map(self._transfer.receive, sent)))

    def close(self) -> None:
        """End the threads; the one that waits for another's results last."""
        for stage in self._stages:
            stage.close()
        self._stages = []

    def stats(self) -> dict[str, int]:
        """Chunks so far, and bytes held at most."""
        on_device = 0 if self._transfer is None else 2
        return {
            "chunks_loaded": self._host.loaded,
            "chunks_transferred": self._received,
            "host_bytes": self._host.chunk_bytes * (self._ahead + 1),
            "device_bytes": self._host.chunk_bytes * on_device,
        }

    def _count(self, chunk: Chunk) -> Chunk:
        self._received += 1
        return chunk


class HostChunks:
    """Chunks in host memory; in ``count`` reused buffers where ``load_fn`` can fill them.

    What the loading thread holds; nothing in here holds that thread.

    Args:
        pin: Page-locked buffers, for an accelerator; what ``load_fn`` gave is copied there.
    """

    def __init__(self, load_fn: LoadFn, *, longest: int, count: int, pin: bool) -> None:
        self._load_fn, self._longest, self._count, self._pin = load_fn, longest, count, pin
        self._fills = takes_out(load_fn)
        self._slots: Slots | None = None
        self.loaded = self.chunk_bytes = 0

    def load(self, span: tuple[int, int]) -> Loaded:
        """One span's arrays, as tensors; and what tells when they are gone."""
        slots = self._slots
        if slots is not None and self._fills and slots.free:
            tensors = self._fill(slots, span)
        else:  # the first chunk, or the user keeps many
            tensors = self._keep(as_arrays(self._load_fn(*span)))
        self.loaded += 1
        held = sum(tensor.nbytes for tensor in tensors.values())
        self.chunk_bytes = max(self.chunk_bytes, held)
        pairs = {name: followed(tensor) for name, tensor in tensors.items()}
        return {name: pair[0] for name, pair in pairs.items()}, [pair[1] for pair in pairs.values()]

    def _fill(self, slots: Slots, span: tuple[int, int]) -> Tensors:
        (slot,), rows = slots.take(1), span[1] - span[0]
        try:
            self._load_fn(*span, out=tuple(slots.arrays(slot, rows).values()))
        except BaseException:
            slots.free.append(slot)
            raise
        return slots.hand_out(slot, rows)

    def _keep(self, arrays: tuple[Array, ...]) -> Tensors:
        named = {str(i): array for i, array in enumerate(arrays)}
        if self._slots is None and (self._fills or self._pin):
            fields = {name: Field(array.shape[1:], array.dtype) for name, array in named.items()}
            self._slots = Slots(
                fields, batch=self._longest, count=self._count, lent=self._count, pin=self._pin
            )
        slots, rows = self._slots, len(arrays[0])
        if slots is None or not slots.free or {len(array) for array in arrays} != {rows}:
            return {name: torch.from_numpy(array) for name, array in named.items()}
        (slot,) = slots.take(1)
        for name, place in slots.arrays(slot, rows).items():
            np.copyto(place, named[name])
        return slots.hand_out(slot, rows)


def _tensors(loaded: Loaded) -> Tensors:
    return loaded[0]


def _tokens(loaded: Loaded) -> Iterable[Token]:
    return loaded[1]


def _moved(sent: Sent) -> Iterable[torch.Tensor]:
    return sent[0].values()


def _values(tensors: Tensors) -> Chunk:
    return tuple(tensors.values())


def as_arrays(loaded: Any) -> tuple[Array, ...]:
    """What a load function gave, as contiguous arrays.

    >>> len(as_arrays((np.zeros(3), np.ones(3)))), len(as_arrays(np.zeros(3)))
    (2, 1)
    """
    parts = tuple(loaded) if isinstance(loaded, tuple | list) else (loaded,)
    if not parts:
        raise PlanError("load_fn gave no array: it must return one, or a tuple of them")
    return tuple(np.require(part, requirements=("C", "W")) for part in parts)


def takes_out(load_fn: LoadFn) -> bool:
    """Does a load function take ``out=`` buffers?"""
    try:
        parameters = inspect.signature(load_fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return "out" in parameters
