"""The three executors: inline, threads and worker processes. All deliver the same batches."""

from __future__ import annotations

import logging
import pickle
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from penstock.datasets.gather import Gather, Reader
from penstock.errors import WorkerError
from penstock.keyed import AnnouncedIndices, Reading, announce, current_reading
from penstock.loaders.batch_transport import ReadDataset, Received, collate_and_pack, fetching
from penstock.loaders.worker_errors import (
    LOOK_SECONDS,
    WorkerTimeoutError,
    WorkerWatch,
    describe_wait,
    explain_worker_death,
    unpicklable,
)
from penstock.loaders.workers import END_SECONDS, WorkerContext, reseed, starting_workers
from penstock.metrics import Probe, Recorder, Work, current_recorder
from penstock.order import Cursor, Plan, PlannedBatch, derive_key
from penstock.streaming.threads import (
    BackgroundThread,
    BatchTimeoutError,
    check_process,
    request_stop_all,
    start_all,
    stop_or_warn,
    wait_for,
)

log = logging.getLogger("penstock")


STARTS = 3  # of workers, before an error


class IndexBatch(AnnouncedIndices):
    """The indices of a batch with its epoch; unpickling it announces what is being read."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading.samples.tolist())
        self.reading = reading

    def __reduce__(self) -> tuple[Callable[[Reading], IndexBatch], tuple[Reading]]:
        return _arrive, (self.reading,)


def reading_of(seed: int, planned: PlannedBatch) -> Reading:
    """Return what is announced while a batch is read."""
    return Reading(seed, planned.epoch, planned.samples, planned.passes)


def _arrive(reading: Reading) -> IndexBatch:
    if get_worker_info() is not None:
        announce(reading)
        reseed(reading)
        fetching()
    return IndexBatch(reading)


class PlanStream:
    """A stream that knows where in which plan it is."""

    def __init__(self, plan: Plan, cursor: Cursor) -> None:
        self._plan, self._cursor = plan, cursor

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Return whether the next batch of this stream is the one at ``cursor`` of ``plan``."""
        return plan is self._plan and cursor == self._cursor


class InlineStream(PlanStream):
    """Batches read in the calling thread: no worker, no copy between processes."""

    def __init__(
        self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch], read: Read
    ) -> None:
        super().__init__(plan, cursor)
        self._batches = batches
        self.read = read  # replaced at every iteration: the dataset may have changed

    def __next__(self) -> tuple[Cursor, Any]:
        planned = _probed("plan", next, self._batches)
        self._cursor = planned.after
        outer = current_reading()  # of a loader whose dataset reads from this one
        announce(reading_of(self._plan.order.seed, planned))
        try:
            return planned.after, self.read(planned)
        finally:
            announce(outer)

    def close(self) -> None:
        """Do nothing: no thread or process runs."""


Read = Callable[[PlannedBatch], Any]


def reader(dataset: Any, gather: Gather | None, collate: Callable[[list[Any]], Any]) -> Read:
    """Return a function that reads a batch: in one gather, batched, or sample by sample."""
    if gather is not None:
        return lambda planned: _probed("read", gather, planned.samples)
    samples = Reader(dataset).samples
    return lambda planned: _probed(
        "collate", collate, _probed("read", samples, planned.samples.tolist())
    )


def _probed(stage: str, work: Callable[[Any], Any], given: Any) -> Any:
    if current_recorder() is None:
        return work(given)
    with Probe(stage):
        return work(given)


class Workers:
    """A set of torch's worker processes for all chunks and epochs of a loader.

    Uses torch's public interfaces: a batch sampler that continues as the plan does, a
    ``DataLoader`` whose persistent workers are kept when the plan jumps, and a multiprocessing
    context that knows every process.

    Args:
        dataset: What the workers read.
        seed: Seed from which torch seeds its workers.
        timeout: Seconds to wait for a batch before an error; 0 for no limit.
        **options: Arguments of torch's ``DataLoader``.
    """

    def __init__(self, dataset: Any, *, seed: int, timeout: float = 0, **options: Any) -> None:
        self._feed = _Feed(inline=options.get("num_workers", 0) == 0)
        # torch seeds its workers from a generator of ours, not from the default one
        generator = torch.Generator().manual_seed(derive_key(seed, "workers"))
        self._options = {"dataset": dataset, "generator": generator, **options}
        own = dataset.dataset if isinstance(dataset, ReadDataset) else dataset
        self._sent_along = (own, options.get("collate_fn"), options.get("worker_init_fn"))
        self._persistent = bool(options.get("persistent_workers"))
        self._timeout = timeout
        self._batches: Iterator[Any] = iter(())
        self._context: WorkerContext | None = None
        self.recorder: Recorder | None = None  # of what workers measure
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
            self.recorder = current_recorder()
            timed = self.recorder is not None
            options["collate_fn"] = partial(collate_and_pack, options["collate_fn"], timed=timed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of too many workers: the outer loader has warned
            self._loader: DataLoader[Any] = DataLoader(batch_sampler=self._feed, **options)

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes that were started and not yet ended by `close`."""
        return [] if self._context is None or self._context.ended else self._context.started

    def open(self, plan: Plan, cursor: Cursor, batches: Iterator[PlannedBatch]) -> WorkerStream:
        """Return a stream of batches; what was in flight for an earlier one is discarded."""
        for _ in range(STARTS):
            self._feed.follow(plan.order.seed, batches)
            stuck = self._start()
            if stuck is None:
                return WorkerStream(plan, cursor, self._batches, self._feed.sent, self)
            log.warning("a worker process %s: all are started again", stuck)
            batches = chain(self._feed.sent, batches)
            self.close(seconds=0)  # it already had its time
        raise WorkerError(
            f"worker processes were stuck as they were forked, {STARTS} times: "
            "use multiprocessing_context='forkserver', or num_workers=0"
        )

    def _start(self) -> str | None:
        """Start workers, or reuse waiting ones; return why one is stuck, or None."""
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
                warnings.filterwarnings("ignore", "Got pickle error")  # reported below
                with starting_workers():
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
        """Return the next batch; wait at most ``timeout`` seconds.

        Args:
            batches: torch's iterator.
            count: Batches received before: torch's workers deliver in turn.
            sent: The batches requested, from this one on.
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
        """Whether no process has died."""
        return all(process.exitcode is None for process in self.processes)

    def leave(self) -> None:
        """End a stream; persistent workers wait for the next one."""
        if not self._persistent:
            self.close()

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the worker processes.

        Args:
            seconds: For workers to finish what they are reading; then they are killed.
        """
        if self._context is not None:
            self._context.end(seconds)
        self._batches, self._watch = iter(()), None


class WorkerStream(PlanStream):
    """Batches that worker processes read ahead, in plan order."""

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        batches: Iterator[Any],
        sent: deque[PlannedBatch],
        workers: Workers,
    ) -> None:
        super().__init__(plan, cursor)
        self._batches, self._sent, self._workers, self._count = batches, sent, workers, 0

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
        if isinstance(batch, Received):
            batch = batch.opened(self._workers.recorder)
        return self._cursor, batch

    def close(self) -> None:
        """Drop torch's iterator, and end the workers unless they are persistent."""
        self._batches = iter(())
        self._workers.leave()


class _Feed:
    """The batch sampler of the workers: the next batches of the plan."""

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
            reading = reading_of(seed, planned)
            if self._inline:
                announce(reading)
            yield IndexBatch(reading)


class ThreadStream(PlanStream):
    """Batches read by threads, in plan order, two per thread ahead.

    Args:
        plan: The plan.
        cursor: Where its first batch is.
        batches: The planned batches from there on. They may end at the end of
            an epoch: the caller may change the dataset between epochs, so nothing is read ahead.
        read: Reads a planned batch.
        threads: How many batches are read at once.
        timeout: Seconds to wait for a batch; 0 for no limit.
    """

    def __init__(
        self,
        plan: Plan,
        cursor: Cursor,
        batches: Iterator[PlannedBatch],
        read: Read,
        *,
        threads: int,
        timeout: float = 0,
    ) -> None:
        super().__init__(plan, cursor)
        self._batches, self._timeout = batches, timeout
        self._coming: deque[_Task] = deque()
        self._tasks, self._count = _TaskQueue(), 0
        self._work = partial(_work, self._tasks, read, current_recorder())
        self._threads: list[BackgroundThread] = []
        weakref.finalize(self, request_stop_all, self._threads).atexit = False
        self.use_readers(threads)

    def use_readers(self, readers: int) -> None:
        """Read with another number of threads; surplus ones end after their current batch."""
        for _ in range(self._count - readers):
            self._tasks.queue.put(None)
        self._threads[:] = [thread for thread in self._threads if thread.is_running]
        added = [
            BackgroundThread(f"batches-{i}", self._work, self._tasks.close)
            for i in range(self._count, readers)
        ]
        self._threads += added
        self._tasks.threads = len(self._threads)
        self._count = readers
        self._fill()
        start_all(added)

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Return whether the next batch of this stream is the one at ``cursor`` of ``plan``."""
        return bool(self._coming) and super().continues(plan, cursor)

    def __next__(self) -> tuple[Cursor, Any]:
        check_process(self._threads)
        task = self._coming.popleft()
        self._cursor = task.planned.after
        try:
            batch = wait_for(task.news, task.poll, threads=self._threads, timeout=self._timeout)
        except BatchTimeoutError:
            self._batches = iter(())  # it cannot continue: the thread may never return
            self._coming.clear()
            raise
        finally:
            self._fill()
        return task.planned.after, batch[0]

    def close(self) -> None:
        """End the threads, each after its current batch."""
        self._coming.clear()
        stop_or_warn(self._threads)

    def _fill(self) -> None:
        """Send as many batches as are read ahead: two for each thread."""
        for planned in islice(self._batches, max(0, 2 * self._count - len(self._coming))):
            task = _Task(planned, reading_of(self._plan.order.seed, planned))
            self._coming.append(task)
            self._tasks.queue.put(task)


@dataclass(slots=True, eq=False)
class _Task:
    """A batch to read, and its result or error."""

    planned: PlannedBatch
    reading: Reading
    news: SimpleQueue[None] = field(default_factory=SimpleQueue)
    batch: tuple[Any] | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        first, count = self.planned.samples[:1].tolist(), len(self.planned.samples)
        return f"a batch of {count} samples from sample {first[0]} on" if count else "a batch"

    def poll(self) -> tuple[Any] | None:
        """Return the batch in a tuple; None while it is being read."""
        if self.error is not None:
            raise self.error
        return self.batch

    def run(self, read: Read) -> None:
        """Read the batch."""
        announce(self.reading)
        try:
            self.batch = (read(self.planned),)
        except BaseException as error:  # noqa: BLE001 - re-raised where the batch is asked for
            self.error = error
        finally:
            announce(None)
            self.news.put(None)


@dataclass(slots=True, eq=False)
class _TaskQueue:
    """Batches to read. Threads hold this and not the stream, so that it can be dropped."""

    queue: SimpleQueue[_Task | None] = field(default_factory=SimpleQueue)  # None ends a thread
    threads: int = 0
    closed: bool = False

    def take(self) -> _Task | None:
        """Return the next task; None if the thread should end."""
        task = self.queue.get()
        return None if self.closed else task

    def close(self) -> None:
        """End all threads; takes no lock and may be called at any moment."""
        self.closed = True
        for _ in range(self.threads):
            self.queue.put(None)


def _work(tasks: _TaskQueue, read: Read, recorder: Recorder | None) -> None:
    thread = threading.current_thread()
    assert isinstance(thread, BackgroundThread)
    with Work(recorder, thread.name):
        while (task := tasks.take()) is not None:
            thread.activity = task
            task.run(read)
            thread.activity = None
            del task  # do not keep its batch
