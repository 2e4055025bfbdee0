"""Executors: run a plan inline, or in torch's worker processes. Both deliver the same batches."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from penstock.errors import PlanError, WorkerError
from penstock.keyed import Reading, announce, current_reading
from penstock.loaders.gather import Gather
from penstock.order import Cursor, Plan, PlannedBatch, derive_key

log = logging.getLogger("penstock")


class IndexBatch(list[int]):
    """A list of indices that carries its epoch: unpickling it announces what is being read."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading.samples.tolist())
        self.reading = reading

    def __reduce__(self) -> tuple[Callable[[Reading], IndexBatch], tuple[Reading]]:
        return _arrive, (self.reading,)


def _arrive(reading: Reading) -> IndexBatch:
    if get_worker_info() is not None:
        announce(reading)
    return IndexBatch(reading)


class InlineStream:
    """Batches read where they are asked for: no worker, no copy between processes."""

    def __init__(
        self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch], read: Read
    ) -> None:
        self._plan, self._cursor, self._batches, self._read = plan, cursor, batches, read

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        planned = next(self._batches)
        self._cursor = planned.after
        outer = current_reading()  # of a loader whose dataset reads from this one
        announce(Reading(self._plan.order.seed, planned.epoch, planned.samples))
        try:
            return planned.after, self._read(planned)
        finally:
            announce(outer)

    def close(self) -> None:
        """Nothing runs."""


Read = Callable[[PlannedBatch], Any]


def reader(dataset: Any, gather: Gather | None, collate: Callable[[list[Any]], Any]) -> Read:
    """How a batch is read in this process: in one gather, batched, or sample by sample."""
    if gather is not None:
        return lambda planned: gather(planned.samples)
    batched = getattr(dataset, "__getitems__", None)
    if batched is not None:
        return lambda planned: collate(batched(planned.samples.tolist()))
    return lambda planned: collate([dataset[i] for i in planned.samples.tolist()])


class Workers:
    """One set of torch's worker processes, for all chunks and epochs of a loader.

    Rides on torch's public seams: a batch sampler that goes on as the plan does, and a
    ``DataLoader`` whose persistent workers are kept when the plan jumps.
    """

    def __init__(self, dataset: Any, *, seed: int, **options: Any) -> None:
        self._feed = _Feed(inline=options.get("num_workers", 0) == 0)
        generator = torch.Generator().manual_seed(derive_key(seed, "workers"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of too many workers: the outer loader said it already
            self._loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_sampler=self._feed,
                generator=generator,  # torch seeds its workers from it, not from the default one
                **options,
            )
        self._start = (dataset, options.get("collate_fn"), options.get("worker_init_fn"))

    def open(self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch]) -> WorkerStream:
        """A stream of batches from now on; what was in flight for an earlier one is discarded."""
        self._feed.follow(plan.order.seed, batches)
        try:
            return WorkerStream(plan, cursor, iter(self._loader), self._feed.sent)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise WorkerError(unpicklable(*self._start)) from error


class WorkerStream:
    """Batches that torch's workers read ahead, in plan order."""

    def __init__(
        self, plan: Plan, cursor: Cursor, batches: Iterator[Any], sent: deque[PlannedBatch]
    ) -> None:
        self._plan, self._cursor, self._batches, self._sent = plan, cursor, batches, sent

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        batch = next(self._batches)
        self._cursor = self._sent.popleft().after
        return self._cursor, batch

    def close(self) -> None:
        """Let go of torch's iterator: it ends its workers, unless they are persistent."""
        self._batches = iter(())


class _Feed:
    """The batch sampler of the workers: whatever the plan says next."""

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self.follow(0, iter(()))

    def follow(self, seed: int, batches: Iterator[PlannedBatch]) -> None:
        self._seed, self._batches = seed, batches
        self.sent: deque[PlannedBatch] = deque()  # of this stream; an older one keeps its own

    def __iter__(self) -> Iterator[IndexBatch]:
        seed, sent = self._seed, self.sent
        for planned in self._batches:
            sent.append(planned)
            reading = Reading(seed, planned.epoch, planned.samples)
            if self._inline:
                announce(reading)
            yield IndexBatch(reading)


def safe_context(context: Any, num_workers: int) -> Any:
    """A start method that cannot deadlock: reader threads and ``fork`` do not mix."""
    if num_workers == 0:
        return context
    threads = sorted(t.name for t in threading.enumerate() if t.name.startswith(READERS))
    if not threads:
        return context
    method = context if isinstance(context, str) else getattr(context, "_name", None)
    if (method or multiprocessing.get_start_method()) != "fork":
        return context
    if context is not None:
        raise PlanError(
            f"multiprocessing_context='fork' while reader threads live ({', '.join(threads)}) "
            "can deadlock: use 'forkserver' or 'spawn', or close the loaders that read"
        )
    log.info(
        "workers start by forkserver: threads %s live, and fork would copy their locks", threads
    )
    return "forkserver"


READERS = ("penstock-", "zarr_io", "zarr_pool")  # ours, and those of zarr's event loop


def unpicklable(*parts: Any) -> str:
    """One sentence that names what cannot go to a worker process."""
    for part in parts:
        culprit = _culprit(part, type(part).__name__)
        if culprit is not None:
            return (
                f"{culprit} cannot be sent to a worker process: define it at the top of a module, "
                "open files and handles lazily in the worker, or use num_workers=0"
            )
    return "the dataset cannot be sent to a worker process: use num_workers=0"


def _culprit(value: Any, name: str) -> str | None:
    if _picklable(value):
        return None
    for key, inner in getattr(value, "__dict__", {}).items():
        found = _culprit(inner, f"{name}.{key}")
        if found is not None:
            return found
    return f"{name} ({type(value).__name__})"


def _picklable(value: Any) -> bool:
    try:
        multiprocessing.reduction.ForkingPickler.dumps(value)
    except (AttributeError, TypeError, pickle.PicklingError):
        return False
    return True
