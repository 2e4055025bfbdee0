"""Executors: run a plan inline, or in torch's worker processes. Both deliver the same batches."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from penstock.datasets.gather import Gather
from penstock.errors import WorkerError
from penstock.keyed import Reading, announce, current_reading
from penstock.loaders.gathered import collate_and_pack
from penstock.loaders.processes import (
    begin_worker,
    came_through,
    end_workers,
    forks,
    naming_the_dead,
    unpicklable,
)
from penstock.loaders.worker_init import reseed
from penstock.order import Cursor, Plan, PlannedBatch, derive_key

log = logging.getLogger("penstock")

STARTS = 3  # of workers, before they are given up


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
        reseed(reading)
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
        # torch seeds its workers from a generator of ours, not from the default one
        generator = torch.Generator().manual_seed(derive_key(seed, "workers"))
        self._options = {"dataset": dataset, "generator": generator, **options}
        self._sent_along = (dataset, options.get("collate_fn"), options.get("worker_init_fn"))
        self._persistent = bool(options.get("persistent_workers"))
        self._batches: Iterator[Any] = iter(())
        self.processes: list[BaseProcess] = []
        self._make_loader()

    def _make_loader(self) -> None:
        options, self._begun = dict(self._options), None
        if options.get("num_workers", 0):
            if forks(options.get("multiprocessing_context")):
                self._begun = multiprocessing.get_context("fork").Semaphore(0)
            own = options.get("worker_init_fn")
            options["worker_init_fn"] = partial(begin_worker, self._begun, own)
            options["collate_fn"] = partial(collate_and_pack, options["collate_fn"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of too many workers: the outer loader said it already
            self._loader: DataLoader[Any] = DataLoader(batch_sampler=self._feed, **options)

    def open(self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch]) -> WorkerStream:
        """A stream of batches from now on; what was in flight for an earlier one is discarded."""
        for _ in range(STARTS):
            self._feed.follow(plan.order.seed, batches)
            if self._start():
                return WorkerStream(plan, cursor, self._batches, self._feed.sent, self)
            log.warning("a worker process stood still as it was forked: all are started again")
            batches = chain(self._feed.sent, batches)
            self.close()
            self._make_loader()
        raise WorkerError(
            f"worker processes stood still as they were forked, {STARTS} times: "
            "use multiprocessing_context='forkserver', or num_workers=0"
        )

    def _start(self) -> bool:
        """Have torch's workers, new or waiting ones, read what is fed; False: one stands still."""
        try:
            with naming_the_dead(self.processes), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # said below, with its name
                self._batches = iter(self._loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise WorkerError(unpicklable(*self._sent_along)) from error
        started = [p for p in getattr(self._batches, "_workers", ()) if p not in self.processes]
        self.processes += started
        with naming_the_dead(self.processes):
            return self._begun is None or came_through(self._begun, started)

    @property
    def alive(self) -> bool:
        """Has none of the processes died?"""
        return all(process.exitcode is None for process in self.processes)

    def leave(self) -> None:
        """A stream is over; persistent workers wait for the next one."""
        if not self._persistent:
            self.close()

    def close(self) -> None:
        """End the worker processes."""
        end_workers(self._batches, self.processes)
        self._batches, self.processes = iter(()), []


class WorkerStream:
    """Batches that torch's workers read ahead, in plan order."""

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        batches: Iterator[Any],
        sent: deque[PlannedBatch],
        workers: Workers,
    ) -> None:
        self._plan, self._cursor, self._batches, self._sent = plan, cursor, batches, sent
        self._workers = workers

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        sent = len(self._sent)
        try:
            with naming_the_dead(self._workers.processes):
                batch = next(self._batches)
        finally:
            # torch asks for one batch more as soon as it takes a worker's result, be it an error:
            # then only this batch failed, and the next one follows
            if len(self._sent) > sent:
                self._cursor = self._sent.popleft().after
        return self._cursor, batch

    def close(self) -> None:
        """Let go of torch's iterator, and of the workers unless they are persistent."""
        self._batches = iter(())
        self._workers.leave()


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
