"""Chunks of a recording, read and copied to the device while the one before is trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch

from penstock.arguments import whole_number
from penstock.domains.recording.chunk_plan import ChunkPlan
from penstock.errors import PenstockError, PlanError, StateError
from penstock.order.state import FORMAT, check_format, number_of
from penstock.ranks import current_topology
from penstock.seeds import Seed
from penstock.sizes import format_bytes
from penstock.streaming.loading import ChunkLoading, LoadFn
from penstock.streaming.transfer import check_device, transfer_to

log = logging.getLogger("penstock")

ARGUMENTS = {"order": "sampling", "samples": "total_timesteps", "chunk": "chunk_size"}


class RandomChunkLoader:
    """One chunk of timesteps after another, loaded in the background.

    The epoch's chunks are planned from (seed, epoch) before the first is read, so an early
    ``break`` changes nothing that comes later. By default they cover the recording once per pass.
    At most ``prefetch`` chunks wait in host memory beside the one in use; on an accelerator the
    next one's copy overlaps training, so that two are there.

    Ranks share one plan: its chunks are dealt to them in turn, so that together they cover the
    recording. Pass the same ``seed`` on all of them.

    Args:
        load_fn: ``load_fn(start, end)`` gives an array or several; where it also takes ``out=``
            (a tuple of arrays), it is given reused buffers to fill (page-locked ones for an
            accelerator).
        total_timesteps: Timesteps of the recording.
        chunk_size: Timesteps a chunk, at most.
        device: Where chunks go; None is the CPU.
        prefetch: Chunks read ahead.
        seed: Of the plan; None draws one, the same for all ranks, and logs it.
        sampling: ``"cover"``: each pass tiles the recording once. ``"uniform"``: independent
            random starts.
        align: Starts are multiples of it: of the storage's chunking, or of time units.
        overlap: Timesteps a chunk reads beyond its end, so that no window is lost at a border.
        rank: Of ``world_size`` ranks; both default to ``torch.distributed``'s, else 0 of 1.
        world_size: How many ranks share the chunks.

    >>> data = torch.arange(10.0).numpy()
    >>> with RandomChunkLoader(lambda a, b: data[a:b], 10, chunk_size=5, seed=1) as loader:
    ...     loader.start_epoch(num_chunks=2)
    ...     chunks = [loader.get_next_chunk() for _ in range(3)]
    >>> [None if chunk is None else len(chunk) for (chunk,) in chunks]
    [5, 5, None]
    """

    def __init__(
        self,
        load_fn: LoadFn,
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
        self._plan = ChunkPlan(
            total_timesteps, chunk_size, self._seed.value, sampling, align, overlap
        )
        self.total_timesteps, self.chunk_size = self._plan.total, self._plan.chunk
        self.device = device = check_device(device)
        self.prefetch = prefetch = whole_number("prefetch", prefetch, minimum=1, unit="chunk")
        self._loading = ChunkLoading(
            load_fn, longest=self.plan.longest, ahead=prefetch, transfer=transfer_to(device)
        )
        self._epoch, self._taken, self._planned = -1, 0, 0  # chunks are counted over all ranks
        self._world = 1  # of the epoch that was started
        self._resume: tuple[int, int] | None = None
        self._arrays = 2  # of a chunk; the seed's (data, stimulus) until one was seen
        self._chunks: Iterator[tuple[torch.Tensor, ...]] | None = None

    @property
    def plan(self) -> ChunkPlan:
        """Which chunks an epoch has over all ranks, the same on each of them."""
        if self._plan.seed != self._seed.for_ranks(self._topology().world):
            self._plan = replace(self._plan, seed=self._seed.value)
        return self._plan

    @property
    def seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self.plan.seed

    # -- an epoch

    def start_epoch(self, num_chunks: int) -> None:
        """Begin to load an epoch's chunks; after a loaded state: those not yet got of its epoch.

        An epoch has ``num_chunks * world_size`` chunks. Where a state of another number of ranks
        leaves chunks that these ranks cannot share equally, the last ones, fewer than
        ``world_size``, are dropped with a warning.

        Args:
            num_chunks: Chunks of the whole epoch on this rank, the same on every rank.
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
        self._chunks = self._loading.chunks(spans)

    def get_next_chunk(self) -> tuple[torch.Tensor | None, ...]:
        """The next chunk's tensors on the device; as many None at the end of the epoch.

        Blocks until it is there; raises what ``load_fn`` raised.
        """
        if self._chunks is None:
            raise PenstockError("no epoch was started: call start_epoch(num_chunks) first")
        chunk = next(self._chunks, None)
        if chunk is None:
            return (None,) * self._arrays
        self._taken += self._world
        self._arrays = len(chunk)
        return chunk

    def cleanup(self) -> None:
        """Stop loading; chunks that were handed out stay valid."""
        self._loading.close()
        self._chunks = iter(()) if self._chunks is not None else None

    close = cleanup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """The chunks got so far, as a small flat dict, the same on ranks that got equally many."""
        epoch, taken = self._resume or (max(self._epoch, 0), self._taken)
        if self._resume is None and self._planned and taken == self._planned:
            epoch, taken = epoch + 1, 0
        return {"format": FORMAT, "epoch": epoch, "position": taken, **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the last chunk got, with the next `start_epoch`, on any number of ranks.

        Args:
            state_dict: What `state_dict` returned.
        """
        check_format(state_dict)
        epoch, taken = number_of(state_dict, "epoch"), number_of(state_dict, "position")
        ours = self._identity()
        if not self._seed.given:
            ours["seed"] = number_of(state_dict, "seed")  # a drawn one is not insisted on
        for name, value in ours.items():
            if state_dict.get(name) != value:
                raise StateError(
                    f"the state belongs to {name} {state_dict.get(name)!r}, this loader has "
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

    # -- what happened

    def get_stats(self) -> dict[str, int]:
        """Chunks loaded and moved so far, and the bytes held at most in host and device memory."""
        return self._loading.stats()

    def describe(self) -> str:
        """One readable page: the plan, and what is held in memory."""
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
