"""Chunks of a user's load function, loaded and copied to the device in background threads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.errors import PlanError
from penstock.metrics import Probe
from penstock.sources.base import Field
from penstock.streaming.buffers import BatchBuffers, LifetimeToken, with_lifetime_token
from penstock.streaming.prefetch import Prefetched
from penstock.streaming.transfer import Sent, Tensors, Transfer

LoadFunction: TypeAlias = Callable[..., Any]
Array: TypeAlias = npt.NDArray[np.generic]
Chunk: TypeAlias = tuple[torch.Tensor, ...]
Loaded: TypeAlias = tuple[Tensors, list[LifetimeToken]]


class ChunkPipeline:
    """Loads chunks in one thread, and copies them to an accelerator in another one.

    Args:
        load_fn: ``load_fn(start, end)``; see `RandomChunkLoader`.
        longest: Timesteps in the longest chunk.
        ahead: Chunks to load before they are requested.
        transfer: Copies chunks to an accelerator; None for the CPU.
    """

    def __init__(
        self, load_fn: LoadFunction, *, longest: int, ahead: int, transfer: Transfer | None
    ) -> None:
        self._ahead, self._transfer = ahead, transfer
        self._host = HostChunks(load_fn, longest=longest, count=ahead + 1, pin=transfer is not None)
        self._stages: list[Prefetched[Any]] = []
        self._received = 0

    def chunks(self, spans: Sequence[tuple[int, int]]) -> Iterator[Chunk]:
        """Return the tensors of each span, in order; loading starts now."""
        loaded = Prefetched(spans, self._host.load, ahead=self._ahead, name="chunks", parts=_tokens)
        self._stages = [loaded]
        if self._transfer is None:
            return map(self._count, map(_tensors, loaded))
        sent = Prefetched(
            map(_tensors, loaded), self._transfer.send, ahead=1, name="transfer", parts=_moved
        )
        self._stages.append(sent)
        return map(self._count, map(self._transfer.receive, sent))

    def close(self) -> None:
        """Stop the threads: first the one that the other one waits for."""
        for stage in self._stages:
            stage.close()
        self._stages = []

    def stats(self) -> dict[str, int]:
        """Return the chunks so far, and the most bytes in memory."""
        on_device = 0 if self._transfer is None else 2
        return {
            "chunks_loaded": self._host.loaded,
            "chunks_transferred": self._received,
            "host_bytes": self._host.chunk_bytes * (self._ahead + 1),
            "device_bytes": self._host.chunk_bytes * on_device,
        }

    def _count(self, tensors: Tensors) -> Chunk:
        self._received += 1
        return tuple(tensors.values())


class HostChunks:
    """Chunks in host memory, in ``count`` reused buffers if ``load_fn`` can write to them.

    The loading thread refers to this object, so nothing in here may refer to the thread.

    Args:
        load_fn: ``load_fn(start, end)``; see `RandomChunkLoader`.
        longest: Timesteps in the longest chunk.
        count: Number of buffers.
        pin: Use page-locked buffers; arrays that ``load_fn`` returns are copied into them.
    """

    def __init__(self, load_fn: LoadFunction, *, longest: int, count: int, pin: bool) -> None:
        self._load_fn, self._longest, self._count, self._pin = load_fn, longest, count, pin
        self._takes_out = takes_out(load_fn)
        self._buffers: BatchBuffers | None = None  # made when the first chunk shows the shapes
        self.loaded = self.chunk_bytes = 0

    def load(self, span: tuple[int, int]) -> Loaded:
        """Return the arrays of one span as tensors, with a lifetime token for each."""
        buffers = self._buffers
        with Probe("read", span):
            if buffers is not None and self._takes_out and buffers.free:
                tensors = self._load_into(buffers, span)
            else:  # the first chunk, or the user holds many
                tensors = self._stored(as_arrays(self._load_fn(*span)))
        self.loaded += 1
        self.chunk_bytes = max(self.chunk_bytes, sum(each.nbytes for each in tensors.values()))
        pairs = {name: with_lifetime_token(tensor) for name, tensor in tensors.items()}
        return {name: pair[0] for name, pair in pairs.items()}, [pair[1] for pair in pairs.values()]

    def _load_into(self, buffers: BatchBuffers, span: tuple[int, int]) -> Tensors:
        (slot,), rows = buffers.take(1), span[1] - span[0]
        try:
            self._load_fn(*span, out=tuple(buffers.arrays(slot, rows).values()))
        except BaseException:
            buffers.free.append(slot)
            raise
        return buffers.hand_out(slot, rows)

    def _stored(self, arrays: tuple[Array, ...]) -> Tensors:
        named = {str(i): array for i, array in enumerate(arrays)}
        if self._buffers is None and (self._takes_out or self._pin):
            fields = {name: Field(array.shape[1:], array.dtype) for name, array in named.items()}
            self._buffers = BatchBuffers(
                fields, batch=self._longest, count=self._count, lent=self._count, pin=self._pin
            )
        buffers, rows = self._buffers, len(arrays[0])
        if buffers is None or not buffers.free or {len(array) for array in arrays} != {rows}:
            return {name: torch.from_numpy(array) for name, array in named.items()}
        (slot,) = buffers.take(1)
        for name, into in buffers.arrays(slot, rows).items():
            np.copyto(into, named[name])
        return buffers.hand_out(slot, rows)


def _tensors(loaded: Loaded) -> Tensors:
    return loaded[0]


def _tokens(loaded: Loaded) -> Iterable[LifetimeToken]:
    return loaded[1]


def _moved(sent: Sent) -> Iterable[torch.Tensor]:
    return sent[0].values()


def as_arrays(loaded: Any) -> tuple[Array, ...]:
    """Return what a load function returned as a tuple of contiguous arrays.

    >>> len(as_arrays((np.zeros(3), np.ones(3)))), len(as_arrays(np.zeros(3)))
    (2, 1)
    """
    parts = tuple(loaded) if isinstance(loaded, tuple | list) else (loaded,)
    if not parts:
        raise PlanError("load_fn returned no array: return one array, or a tuple of arrays")
    return tuple(np.require(part, requirements=("C", "W")) for part in parts)


def takes_out(load_fn: LoadFunction) -> bool:
    """Return whether a load function has a parameter ``out``."""
    try:
        parameters = inspect.signature(load_fn).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return "out" in parameters
