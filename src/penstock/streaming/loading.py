"""Spans of a recording through a user's load function, in the background."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import PlanError
from penstock.sources.base import Field
from penstock.streaming.memory import Slots
from penstock.streaming.prefetch import Prefetched
from penstock.streaming.transfer import Tensors, Transfer

LoadFn: TypeAlias = Callable[..., Any]
Array: TypeAlias = npt.NDArray[np.generic]
Chunk: TypeAlias = tuple[torch.Tensor, ...]


class ChunkLoading:
    """Loads spans in a thread, into reused buffers where ``load_fn`` can fill them.

    Args:
        longest: Timesteps of the longest span.
        ahead: Chunks loaded before they are asked for.
        transfer: Copies chunks to an accelerator, in a thread of its own; None for the CPU.
    """

    def __init__(
        self, load_fn: LoadFn, *, longest: int, ahead: int, transfer: Transfer | None
    ) -> None:
        self._load_fn, self._longest, self._ahead = load_fn, longest, ahead
        self._transfer = transfer
        self._fills = takes_out(load_fn)
        self._slots: Slots | None = None
        self._stages: list[Prefetched[Any]] = []
        self._loaded = self._received = self._chunk_bytes = 0

    def chunks(self, spans: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
        """The spans' tensors, in order; loading begins now."""
        loaded = Prefetched(spans, self._load, ahead=self._ahead, name="chunks")
        self._stages = [loaded]
        if self._transfer is None:
            return map(self._count, map(_values, loaded))
        sent = Prefetched(loaded, self._transfer.send, ahead=1, name="transfer")
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
            "chunks_loaded": self._loaded,
            "chunks_transferred": self._received,
            "host_bytes": self._chunk_bytes * (self._ahead + 1),
            "device_bytes": self._chunk_bytes * on_device,
        }

    def _count(self, chunk: Chunk) -> Chunk:
        self._received += 1
        return chunk

    def _load(self, span: tuple[int, int]) -> Tensors:
        rows = span[1] - span[0]
        slots = self._slots
        if slots is None or not slots.free:  # the first chunk, or the user keeps many
            host = self._load_fresh(*span)
        elif self._fills:
            (slot,) = slots.take(1)
            self._load_fn(*span, out=tuple(slots.arrays(slot, rows).values()))
            host = slots.hand_out(slot, rows)
        else:
            (slot,) = slots.take(1)
            arrays = as_arrays(self._load_fn(*span))
            for place, array in zip(slots.arrays(slot, rows).values(), arrays, strict=True):
                np.copyto(place, array)
            host = slots.hand_out(slot, rows)
        self._loaded += 1
        return host

    def _load_fresh(self, start: int, stop: int) -> Tensors:
        arrays = as_arrays(self._load_fn(start, stop))
        self._chunk_bytes = max(self._chunk_bytes, sum(array.nbytes for array in arrays))
        if self._slots is None and (self._fills or self._transfer is not None):
            fields = {str(i): Field(a.shape[1:], a.dtype) for i, a in enumerate(arrays)}
            count = self._ahead + 2  # and the one in use, and the one it replaces
            self._slots = Slots(
                fields,
                batch=self._longest,
                count=count,
                lent=count,
                pin=self._transfer is not None,
            )
        return {str(i): torch.from_numpy(array) for i, array in enumerate(arrays)}


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
