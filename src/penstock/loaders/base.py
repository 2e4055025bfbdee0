"""What every loader promises."""

from __future__ import annotations

import copy
import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Generic, Protocol, Self

from typing_extensions import TypeVar

from penstock.errors import BatchError, PenstockError, PlanError
from penstock.loaders.position import Position
from penstock.order import Cursor, Indices, Plan
from penstock.ranks import current_topology as current_topology
from penstock.ranks import ranks as ranks

log = logging.getLogger("penstock")

Batch = TypeVar("Batch", covariant=True, default=Any)

# what belongs to this process and is made again when needed; a copy of a loader begins without it
_NOT_COPIED: Final = ("_stream", "_slots", "_workers", "_iterator", "_seen")


class StaleIteratorError(PenstockError, RuntimeError):
    """An iterator was used after its loader was moved, or iterated again."""


class Loader(Generic[Batch]):
    """Base class of all loaders: a plan, a position in it, and an executor that makes the batches.

    A subclass has a ``position`` (the plan and the position) and implements `_open`. The stream it
    opens may stay open between iterations, so that reading ahead continues over the ends of chunks.

    ``Loader[Batch]`` names the type of a batch for type checkers. A loader can be pickled and
    copied: the copy continues at the same position, with threads and processes of its own.
    """

    @property
    @abstractmethod
    def position(self) -> Position:
        """Where this loader is."""

    chunk_size: int | None  # in batches; None for whole epochs
    waited_seconds: float = 0.0
    """Seconds that the caller has waited for batches, since the loader was made."""

    _stream: Stream | None = None

    @property
    def _keeps_stream(self) -> bool:
        """Does the stream stay open between iterations?"""
        return True

    @abstractmethod
    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        """A stream of batches from ``cursor`` on, without end."""

    @abstractmethod
    def describe(self) -> str:
        """One readable page: order, executor, memory, and why."""

    def __repr__(self) -> str:
        try:
            course, plan = self.position, self.position.plan
        except PlanError as error:  # no plan now: too many ranks, an empty dataset
            return f"<{type(self).__name__}: {error}>"
        data = getattr(self, "dataset", getattr(self, "source", None))
        parts = [f"{type(data).__name__} of {plan.order.size:,} samples"]
        parts += [f"batch_size={course.batch}", f"chunk_size={course.chunk}"]
        parts += [f"order={plan.order.kind!r}", f"seed={plan.order.seed}"]
        parts += [f"rank={plan.rank}", f"world_size={plan.steps.world}"]
        parts += [f"epoch={course.cursor.epoch}", f"position={course.cursor.position}"]
        return f"<{type(self).__name__}: {', '.join(parts)}>"

    @property
    def _is_new(self) -> bool:
        """Whether training begins with it: an evaluation always begins where it did."""
        return not self.position.evaluation and self.position.cursor == Cursor()

    # -- iterating

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current chunk (or epoch), then stop."""
        return self._iterate()

    def _iterate(self) -> Iterator[Batch]:
        return LoaderIterator(self)

    def _begin(self) -> None:
        """Prepare for an iteration that is about to begin."""

    def _next(self, plan: Plan, turn: int) -> tuple[Cursor, Any]:
        """The batch at the cursor, and the cursor after it."""
        course, asked = self.position, perf_counter()
        try:
            stream = self._stream
            if stream is None or not stream.continues(plan, course.cursor):
                stream = self._reopen(plan, course.cursor)
            try:
                return next(stream)
            except Exception as error:
                if not stream.continues(plan, course.fail(plan)):
                    self.close()  # what is left of the stream is unknown; the cursor is not
                if isinstance(error, StopIteration):  # would end the loop as an epoch's end does
                    raise RuntimeError("reading a batch raised StopIteration") from error
                raise
            except BaseException:  # an interrupt: the same batch is read again
                self.close()
                raise
        finally:
            self.waited_seconds += perf_counter() - asked

    def _reopen(self, plan: Plan, cursor: Cursor) -> Stream:
        """A new stream whose next batch is the one at ``cursor``."""
        try:
            self._drop_stream()
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
        """The batch the next ``iter()`` begins with, read apart from the run: nothing moves."""
        course = self.position
        if not course.remaining:
            raise BatchError("cannot peek: limit_batches=0 leaves no batches")
        stream = self._open(course.plan, course.start)
        try:
            batch: Batch = next(stream)[1]
            return batch
        finally:
            stream.close()

    @contextmanager
    def apart(self) -> Iterator[Self]:
        """A block in which the loader may be iterated or moved; after it, it is where it was."""
        saved = self.position.save()
        try:
            yield self
        finally:
            self._drop_stream()
            self.position.restore(saved)

    def __len__(self) -> int:
        """Batches of the current chunk (epoch) on this rank, the same all through it."""
        return self.position.length

    @property
    def remaining(self) -> int:
        """Exactly what the next ``iter()`` yields."""
        return self.position.remaining

    # -- moving

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens.

        Args:
            epoch: The epoch, counted from 0.
        """
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

    def set_chunk_size(self, chunk_size: int) -> None:
        """Use another chunk size from the next ``iter()`` on, which continues at the position.

        Args:
            chunk_size: Batches of a chunk.
        """
        self.position.set_chunk_size(chunk_size)
        self.chunk_size = self.position.chunk

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """What was delivered, not what was prefetched: small, flat, JSON-able."""
        return self.position.state()

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_data: bool = False
    ) -> None:
        """Continue exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        The batch size, chunk size, workers and ranks may differ from those of the state.

        Args:
            state_dict: What `state_dict` returned.
            allow_changed_data: Accept a state of data that has another fingerprint.
        """
        self.position.load(state_dict, allow_changed_data=allow_changed_data)

    def samples_at(self, step: int, epoch: int | None = None) -> Indices:
        """The dataset indices this rank gets at a step of an epoch.

        The steps of a resumed epoch are counted from the position of the resume: the step there
        has the number ``ceil(position / (batch_size * world_size))``.

        Args:
            step: The step, counted from 0.
            epoch: None for the epoch that is being iterated, or else that of the position.
        """
        plan, epoch, positions = self.position.locate(step, epoch)
        return plan.order.at(epoch, positions)

    def positions_at(self, step: int, epoch: int | None = None) -> Indices:
        """The positions of the epoch's order that `samples_at` of the same arguments reads.

        Args:
            step: The step, counted from 0.
            epoch: None for the epoch that is being iterated, or else that of the position.
        """
        return self.position.locate(step, epoch)[2]

    def __getstate__(self) -> dict[str, Any]:
        # Lightning notes every attribute that was set, open streams too, where its patch of
        # DataLoader is in place
        kept = {name: value for name, value in vars(self).items() if not name.startswith("__pl_")}
        return {name: None if name in _NOT_COPIED else value for name, value in kept.items()}

    def __copy__(self) -> Self:
        """A loader of its own over the same data: two must not move one position."""
        data = [getattr(self, name, None) for name in ("dataset", "source")]
        return copy.deepcopy(self, {id(each): each for each in data})

    # -- the end

    def close(self) -> None:
        """End every thread and process of this loader; it may be iterated again."""
        self._drop_stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LoaderIterator(Iterator[Batch]):
    """One iteration of a loader; begins at its first batch.

    Not a generator, which ends for good when it raises: where one batch fails, ``next()`` continues
    with the batch after it, and ``iter(loader)`` repeats the one that failed.
    """

    def __init__(self, loader: Loader[Batch]) -> None:
        self._loader = loader
        self._plan: Plan | None = None  # from its first batch on
        self._turn = self._left = self._count = 0

    def __len__(self) -> int:
        """Batches of this iteration, those already delivered too."""
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
        """The next batch, and the cursor after it."""
        plan = self._plan or self._start()
        if self._left:
            course = self.position
            if course.turn != self._turn:
                raise stale_iterator()
            if course.failed is not None:  # the caller asks for what comes after it
                course.delivered(course.failed)
                self._left -= 1
        if not self._left:
            self._leave()
            raise StopIteration
        fetched = self._loader._next(plan, self._turn)
        self._left -= 1
        return fetched

    def _start(self) -> Plan:
        self._loader._begin()
        self.position = course = self._loader.position
        self._left = self._count = course.remaining
        self._turn, self._plan = course.begin_iteration()
        # runs when nobody holds the iterator any more: after a break as well
        self._leave = weakref.finalize(self, _leave, self._loader, course, self._turn)
        self._leave.atexit = False
        return self._plan


def stale_iterator() -> StaleIteratorError:
    """The error of an iterator whose turn is over."""
    return StaleIteratorError(
        "this iterator ended when its loader was moved or iterated again: call iter(loader) again"
    )


def _leave(loader: Loader[Any], course: Position, turn: int) -> None:
    """End an iteration: its iterator is exhausted, or gone."""
    if course.turn == turn:
        course.end_iteration()
        if not loader._keeps_stream:
            loader._drop_stream()


class Stream(Protocol):
    """Batches in plan order; what an executor gives."""

    def continues(self, plan: Plan, cursor: Cursor) -> bool:
        """Is the next batch of this stream the one at ``cursor`` of ``plan``?"""
        ...

    def __next__(self) -> tuple[Cursor, Any]:
        """The next batch and the cursor after it; blocks until it is there."""
        ...

    def close(self) -> None:
        """End what runs for this stream, soon."""
        ...
