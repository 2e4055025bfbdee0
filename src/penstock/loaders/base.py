"""What every loader promises."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, Self

import torch.distributed as dist

from penstock.errors import BatchError, PenstockError
from penstock.loaders.course import Course
from penstock.order import Cursor, Indices, Plan, Topology


class LostTurnError(PenstockError, RuntimeError):
    """An iterator that goes on after its loader was moved, or iterated anew."""


class Loader:
    """The common base of every loader: a cursor on a plan, and an executor that delivers.

    A subclass has a ``_course`` and says how batches come about (`_open`), where a stream of them
    may be kept open between iterations, so that reading ahead goes on over the ends of chunks.
    """

    @property
    @abstractmethod
    def _course(self) -> Course:
        """Where this loader is."""

    chunk_size: int | None  # in batches; None for whole epochs
    waited_seconds: float = 0.0
    """Seconds that whoever iterates has waited for batches, since the loader was made."""

    _stream: Stream | None = None
    _keeps_stream = True  # between iterations; else what runs for it ends with each of them

    @abstractmethod
    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        """A stream of batches from ``cursor`` on, without end."""

    @abstractmethod
    def describe(self) -> str:
        """One readable page: order, executor, memory, and why."""

    # -- iterating

    def __iter__(self) -> Iterator[Any]:
        """The rest of the current chunk (or epoch), then stop."""
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        course = self._course
        turn, plan = course.take_turn(), course.plan
        try:
            for _ in range(course.remaining):
                after, batch = self._next(plan, turn)
                course.delivered(after)
                yield batch
                del batch  # ours no more: its memory may be recycled while the next one is read
        finally:
            course.end_turn(turn)
            if not self._keeps_stream and course.turn == turn:
                self._drop_stream()

    def _next(self, plan: Plan, turn: int) -> tuple[Cursor, Any]:
        course = self._course
        if course.turn != turn:
            raise LostTurnError(
                "this iterator ended when its loader was moved or iterated anew: "
                "call iter(loader) again"
            )
        asked = perf_counter()
        try:
            stream = self._stream
            if stream is None or not stream.continues(plan, course.cursor):
                self._drop_stream()
                self._stream = stream = self._open(plan, course.cursor)
            return next(stream)
        except BaseException:
            self.close()  # what is left of it cannot be trusted; the cursor can
            raise
        finally:
            self.waited_seconds += perf_counter() - asked

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def peek(self) -> Any:
        """The batch the next ``iter()`` begins with, read apart from the run: nothing moves."""
        course = self._course
        if not course.remaining:
            raise BatchError("there is no batch to look at: the loader is limited to none")
        stream = self._open(course.plan, course.start)
        try:
            return next(stream)[1]
        finally:
            stream.close()

    @contextmanager
    def apart(self) -> Iterator[Self]:
        """A block in which it may be iterated or moved; after it, it is where it was before."""
        saved = self._course.save()
        try:
            yield self
        finally:
            self._drop_stream()
            self._course.restore(saved)

    def __len__(self) -> int:
        """Batches of the current chunk (epoch) on this rank, the same all through it."""
        return self._course.length

    @property
    def remaining(self) -> int:
        """Exactly what the next ``iter()`` yields."""
        return self._course.remaining

    # -- moving

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens."""
        self._course.set_epoch(epoch)

    def seek(self, epoch: int, step: int = 0) -> None:
        """Go to a step of an epoch, whatever was loaded before."""
        self._course.seek(epoch, step)

    def set_batch_size(self, batch_size: int) -> None:
        """Another batch size from the next ``iter()`` on; the position stays."""
        self._course.set_batch_size(batch_size)

    def set_chunk_size(self, chunk_size: int) -> None:
        """Another chunk size, in batches, from the next ``iter()`` on; the position stays."""
        self._course.set_chunk_size(chunk_size)
        self.chunk_size = chunk_size

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """What was delivered, not what was prefetched: small, flat, JSON-able."""
        return self._course.state()

    def load_state_dict(self, state: dict[str, Any], *, allow_changed_data: bool = False) -> None:
        """Go on exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        The batch size, chunk size, workers and ranks may be others than those of the state.
        """
        self._course.load(state, allow_changed_data=allow_changed_data)

    def samples_at(self, step: int, epoch: int | None = None) -> Indices:
        """The dataset indices this rank gets at a step of an epoch (the current one)."""
        plan = self._course.plan
        epoch = self._course.cursor.epoch if epoch is None else epoch
        return plan.samples(Cursor(epoch, plan.steps.start(step)))

    # -- the end

    def close(self) -> None:
        """End every thread and process of this loader; it may be iterated again."""
        self._drop_stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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


def current_topology(rank: int | None, world_size: int | None) -> Topology:
    """The ranks given, or those of ``torch.distributed`` where it is initialised, or one."""
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return Topology(dist.get_rank(), dist.get_world_size())
        return Topology()
    if rank is None or world_size is None:
        given = "rank" if world_size is None else "world_size"
        raise ValueError(f"give both rank and world_size, or neither: only {given} was given")
    return Topology(rank, world_size)
