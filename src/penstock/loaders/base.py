"""The base class of all loaders, and their iterator."""

from __future__ import annotations

import copy
import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self

from typing_extensions import TypeVar

from penstock.errors import BatchError, PenstockError, PlanError
from penstock.loaders.chunk_schedule import ChunkSize
from penstock.loaders.position import Position
from penstock.loaders.torch_loader import checked_by_trainer
from penstock.metrics import Recorder, Snapshot
from penstock.metrics.snapshot import STALL_SECONDS
from penstock.order import Cursor, Indices, Occurrence, Plan
from penstock.ranks import current_topology

if TYPE_CHECKING:
    from penstock.loaders.online import OnlineTuner
    from penstock.metrics import Verdict

log = logging.getLogger("penstock")

Batch = TypeVar("Batch", covariant=True, default=Any)

_NOT_COPIED: Final = (  # they exist only in this process, and are made again when needed
    *("_stream", "_slots", "_held", "_workers", "_iterator", "_seen", "_metrics", "_tuner"),
)
_SETTINGS: Final = (  # those that a verdict refers to
    *("executor", "num_workers", "prefetch_factor", "threads", "batch_size", "pin_memory"),
    *("memory_budget", "block_samples", "window_blocks", "chunk_rows", "device"),
)


class StaleIteratorError(PenstockError, RuntimeError):
    """An iterator was used after its loader was moved, or iterated again."""


class Measured:
    """A loader that measures where the time goes."""

    _metrics: Recorder | None = None
    _online = False  # ``tune="online"``
    _tuner: OnlineTuner | None = None

    @property
    def metrics(self) -> Recorder:
        """Where the time goes: waiting, steps, and the stages of loading."""
        if self._metrics is None:
            self._metrics = Recorder()
        return self._metrics

    @metrics.setter
    def metrics(self, recorder: Recorder) -> None:
        self._metrics = recorder

    @property
    def waited_seconds(self) -> float:
        """Seconds that the caller has waited for batches, since the loader was made."""
        return self.metrics.sums.waited

    def snapshot(self) -> Snapshot:
        """Return the figures of `metrics` so far, with the settings of this loader."""
        here = current_topology(None, None)
        found: dict[str, Any] = {"loader": type(self).__name__}
        for name in _SETTINGS:
            value = getattr(self, name, None)
            if isinstance(value, int | str) and not isinstance(value, bool):
                found[name] = value
        if self._tuner is not None:
            found["threads"] = self._tuner.readers
        return self.metrics.snapshot(rank=here.rank, world=here.world, settings=found)

    def verdict(self) -> Verdict:
        """Return one line: whether training waits for data, for which stage, and what to change."""
        from penstock.metrics.verdict import verdict_of  # here: most runs ask for none

        return verdict_of(self.snapshot())


class Loader(Measured, Generic[Batch]):
    """Base class of all loaders.

    A loader combines a *plan* (which samples make up which batch), a *position* in it, and an
    executor that produces the batches. Subclasses provide `position` and implement `_open`. The
    stream that `_open` returns may stay open between iterations, so that reading ahead continues
    across chunk and epoch boundaries.

    ``Loader[Batch]`` names the type of a batch for type checkers. A loader can be pickled and
    copied: the copy continues at the same position, with its own threads and processes.
    """

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position: the cursor, the settings of the plan, and a way to replace them."""

    @property
    def plan(self) -> Plan:
        """The plan for the current ranks: the order, cut into this rank's batches."""
        return self.position.plan

    @property
    def chunk_size(self) -> int | None:
        """Batches of a chunk; None for whole epochs."""
        return self.position.chunk

    _stream: Stream | None = None

    @property
    def _keeps_stream(self) -> bool:
        """Whether the stream stays open between iterations."""
        return True

    @abstractmethod
    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        """Return an endless stream of batches from ``cursor`` on."""

    @abstractmethod
    def describe(self) -> str:
        """Return one readable page: order, executor, memory, and the reasons."""

    def __repr__(self) -> str:
        try:
            position, plan = self.position, self.plan
        except PlanError as error:  # no plan now: too many ranks, an empty dataset
            return f"<{type(self).__name__}: {error}>"
        data = getattr(self, "dataset", getattr(self, "source", None))
        parts = [f"{type(data).__name__} of {plan.order.size:,} samples"]
        parts += [plan.batch_limit, f"chunk_size={position.chunk}"]
        parts += [f"order={plan.order.kind!r}", f"seed={plan.order.seed}"]
        parts += [f"rank={plan.rank}", f"world_size={plan.steps.world}"]
        here = position.skips.to_order(position.cursor)
        parts += [f"epoch={here.epoch}", f"position={here.position}"]
        return f"<{type(self).__name__}: {', '.join(parts)}>"

    @property
    def is_new(self) -> bool:
        """Whether nothing was delivered for training; always false for an evaluation loader."""
        return not self.position.evaluation and self.position.cursor == Cursor()

    # -- iterating

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the current chunk (or epoch)."""
        return self._iterate()

    def _iterate(self) -> Iterator[Batch]:
        return LoaderIterator(self)

    def _begin(self) -> None:
        """Prepare for an iteration that is about to begin."""

    def _next(self, plan: Plan, iteration: int) -> tuple[Cursor, Any]:
        """Return the cursor after the batch at the cursor, and that batch."""
        metrics = self._metrics
        if metrics is None or not metrics.active:
            return self._take(plan, self.position)
        asked, position = perf_counter(), self.position
        cursor, samples = position.cursor, plan.steps.batch
        if asked >= metrics.next_probe or metrics.samples != samples or self._online:
            fetched = metrics.timed(lambda: self._take(plan, position), samples, cursor)
            if self._online:
                self._tune(perf_counter() - asked, samples, fetched[1])
            return fetched
        try:  # not by `Recorder.timed`: calls take a percent of a small batch in memory
            fetched = self._take(plan, position)
        except BaseException:
            metrics.arrived(asked, 0, cursor)
            raise
        waited = (now := perf_counter()) - asked
        if waited > STALL_SECONDS or metrics.samples != samples or not metrics.active:
            metrics.arrived(asked, samples, cursor)
        else:
            base, batches, total, stepped, before, _ = metrics.quick
            step = asked - before if before else 0.0
            metrics.quick = base, batches + 1, total + waited, stepped + step, now, step
            metrics.place = cursor
        return fetched

    def _tune(self, waited: float, samples: int, batch: Any) -> None:
        """Use another number of readers if batches come faster with it."""
        if self._tuner is None:
            from penstock.loaders.online import OnlineTuner  # here: few loaders are tuned

            self._tuner = OnlineTuner(*self._reader_limits(batch))
        if self._tuner.note(waited, self.metrics.last_step, samples):
            stream: Any = self._stream  # of threads: others cannot be tuned
            stream.use_readers(self._tuner.readers)

    def _reader_limits(self, batch: Any) -> tuple[int, int]:
        """Return the number of reader threads to begin with, and the largest that memory allows."""
        raise NotImplementedError

    def _take(self, plan: Plan, position: Position) -> tuple[Cursor, Any]:
        """Return the next batch, of another stream if this one does not continue at the cursor."""
        stream = self._stream
        if stream is None or not stream.continues(plan, position.cursor):
            stream = self._reopen(plan, position.cursor)
        try:
            return next(stream)
        except Exception as error:
            if not stream.continues(plan, position.fail(plan)):
                self.close()  # the stream cannot continue; the cursor is still known
            if isinstance(error, StopIteration):  # would end the loop as an epoch's end does
                raise RuntimeError("reading a batch raised StopIteration") from error
            raise
        except BaseException:  # an interrupt: the same batch is read again
            self.close()
            raise

    def _reopen(self, plan: Plan, cursor: Cursor) -> Stream:
        """Replace the stream with one whose next batch is the one at ``cursor``."""
        try:
            self._drop_stream()
            with self.metrics.work(""):  # threads and workers find this recorder
                self._stream = stream = self._open(plan, cursor)
        except BaseException:
            self.position.keep_position()
            self.close()
            raise
        return stream

    def _drop_stream(self) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.close()
        except BaseException:  # an interrupt, which must not leave threads behind
            stream.close()
            raise
        finally:
            self._stream = None

    def peek(self) -> Batch:
        """Return the batch the next ``iter()`` begins with; the position does not move."""
        position = self.position
        if not position.remaining:
            raise BatchError("cannot peek: limit_batches=0 leaves no batches")
        stream = self._open(position.plan, position.start)
        try:
            batch: Batch = next(stream)[1]
            return batch
        finally:
            stream.close()

    @contextmanager
    def apart(self) -> Iterator[Self]:
        """Return a context in which the loader may be moved; at its end, it is moved back."""
        saved = self.position.save()
        try:
            yield self
        finally:
            self._drop_stream()
            self.position.restore(saved)

    def __len__(self) -> int:
        """Return the batches of the current chunk (or epoch) on this rank, also inside it."""
        return self.position.length

    @property
    def remaining(self) -> int:
        """The number of batches that the next ``iter()`` yields."""
        return self.position.remaining

    # -- moving

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; do nothing if the loader is inside that epoch already.

        Args:
            epoch: The epoch, counted from 0.
        """
        checked_by_trainer(self)
        before = self.position.cursor
        self.position.set_epoch(epoch)
        if self.position.chunk is not None and before.position and before.epoch < epoch:
            log.warning(  # a loop, or a trainer, whose epoch is one iteration
                "set_epoch(%d) leaves out the rest of epoch %d: with chunk_size=%d an epoch has %d "
                "iterations; call set_epoch after all of them, or leave out chunk_size",
                *(epoch, before.epoch, self.position.chunk, self.position.plan.steps.total_chunks),
            )

    def seek(self, epoch: int, step: int = 0) -> None:
        """Go to a step of an epoch, whatever was loaded before.

        Args:
            epoch: The epoch, counted from 0.
            step: The step in it, counted from 0 in steps of the batch size in use now.
        """
        self.position.seek(epoch, step)

    def set_batch_size(self, batch_size: int) -> None:
        """Use another batch size from the next ``iter()`` on, which continues at the position.

        Args:
            batch_size: Samples of this rank's batch.
        """
        self.position.set_batch_size(batch_size)

    def set_chunk_size(self, chunk_size: ChunkSize | None) -> None:
        """Use another chunk size from the next ``iter()`` on, which continues at the position.

        Args:
            chunk_size: Batches of a chunk, ``{"start", "end", "over_chunks"}``, a list of
                ``[first chunk, batches]``, or a duration such as ``"10min"``.
        """
        self.position.set_chunk_size(chunk_size)

    def skip(self, epoch: int, start: int, stop: int) -> None:
        """Leave out the positions ``start`` to ``stop`` of an epoch, now and after every resume.

        Steps are made of what is left, so that they stay whole. Positions mean the same on any
        number of ranks and with any batch size, and repeating a call changes nothing. All ranks
        must make the same calls. What was delivered already is not skipped.

        Args:
            epoch: The epoch, counted from 0.
            start: The first position to skip; see `positions_at`.
            stop: One past the last one; a number past the epoch's end stands for its end.
        """
        self.position.skip(epoch, start, stop)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a small, flat dict that can be written as JSON.

        It counts the batches that were delivered, not those that were read ahead.
        """
        return self.position.state()

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_data: bool = False
    ) -> None:
        """Continue exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        The batch size, chunk size, workers and ranks may differ from those of the state.

        Args:
            state_dict: What `state_dict` returned.
            allow_changed_data: Accept a state whose data had another fingerprint.
        """
        self.position.load(state_dict, allow_changed_data=allow_changed_data)

    def samples_at(self, step: int, epoch: int | None = None) -> Indices:
        """Return the dataset indices this rank gets at a step of an epoch.

        The steps of a resumed epoch are counted from the position of the resume: the step there
        has the number ``ceil(position / (batch_size * world_size))``.

        Args:
            step: The step, counted from 0.
            epoch: None for the epoch that is being iterated, or else that of the position.
        """
        plan, epoch, positions = self.position.locate(step, epoch)
        return plan.order.at(epoch, positions)

    def positions_at(self, step: int, epoch: int | None = None) -> Indices:
        """Return the positions in the epoch's order that `samples_at` reads for these arguments.

        Args:
            step: The step, counted from 0.
            epoch: None for the epoch that is being iterated, or else that of the position.
        """
        return self.position.locate(step, epoch)[2]

    def when(self, sample: int, epochs: Iterable[int] = range(1)) -> list[Occurrence]:
        """Return each occurrence of a sample in these epochs: epoch, position, step, rank, row.

        The inverse of `samples_at`, without reading or searching. A sample that is skipped, or
        dropped at the end of its epoch, has no step, rank and row.

        Args:
            sample: Its index in the dataset.
            epochs: The epochs to look at.
        """
        return self.position.when(sample, epochs)

    def __getstate__(self) -> dict[str, Any]:
        # Lightning's patch of DataLoader records every attribute that was set, open streams too
        own = {name: value for name, value in vars(self).items() if not name.startswith("__pl_")}
        return {name: None if name in _NOT_COPIED else value for name, value in own.items()}

    def __copy__(self) -> Self:
        """Return a loader over the same data with a position of its own."""
        data = [getattr(self, name, None) for name in ("dataset", "source")]
        return copy.deepcopy(self, {id(each): each for each in data})

    # -- closing

    def close(self) -> None:
        """End all threads and processes of this loader; it may be iterated again."""
        self._drop_stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LoaderIterator(Iterator[Batch]):
    """One iteration of a loader; begins at its first batch.

    It is not a generator, which could not continue after an error: if a batch fails, ``next()``
    continues with the batch after it, and ``iter(loader)`` repeats the one that failed.
    """

    def __init__(self, loader: Loader[Batch]) -> None:
        self._loader = loader
        self._plan: Plan | None = None  # from its first batch on
        self._iteration = self._left = self._count = 0

    def __len__(self) -> int:
        """Return the batches of this iteration, including those already delivered."""
        return self._loader.remaining if self._plan is None else self._count

    def __next__(self) -> Batch:
        after, fetched = self._fetch()
        self.position.delivered(after)
        batch: Batch = fetched
        return batch

    def close(self) -> None:
        """End the iteration, as dropping the iterator does."""
        self._left = 0
        if self._plan is not None:
            self._leave()

    def _fetch(self) -> tuple[Cursor, Any]:
        """Return the cursor after the next batch, and that batch."""
        plan = self._plan or self._start()
        if self._left:
            position = self.position
            if position.iteration != self._iteration:
                raise stale_iterator()
            if position.live is not plan and position.live is not None:  # positions were skipped
                plan = self._plan = position.live
                self._left = min(self._left, position.remaining_here)
            if position.failed is not None:  # the caller asks for the batch after it
                position.delivered(position.failed)
                self._left -= 1
        if not self._left:
            self._leave()
            raise StopIteration
        fetched = self._loader._next(plan, self._iteration)
        self.position.fetched = fetched[0]
        self._left -= 1
        return fetched

    def _start(self) -> Plan:
        self._loader._begin()
        self._loader.metrics.pause()  # what came before is no step
        self.position = position = self._loader.position
        self._iteration, self._plan = position.begin_iteration()
        self._left = self._count = position.remaining
        # runs when the iterator is dropped, also after a break
        self._leave = weakref.finalize(self, _leave, self._loader, position, self._iteration)
        self._leave.atexit = False
        return self._plan


def stale_iterator() -> StaleIteratorError:
    """Return the error of an iterator that became stale."""
    return StaleIteratorError(
        "this iterator ended when its loader was moved or iterated again: call iter(loader) again"
    )


def _leave(loader: Loader[Any], position: Position, iteration: int) -> None:
    """End an iteration: its iterator is exhausted, or was dropped."""
    if position.iteration == iteration:
        position.live = None
        if not loader._keeps_stream:
            loader._drop_stream()


class Stream(Protocol):
    """Batches in plan order, produced by an executor."""

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Return whether the next batch of this stream is the one at ``cursor`` of ``plan``."""
        ...

    def __next__(self) -> tuple[Cursor, Any]:
        """Return the cursor after the next batch, and that batch; wait until it is complete."""
        ...

    def close(self) -> None:
        """End the threads and processes of this stream."""
        ...
