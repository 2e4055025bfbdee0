"""A loader of chunks of a recording, and statistics about its waiting times."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import format_bytes, real_number, whole_number
from penstock.domains.recording.sampling import ChunkPlan
from penstock.errors import PenstockError, PlanError, StateError
from penstock.metrics import Probe, Recorder, Verdict, verdict_of
from penstock.order.state import FORMAT, check_format, number_of, refuse_skips
from penstock.ranks import Seed, current_topology
from penstock.sources.contract import Field
from penstock.streaming.buffers import BatchBuffers, LifetimeToken, with_lifetime_token
from penstock.streaming.pipeline import Tensors, Transfer, check_device, transfer_to
from penstock.streaming.prefetch import Prefetched

log = logging.getLogger("penstock")

LoadFunction: TypeAlias = Callable[..., Any]
Array: TypeAlias = npt.NDArray[np.generic]
Chunk: TypeAlias = tuple[torch.Tensor, ...]
Loaded: TypeAlias = tuple[Tensors, list[LifetimeToken]]

ARGUMENTS = {"order": "sampling", "samples": "total_timesteps", "chunk": "chunk_size"}


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
        read, ahead = self._host.load, self._ahead
        loaded = Prefetched(spans, read, ahead=ahead, name="chunks", parts=itemgetter(1))
        self._stages = [loaded]
        if self._transfer is None:
            return map(self._count, map(itemgetter(0), loaded))
        sent = Prefetched(
            map(itemgetter(0), loaded),
            self._transfer.send,
            ahead=1,
            name="transfer",
            parts=lambda sent: sent[0].values(),
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
            size, count = self._longest, self._count
            self._buffers = BatchBuffers(fields, batch=size, count=count, lent=count, pin=self._pin)
        buffers, rows = self._buffers, len(arrays[0])
        if buffers is None or not buffers.free or {len(array) for array in arrays} != {rows}:
            return {name: torch.from_numpy(array) for name, array in named.items()}
        (slot,) = buffers.take(1)
        for name, into in buffers.arrays(slot, rows).items():
            np.copyto(into, named[name])
        return buffers.hand_out(slot, rows)


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


class RandomChunkLoader:
    """Loads chunks of timesteps in the background, one ahead of training.

    An epoch's chunks are planned from (seed, epoch) before the first one is read, so an early
    ``break`` does not change later epochs. By default the chunks cover the recording once per
    pass. At most ``prefetch`` chunks wait in host memory in addition to the one in use. On an
    accelerator, the next chunk is copied during training, so two chunks are in its memory.

    All ranks share one plan. Its chunks are assigned round-robin, so that together the ranks
    cover the recording. Pass the same ``seed`` on all ranks.

    Args:
        load_fn: ``load_fn(start, end)`` returns one array or several. If it also has a parameter
            ``out`` (a tuple of arrays), it receives reused buffers to write to (page-locked ones
            for an accelerator).
        total_timesteps: Timesteps in the recording.
        chunk_size: Most timesteps in a chunk.
        device: Device of the chunks; None for the CPU.
        prefetch: Chunks to read ahead.
        seed: Seed of the plan; None draws one, the same for all ranks, and logs it.
        sampling: ``"cover"``: each pass tiles the recording once. ``"uniform"``: independent
            random starts.
        align: Starts are multiples of this, such as the chunk size of the storage.
        overlap: Timesteps that a chunk reads beyond its end, so that no window is lost.
        rank: This rank; defaults to that of ``torch.distributed``, else 0.
        world_size: Number of ranks; defaults to that of ``torch.distributed``, else 1.

    >>> data = torch.arange(10.0).numpy()
    >>> with RandomChunkLoader(lambda a, b: data[a:b], 10, chunk_size=5, seed=1) as loader:
    ...     loader.start_epoch(num_chunks=2)
    ...     chunks = [loader.get_next_chunk() for _ in range(3)]
    >>> [None if chunk is None else len(chunk) for (chunk,) in chunks]
    [5, 5, None]
    """

    def __init__(
        self,
        load_fn: LoadFunction,
        total_timesteps: int,
        chunk_size: int,
        device: torch.device | str | None = None,
        prefetch: int = 1,
        seed: int | None = None,
        *,
        sampling: str = "cover",
        align: int = 1,
        overlap: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if not callable(load_fn):
            found = f"{load_fn!r} ({type(load_fn).__name__})"
            raise PlanError(f"load_fn must be a function of (start, end), got {found}")
        self._topology = partial(current_topology, rank, world_size)
        self._seed = Seed(seed)
        seed_now = self._seed.value
        self._plan = ChunkPlan(total_timesteps, chunk_size, seed_now, sampling, align, overlap)
        self.total_timesteps, self.chunk_size = self._plan.total, self._plan.chunk
        self.device = device = check_device(device)
        self.prefetch = prefetch = whole_number("prefetch", prefetch, minimum=1, unit="chunk")
        sizes = {"longest": self.plan.longest, "ahead": prefetch}
        self._pipeline = ChunkPipeline(load_fn, **sizes, transfer=transfer_to(device))
        self._epoch, self._taken, self._planned = -1, 0, 0  # chunks are counted over all ranks
        self._world = 1  # of the current epoch
        self._resume: tuple[int, int] | None = None
        self.metrics = Recorder()
        self._arrays = 2  # in a chunk; (data, stimulus) until the first one was loaded
        self._chunks: Iterator[tuple[torch.Tensor, ...]] | None = None

    @property
    def plan(self) -> ChunkPlan:
        """The chunks of each epoch over all ranks; the same on every rank."""
        if self._plan.seed != self._seed.for_ranks(self._topology().world):
            self._plan = replace(self._plan, seed=self._seed.value)
        return self._plan

    @property
    def seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self.plan.seed

    # -- an epoch

    def start_epoch(self, num_chunks: int) -> None:
        """Start to load the chunks of the next epoch, or the rest of a restored state's epoch.

        An epoch has ``num_chunks * world_size`` chunks. If the state is of a different
        number of ranks and the chunks left are not a multiple of ``world_size``, the last ones
        are dropped with a warning.

        Args:
            num_chunks: Chunks of the whole epoch on this rank; the same on every rank.
        """
        if self._resume is None:
            epoch, taken = self._epoch + 1, 0
        else:
            epoch, taken = self._resume
        topology = self._topology()
        world = topology.world
        count = whole_number("num_chunks", num_chunks, minimum=1) * world
        taken = min(taken, count)
        spans = self.plan.share(epoch, taken, count, topology)
        self._seed.settle("chunks were delivered")
        self.cleanup()
        self._epoch, self._taken, self._planned = epoch, taken, taken + len(spans) * world
        if self._planned < count:
            log.warning(
                "dropping the last %d chunks of epoch %d: fewer than world_size=%d",
                *(count - self._planned, epoch, world),
            )
        self._resume, self._world = None, world
        self.metrics.pause()
        with self.metrics.work(""):
            self._chunks = self._pipeline.chunks(spans)

    def get_next_chunk(self) -> tuple[torch.Tensor | None, ...]:
        """Return the tensors of the next chunk; a tuple of None at the end of the epoch.

        Waits until the chunk is on the device, and raises an error of ``load_fn``.
        """
        if self._chunks is None:
            raise PenstockError("no epoch was started: call start_epoch(num_chunks) first")
        metrics, rows = self.metrics, 0
        if metrics.on:
            metrics.request()
        try:
            chunk = next(self._chunks, None)
            rows = 0 if chunk is None else len(chunk[0])
        finally:
            metrics.receive(rows, (self._epoch, self._taken))
        if chunk is None:
            return (None,) * self._arrays
        self._taken += self._world
        self._arrays = len(chunk)
        return chunk

    def verdict(self) -> Verdict:
        """Return one line: whether training waits for data, for which stage, and what to change."""
        topology = self._topology()
        return verdict_of(self.metrics.snapshot(rank=topology.rank, world=topology.world))

    def cleanup(self) -> None:
        """Stop loading; chunks that were returned stay valid."""
        self._pipeline.close()
        self._chunks = iter(()) if self._chunks is not None else None

    close = cleanup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a small flat dict, the same on all ranks after equal steps."""
        epoch, taken = self._resume or (max(self._epoch, 0), self._taken)
        if self._resume is None and self._planned and taken == self._planned:
            epoch, taken = epoch + 1, 0
        return {"format": FORMAT, "epoch": epoch, "position": taken, **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the last returned chunk, from the next `start_epoch` on.

        The number of ranks may differ.

        Args:
            state_dict: A result of `state_dict`.

        Raises:
            StateError: The state is not of a loader with the same plan.
        """
        check_format(state_dict)
        refuse_skips(state_dict, "RandomChunkLoader")
        epoch, taken = number_of(state_dict, "epoch"), number_of(state_dict, "position")
        ours = self._identity()
        if not self._seed.given:
            ours["seed"] = number_of(state_dict, "seed")  # a seed drawn at random is replaced
        for name, value in ours.items():
            if state_dict.get(name) != value:
                raise StateError(
                    f"the state has {name} {state_dict.get(name)!r}, this loader has "
                    f"{value!r}: build it with the same {ARGUMENTS.get(name, name)}"
                )
        self.cleanup()
        if not self._seed.given:
            self._seed.restore(ours["seed"])
        self._chunks, self._resume = None, (epoch, taken)

    def _identity(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "order": plan.sampling,
            "samples": plan.total,
            "seed": plan.seed,
            "chunk": plan.chunk,
            "align": plan.align,
            "overlap": plan.overlap,
        }

    # -- reports

    def get_stats(self) -> dict[str, int]:
        """Return counts of loaded and transferred chunks, and the most bytes in memory."""
        return self._pipeline.stats()

    def describe(self) -> str:
        """Return a readable summary of the plan and of the memory in use."""
        plan, stats, topology = self.plan, self.get_stats(), self._topology()
        ranks = f", rank {topology.rank} of {topology.world}" if topology.world > 1 else ""
        return "\n".join(
            [
                f"RandomChunkLoader over {plan.total:,} timesteps",
                f"  chunks    {plan.per_pass:,} a pass of at most {plan.longest:,} timesteps, "
                f"{plan.sampling}, seed {plan.seed}{ranks}",
                f"  host      at most {self.prefetch + 1} chunks, "
                f"{format_bytes(stats['host_bytes'])} seen",
                f"  device    {self.device or 'cpu'}, {format_bytes(stats['device_bytes'])} seen",
            ]
        )


class ChunkLatencyStats:
    """How long a program waits for chunks, and how long the parts of a training step take.

    >>> stats = ChunkLatencyStats()
    >>> stats.record_chunk_get(0.004)
    >>> stats.record_batch_times(forward=0.01, backward=0.02, step=0.001)
    >>> summary = stats.get_summary()
    >>> summary["chunk_get_mean_ms"], summary["num_batches_sampled"]
    (4.0, 1)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Delete all records; call it at the start of an epoch to measure that epoch."""
        self._chunks: list[float] = []
        self._batches: list[list[float]] = []

    def record_chunk_get(self, seconds: float) -> None:
        """Record the time of one `RandomChunkLoader.get_next_chunk` call.

        Args:
            seconds: 0 or more.
        """
        self._chunks.append(real_number("seconds", seconds, minimum=0))

    def record_batch_times(self, forward: float, backward: float, step: float) -> None:
        """Record the times of the parts of a training step.

        Args:
            forward: Seconds of the forward pass.
            backward: Seconds of the backward pass.
            step: Seconds of the optimizer step.
        """
        parts = {"forward": forward, "backward": backward, "step": step}
        self._batches.append([real_number(name, parts[name], minimum=0) for name in parts])

    def get_summary(self) -> dict[str, float]:
        """Return means and extremes in milliseconds; zeros if nothing was recorded."""
        chunks = [1e3 * seconds for seconds in self._chunks] or [0.0]
        parts = [[1e3 * seconds for seconds in part] for part in zip(*self._batches, strict=True)]
        forward, backward, step = (fmean(part) for part in parts or [[0.0]] * 3)
        return {
            "chunk_get_mean_ms": fmean(chunks),
            "chunk_get_max_ms": max(chunks),
            "chunk_get_min_ms": min(chunks),
            "batch_forward_mean_ms": forward,
            "batch_backward_mean_ms": backward,
            "batch_step_mean_ms": step,
            "num_chunks": len(self._chunks),
            "num_batches_sampled": len(self._batches),
        }

    def print_summary(self) -> None:
        """Print the summary, one line per value."""
        for name, value in self.get_summary().items():
            print(f"{name:24} {value:10.3f}" if name.endswith("ms") else f"{name:24} {value:10}")
