"""Which timesteps are used: the split, the chunks of an epoch, the rollouts within a chunk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy.typing as npt
import torch

from penstock.arguments import choice, whole_number
from penstock.errors import ConfigError, PlanError
from penstock.order import Topology, derive_key, tiles

Span: TypeAlias = tuple[int, int]  # the first timestep, and the one after the last

SAMPLINGS = ("cover", "uniform")


@dataclass(frozen=True, slots=True)
class DataSplit:
    """Timesteps for training and for validation: two ranges that do not overlap.

    Args:
        train_start: The first timestep for training.
        train_end: The end of that range (exclusive).
        validation_start: The first timestep for validation.
        validation_end: The end of that range (exclusive).

    >>> DataSplit(5120, 972_800, 973_056, 987_648).within(987_736).train_timesteps
    967680
    >>> DataSplit(0, 100, 50, 200)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: training 0:100 and validation 50:200 overlap: ...
    """

    train_start: int
    train_end: int
    validation_start: int
    validation_end: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            whole_number(name, value, minimum=0, error=ConfigError)
        for name in ("train", "validation"):
            start, end = getattr(self, f"{name}_start"), getattr(self, f"{name}_end")
            if end <= start:
                raise ConfigError(f"{name}_end must be after {name}_start {start}, got {end}")
        if self.train_start < self.validation_end and self.validation_start < self.train_end:
            train = f"{self.train_start}:{self.train_end}"
            validation = f"{self.validation_start}:{self.validation_end}"
            raise ConfigError(f"training {train} and validation {validation} overlap: move one")

    @property
    def train_timesteps(self) -> int:
        """Number of timesteps for training."""
        return self.train_end - self.train_start

    @property
    def validation_timesteps(self) -> int:
        """Number of timesteps for validation."""
        return self.validation_end - self.validation_start

    def within(self, total_timesteps: int) -> DataSplit:
        """Return this split, if the recording is long enough.

        Args:
            total_timesteps: Timesteps in the recording.

        Raises:
            ConfigError: The split ends after the recording.
        """
        last = max(self.train_end, self.validation_end)
        if last > total_timesteps:
            raise ConfigError(f"the split ends at timestep {last} of only {total_timesteps}")
        return self


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of each epoch, from (seed, epoch) alone: spans of ``range(total)``.

    With ``sampling="cover"``, every pass tiles the recording once, in shuffled chunks whose
    lengths differ by at most one unit of ``align``. With ``"uniform"``, starts are independent
    and random, and a pass misses about a third of the recording on average.

    Args:
        total: Timesteps in the recording.
        chunk: Most timesteps in a chunk, without the overlap.
        seed: Seed of the plan.
        sampling: ``"cover"`` or ``"uniform"``.
        align: Starts are multiples of this.
        overlap: Timesteps that a chunk reads beyond its end.

    >>> plan = ChunkPlan(total=10, chunk=4, seed=7)
    >>> sorted(plan.spans(epoch=0, count=3))
    [(0, 4), (4, 7), (7, 10)]
    """

    total: int
    chunk: int
    seed: int
    sampling: str = "cover"
    align: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        for field, name, smallest, unit in (
            ("total", "total_timesteps", 1, "timestep"),
            ("chunk", "chunk_size", 1, "timestep"),
            ("align", "align", 1, "timestep"),
            ("overlap", "overlap", 0, "timestep"),
        ):
            value = whole_number(name, getattr(self, field), minimum=smallest, unit=unit)
            object.__setattr__(self, field, value)
        seed = whole_number("seed", self.seed, minimum=0, maximum=2**64 - 1)
        object.__setattr__(self, "seed", seed)
        choice("sampling", self.sampling, SAMPLINGS)
        if self.chunk % self.align:
            below = max(1, self.chunk // self.align) * self.align
            raise PlanError(
                f"chunk_size {self.chunk:,} is not a multiple of align {self.align:,}: "
                f"use chunk_size={below} or {below + self.align}"
            )

    @property
    def per_pass(self) -> int:
        """Number of chunks that cover the recording once."""
        return -(-self.total // self.chunk)

    @property
    def longest(self) -> int:
        """Timesteps in the longest chunk."""
        return min(self.total, self.chunk + self.overlap)

    def spans(self, epoch: int, count: int) -> list[tuple[int, int]]:
        """Return the first ``count`` chunks of an epoch, over as many passes as needed."""
        if self.sampling == "uniform":
            # starts are multiples of align, the last one so that a whole chunk fits
            places = max(0, self.total - self.chunk) // self.align + 1
            keys = (derive_key(self.seed, "uniform", epoch, i) for i in range(count))
            starts = [key % places * self.align for key in keys]
            spans = [(start, start + self.chunk) for start in starts]
        else:
            passes = range(-(-count // self.per_pass))
            keys = (derive_key(self.seed, "tiles", epoch, number) for number in passes)
            covers = (tiles(self.total, self.chunk, key, self.align) for key in keys)
            spans = [span for cover in covers for span in cover][:count]
        return [(start, min(stop + self.overlap, self.total)) for start, stop in spans]

    def share(self, epoch: int, first: int, count: int, topology: Topology) -> list[Span]:
        """Return a rank's chunks among ``first:count`` of an epoch, assigned round-robin.

        All ranks get the same number, so that no rank waits for another. The remaining chunks,
        fewer than there are ranks, are dropped.

        >>> plan, ranks = ChunkPlan(total=10, chunk=2, seed=7), [Topology(r, 2) for r in (0, 1)]
        >>> a, b = (plan.share(epoch=0, first=0, count=5, topology=each) for each in ranks)
        >>> [*zip(a, b)] == [*zip(plan.spans(0, 4)[::2], plan.spans(0, 4)[1::2])]
        True
        """
        stop = count - max(0, count - first) % topology.world
        return self.spans(epoch, count)[first + topology.rank : stop : topology.world]


def calculate_chunk_params(
    total_timesteps: int, chunk_size: int, batch_size: int, data_passes_per_epoch: int
) -> tuple[int, int, int]:
    """Return chunks per epoch, batches per chunk, and their product, the batches per epoch.

    Args:
        total_timesteps: Timesteps in the recording.
        chunk_size: Timesteps in a chunk.
        batch_size: Rollouts in a batch.
        data_passes_per_epoch: Passes over the recording in an epoch.

    >>> calculate_chunk_params(967680, 65536, 256, 1)
    (15, 252, 3780)
    """
    for name, value in dict(locals()).items():
        whole_number(name, value, minimum=1)
    if total_timesteps < batch_size:
        raise PlanError(f"{total_timesteps} timesteps are fewer than batch_size={batch_size}")
    chunks = data_passes_per_epoch * -(-total_timesteps // chunk_size)
    batches = max(1, round(data_passes_per_epoch * (total_timesteps // batch_size) / chunks))
    return chunks, batches, chunks * batches


def sample_batch_within_chunk(
    chunk_data: torch.Tensor,
    chunk_stim: torch.Tensor,
    wmat_indices: torch.Tensor | npt.ArrayLike,
    wmat_indptr: torch.Tensor | npt.ArrayLike,
    batch_size: int,
    total_steps: int,
    num_neurons_to_zero: int,
    device: torch.device | str,
    *,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the starts of a batch of rollouts, neurons to silence, and neurons a step needs.

    A rollout that starts at ``i`` has its last target at ``i + total_steps``, inside the chunk.
    A step needs the silenced neurons and their presynaptic partners: row ``n`` of the connectome
    lists ``wmat_indices[wmat_indptr[n] : wmat_indptr[n + 1]]``. All results are int64 tensors.

    Args:
        chunk_data: The chunk, ``(timesteps, neurons)``.
        chunk_stim: Its stimulus, with the same number of timesteps.
        wmat_indices: Column indices of the connectome in CSR format.
        wmat_indptr: Row pointers of the connectome in CSR format.
        batch_size: Rollouts in the batch.
        total_steps: Steps in a rollout.
        num_neurons_to_zero: Number of neurons to silence.
        device: Device of the results.
        generator: Source of random numbers; None for torch's default generator. Pass
            ``keyed_generator(seed, epoch, chunk, batch)`` to make a resumed run exact.

    >>> chunk, csr = torch.zeros(100, 3), (torch.tensor([1, 2, 0]), torch.tensor([0, 2, 2, 3]))
    >>> starts, silent, needed = sample_batch_within_chunk(chunk, chunk, *csr, 8, 20, 1, "cpu")
    >>> len(starts), int(starts.max()) < 80, len(silent)
    (8, True, 1)
    """
    if getattr(chunk_data, "ndim", 0) < 2:
        found = tuple(getattr(chunk_data, "shape", ())) or type(chunk_data).__name__
        raise PlanError(f"chunk_data must be a tensor (timesteps, neurons), got {found}")
    steps, neurons = chunk_data.shape[:2]
    batch_size = whole_number("batch_size", batch_size, minimum=1, unit="rollout")
    total_steps = whole_number("total_steps", total_steps, minimum=0)
    num_neurons_to_zero = whole_number("num_neurons_to_zero", num_neurons_to_zero)
    if steps <= total_steps:
        raise PlanError(f"{steps} timesteps are too short for a rollout of {total_steps} steps")
    if not 0 <= num_neurons_to_zero <= neurons:
        raise PlanError(f"num_neurons_to_zero must be in [0, {neurons}], got {num_neurons_to_zero}")
    where = "cpu" if generator is None else generator.device
    starts = torch.randint(steps - total_steps, (batch_size,), generator=generator, device=where)
    silent = torch.randperm(neurons, generator=generator, device=where)[:num_neurons_to_zero]
    needed = torch.unique(torch.cat([partners(wmat_indices, wmat_indptr, silent), silent]))
    return starts.to(device), silent.to(device), needed.to(device)


def partners(wmat_indices: Any, wmat_indptr: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return the column indices of the given rows of a CSR matrix.

    >>> partners([5, 6, 7], [0, 2, 2, 3], torch.tensor([0, 2])).tolist()
    [5, 6, 7]
    """
    indices = torch.as_tensor(wmat_indices).to(rows.device, torch.int64)
    indptr = torch.as_tensor(wmat_indptr).to(rows.device, torch.int64)
    begin, count = indptr[rows], indptr[rows + 1] - indptr[rows]
    within = torch.arange(int(count.sum()), device=rows.device)
    within -= (count.cumsum(0) - count).repeat_interleave(count)
    return indices[begin.repeat_interleave(count) + within]
