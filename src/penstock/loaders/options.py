"""What a loader may be asked for: torch's arguments and ours, and what cannot be together."""

from __future__ import annotations

from typing import Any, Final

from torch.utils.data import IterableDataset

from penstock.errors import PlanError

EXECUTORS: Final = ("inline", "threads", "processes")


def torchs_own(
    dataset: Any, batch_size: int | None, options: dict[str, Any], *, shuffle: bool, chunked: bool
) -> str | None:
    """What makes this torch's own loader, in words; None for a loader with our order."""
    for name in ("sampler", "batch_sampler", "generator"):
        if options.get(name) is not None:
            return name
    if isinstance(dataset, IterableDataset):
        return "an IterableDataset"
    if batch_size is None:
        return "batch_size=None"
    if not (shuffle or chunked) and len(dataset) == 0:
        return "an empty dataset"
    if options.get("in_order") is False:
        return "in_order=False"
    return None


def refuse_ours(what: str, ours: dict[str, Any]) -> None:
    """Chunks, orders and ranks are arithmetic: they cannot be had of what only torch knows."""
    for name, value in ours.items():
        if value is not None:
            raise PlanError(
                f"{name}={value!r} needs an order that is known in advance, which {what} has not: "
                f"leave out {name}, or give a map-style dataset without {what}"
            )


def check_executor(executor: str | None, num_workers: int) -> str:
    """The executor asked for, or what the number of workers says."""
    chosen = executor or ("processes" if num_workers else "inline")
    if chosen not in EXECUTORS:
        raise PlanError(f"executor must be one of {EXECUTORS}, got {executor!r}")
    if (chosen == "processes") != (num_workers > 0):
        raise PlanError(
            f"executor={executor!r} with num_workers={num_workers}: worker processes are for "
            "executor='processes' alone"
        )
    return chosen


def check_threads(threads: int | None, executor: str) -> int | None:
    """The number of threads asked for, refused where none read."""
    if threads is not None and (threads < 1 or executor != "threads"):
        raise PlanError(
            f"threads={threads!r} with executor={executor!r}: give 1 or more threads to "
            "executor='threads', or leave it out"
        )
    return threads


def check_batch_size(batch_size: int | None) -> int:
    """The batch size, refused below one sample."""
    if batch_size is None or batch_size < 1:
        raise PlanError(f"batch_size must be at least 1 sample, got {batch_size!r}")
    return batch_size
