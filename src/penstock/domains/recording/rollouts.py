"""Batches of rollouts within a chunk of a recording."""

from __future__ import annotations

from typing import Any

import torch

from penstock.arguments import whole_number
from penstock.errors import PlanError


def calculate_chunk_params(
    total_timesteps: int, chunk_size: int, batch_size: int, data_passes_per_epoch: int
) -> tuple[int, int, int]:
    """Chunks an epoch, batches a chunk, and their product: the batches an epoch really has.

    Args:
        total_timesteps: Timesteps of the recording.
        chunk_size: Timesteps of a chunk.
        batch_size: Rollouts of a batch.
        data_passes_per_epoch: How often an epoch goes through the recording.

    >>> calculate_chunk_params(967680, 65536, 256, 1)
    (15, 252, 3780)
    """
    sizes = {
        "total_timesteps": total_timesteps,
        "chunk_size": chunk_size,
        "batch_size": batch_size,
        "data_passes_per_epoch": data_passes_per_epoch,
    }
    for name, value in sizes.items():
        whole_number(name, value, minimum=1)
    if total_timesteps < batch_size:
        raise PlanError(
            f"{total_timesteps} timesteps make no batch of {batch_size}: use a smaller batch_size"
        )
    chunks = data_passes_per_epoch * -(-total_timesteps // chunk_size)
    batches = max(1, round(data_passes_per_epoch * (total_timesteps // batch_size) / chunks))
    return chunks, batches, chunks * batches


def sample_batch_within_chunk(
    chunk_data: torch.Tensor,
    chunk_stim: torch.Tensor,
    wmat_indices: Any,
    wmat_indptr: Any,
    batch_size: int,
    total_steps: int,
    num_neurons_to_zero: int,
    device: torch.device | str,
    *,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Start indices of a batch of rollouts, neurons to silence, and those a step needs.

    A rollout from ``i`` has its last target at ``i + total_steps``, inside the chunk. Needed are
    the silenced neurons and their presynaptic partners: row ``n`` of the connectome lists
    ``wmat_indices[wmat_indptr[n] : wmat_indptr[n + 1]]``. All are int64 on ``device``.

    Without a ``generator`` it draws from torch's default one: give a
    ``keyed_generator(seed, epoch, chunk, batch)`` where a resumed run must be exact.

    Args:
        chunk_data: The chunk, ``(timesteps, neurons)``.
        chunk_stim: Its stimulus, of as many timesteps.
        wmat_indices: Columns of the connectome's entries (CSR).
        wmat_indptr: Where each of its rows begins.
        batch_size: Rollouts of the batch.
        total_steps: Steps of a rollout.
        num_neurons_to_zero: How many neurons to silence.
        device: Where the results go.
        generator: What is drawn from.

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
        raise PlanError(
            f"a chunk of {steps} timesteps holds no rollout of {total_steps} steps and its "
            "target: use larger chunks"
        )
    if not 0 <= num_neurons_to_zero <= neurons:
        raise PlanError(
            f"num_neurons_to_zero must be in [0, {neurons}], got {num_neurons_to_zero!r}"
        )
    where = "cpu" if generator is None else generator.device
    starts = torch.randint(steps - total_steps, (batch_size,), generator=generator, device=where)
    silent = torch.randperm(neurons, generator=generator, device=where)[:num_neurons_to_zero]
    needed = torch.unique(torch.cat([partners(wmat_indices, wmat_indptr, silent), silent]))
    return starts.to(device), silent.to(device), needed.to(device)


def partners(wmat_indices: Any, wmat_indptr: Any, rows: torch.Tensor) -> torch.Tensor:
    """All entries of the given rows of a CSR matrix.

    >>> partners([5, 6, 7], [0, 2, 2, 3], torch.tensor([0, 2])).tolist()
    [5, 6, 7]
    """
    indices = torch.as_tensor(wmat_indices).to(rows.device, torch.int64)
    indptr = torch.as_tensor(wmat_indptr).to(rows.device, torch.int64)
    begin, count = indptr[rows], indptr[rows + 1] - indptr[rows]
    within = torch.arange(int(count.sum()), device=rows.device)
    within -= (count.cumsum(0) - count).repeat_interleave(count)
    return indices[begin.repeat_interleave(count) + within]
