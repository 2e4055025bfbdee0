"""Executors: run a plan inline, or in torch's worker processes. Both deliver the same batches."""

from __future__ import annotations

import logging
import pickle
import signal
import warnings
import weakref
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
from penstock.loaders.processes import explain_worker_death, unpicklable
from penstock.loaders.waiting import LOOK_SECONDS, WorkerTimeoutError, WorkerWatch, describe_wait
from penstock.loaders.worker_context import END_SECONDS, WorkerContext, deferred_signals
from penstock.loaders.worker_init import reseed
from penstock.order import Cursor, Plan, PlannedBatch, derive_key

log = logging.getLogger("penstock")

STARTS = 3  # of workers, before an error


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
        self._plan, self._cursor, self._batches = plan, cursor, batches
        self.read = read  # replaced at every iteration: the dataset may have changed

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        planned = next(self._batches)
        self._cursor = planned.after
        outer = current_reading()  # of a loader whose dataset reads from this one
        announce(Reading(self._plan.order.seed, planned.epoch, planned.samples))
        try:
            return planned.after, self.read(planned)
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

    Uses torch's public interfaces: a batch sampler that continues as the plan does, a
    ``DataLoader`` whose persistent workers are kept when the plan jumps, and a multiprocessing
    context that knows every process.

    Args:
        dataset: What the workers read.
        seed: Of torch's own seeds for workers.
        timeout: Seconds to wait for a batch before an error; 0 waits for ever and logs that.
        **options: Of torch's ``DataLoader``.
    """

    def __init__(self, dataset: Any, *, seed: int, timeout: float = 0, **options: Any) -> None:
        self._feed = _Feed(inline=options.get("num_workers", 0) == 0)
        # torch seeds its workers from a generator of ours, not from the default one
        generator = torch.Generator().manual_seed(derive_key(seed, "workers"))
        self._options = {"dataset": dataset, "generator": generator, **options}
        self._sent_along = (dataset, options.get("collate_fn"), options.get("worker_init_fn"))
        self._persistent = bool(options.get("persistent_workers"))
        self._timeout = timeout
        self._batches: Iterator[Any] = iter(())
        self._context: WorkerContext | None = None
        self._watch: WorkerWatch | None = None
        self._when_dropped: weakref.finalize[..., Workers] | None = None
        self._make_loader()

    def _make_loader(self) -> None:
        options = dict(self._options)
        if options.get("num_workers", 0):
            self._context = WorkerContext(options.get("multiprocessing_context"))
            if self._when_dropped is not None:
                self._when_dropped.detach()
            self._when_dropped = weakref.finalize(self, self._context.end)
            self._when_dropped.atexit = False  # the context ends at exit, with less time
            options["multiprocessing_context"] = self._context
            options["worker_init_fn"] = self._context.initializer(options.get("worker_init_fn"))
            options["collate_fn"] = partial(collate_and_pack, options["collate_fn"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of too many workers: the outer loader said it already
            self._loader: DataLoader[Any] = DataLoader(batch_sampler=self._feed, **options)

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes that were started and not yet ended by `close`."""
        return [] if self._context is None or self._context.ended else self._context.started

    def open(self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch]) -> WorkerStream:
        """A stream of batches from now on; what was in flight for an earlier one is discarded."""
        for _ in range(STARTS):
            self._feed.follow(plan.order.seed, batches)
            stuck = self._start()
            if stuck is None:
                return WorkerStream(plan, cursor, self._batches, self._feed.sent, self)
            log.warning("a worker process %s: all are started again", stuck)
            batches = chain(self._feed.sent, batches)
            self.close(seconds=0)  # it had its time
        raise WorkerError(
            f"worker processes were stuck as they were forked, {STARTS} times: "
            "use multiprocessing_context='forkserver', or num_workers=0"
        )

    def _start(self) -> str | None:
        """Have workers, new or waiting ones, read what is fed; return what one is stuck in."""
        if self._context is None:  # memory is pinned, without workers
            self._batches = iter(self._loader)
            return None
        if self._watch is not None and not self._context.ended:
            return self._start_again(self._watch)
        if self._context.ended:
            self._make_loader()
        context = self._context
        try:
            with explain_worker_death(context), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # said below, with its name
                # an iterator that is interrupted as it is made is lost, with what it started
                with deferred_signals(signal.SIGINT, signal.SIGTERM):
                    self._batches = context.batches = iter(self._loader)
                    look = min(self._timeout / 4 or LOOK_SECONDS, LOOK_SECONDS)
                    self._watch = context.watch = WorkerWatch(context, look)
                    self._watch.start()
                if context.get_start_method() == "fork" and not context.all_begin():
                    return "was stuck as it was forked"
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise WorkerError(unpicklable(*self._sent_along)) from error
        return None

    def _start_again(self, watch: WorkerWatch) -> str | None:
        try:
            with watch.waiting(lambda: "workers to finish", END_SECONDS):
                self._batches = iter(self._loader)
        except WorkerTimeoutError:
            return f"was busy for {END_SECONDS:g} s with a batch that is no longer needed"
        return None

    def receive(self, batches: Iterator[Any], count: int, sent: deque[PlannedBatch]) -> Any:
        """The next batch, waited for as long as the timeout says.

        Args:
            batches: torch's iterator.
            count: Batches that came from it before: torch's workers take turns.
            sent: The batches asked for, from this one on.
        """
        context, watch = self._context, self._watch
        if context is None or watch is None:
            return next(batches)

        samples = sent[0].samples if sent else ()
        what = partial(describe_wait, context, count % len(context.processes), samples)
        with watch.waiting(what, self._timeout):
            return next(batches)

    @property
    def alive(self) -> bool:
        """Has none of the processes died?"""
        return all(process.exitcode is None for process in self.processes)

    def leave(self) -> None:
        """A stream is over; persistent workers wait for the next one."""
        if not self._persistent:
            self.close()

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the worker processes.

        Args:
            seconds: For them to finish what they are reading; then they are killed.
        """
        if self._context is not None:
            self._context.end(seconds)
        self._batches, self._watch = iter(()), None


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
        self._workers, self._count = workers, 0

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        return plan is self._plan and cursor == self._cursor

    def __next__(self) -> tuple[Cursor, Any]:
        sent = len(self._sent)
        try:
            batch = self._workers.receive(self._batches, self._count, self._sent)
        finally:
            # torch asks for one batch more as soon as it takes a worker's result, be it an error:
            # then only this batch failed, and the next one follows
            if len(self._sent) > sent:
                self._cursor = self._sent.popleft().after
                self._count += 1
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
