"""Long sequences cut into pieces, for truncated backpropagation through time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from penstock.arguments import whole_number
from penstock.errors import BatchError
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.base import LoaderIterator, stale_iterator
from penstock.order import Cursor


class TBPTTDataLoader(ChunkedDataLoader):
    """Batches ``(x, y, dict)`` cut along their length, for truncated backpropagation through time.

    Every piece of x has ``chunk_len`` new steps and the ``overlap_len - 1`` steps before them;
    at the start these are zeros (the dataset's ``zero``). ``dict["reset"]`` is True for the first
    piece of a batch, where the model must start with a new state.

    Every step of a sequence is delivered; the last piece may be short. ``chunk_size`` counts whole
    batches and ``len`` counts pieces, so a chunk never ends inside a sequence. A state saved inside
    a sequence resumes at its start, because checkpoints do not contain the state of the model.

    Args:
        dataset: Map-style; samples are ``(x, y, *extras)``.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches of a chunk; None for whole epochs.
        chunk_len: New steps of a piece.
        overlap_len: Steps that the model looks back, the current one included.
        **options: More arguments of `ChunkedDataLoader`.

    >>> batch = torch.arange(1, 6).reshape(1, 5), torch.arange(5).reshape(1, 5, 1), {}
    >>> loader = TBPTTDataLoader(
    ...     [batch], 1, chunk_len=3, overlap_len=2, collate_fn=lambda samples: samples[0]
    ... )
    >>> [(x.tolist(), y.flatten().tolist(), z["reset"]) for x, y, z in loader]
    [([[0, 1, 2, 3]], [0, 1, 2], True), ([[3, 4, 5]], [3, 4], False)]
    >>> len(loader)
    2
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        chunk_size: int | None = None,
        *,
        chunk_len: int,
        overlap_len: int,
        **options: Any,
    ) -> None:
        for name, value in (("chunk_len", chunk_len), ("overlap_len", overlap_len)):
            whole_number(name, value, minimum=1, unit="step")
        super().__init__(dataset, batch_size, chunk_size, **options)
        self.chunk_len, self.overlap_len = chunk_len, overlap_len
        self.zero = getattr(dataset, "zero", 0)
        self._steps: int | None = None  # of every batch, if the dataset has no lengths()

    # -- iterating

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the pieces of the rest of the current chunk (or epoch)."""
        batches = super().__iter__()
        return batches if self.pass_through is None else _Pieces(batches, self._cut)

    def _iterate(self) -> Iterator[Any]:
        return _CutIterator(self)

    def _cut(self, batch: Any) -> list[Any]:
        x, y, extras = batch
        steps = x.shape[1]
        if self._steps is not None and self._pieces(steps) != self._pieces(self._steps):
            raise BatchError(
                f"a batch has {steps} steps, the first one had {self._steps}: add a method "
                "lengths(indices) to the dataset, so that the number of pieces is known"
            )
        if y.ndim == 3 and y.shape[1] != steps:
            raise BatchError(
                f"x has {steps} steps and y has {y.shape[1]}: pieces need both of one length; "
                "remove context_len and pad_len"
            )
        early = x.new_full((x.shape[0], self.overlap_len - 1, *x.shape[2:]), self.zero)
        padded = torch.cat([early, x], dim=1)
        return [
            self._piece(padded, y, extras, begin, min(begin + self.chunk_len, steps), steps)
            for begin in range(0, steps, self.chunk_len)
        ]

    def _piece(
        self, padded: torch.Tensor, y: Any, extras: dict[str, Any], begin: int, end: int, steps: int
    ) -> Any:
        def of(value: Any) -> Any:
            long = isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[1] == steps
            return value[:, begin:end] if long else value

        x = padded[:, begin : end + self.overlap_len - 1]
        named = {name: of(value) for name, value in extras.items()}
        return x, of(y) if y.ndim == 3 else y, {**named, "reset": begin == 0}

    def peek(self) -> Any:
        """Return the first piece of the next ``iter()``; the position does not change."""
        return self._cut(super().peek())[0]

    # -- counting

    def __len__(self) -> int:
        """Return the pieces of the current chunk (epoch) on this rank; constant throughout it."""
        if self.pass_through is not None:
            return super().__len__() * self._pieces(self._steps_of_first())
        position, steps = self.position, self.plan.steps
        here = Cursor() if position.evaluation else position.cursor.normal(steps)
        steps = steps.of(here.epoch)
        done = steps.chunk_length(here.position) - steps.left_in_chunk(here.position)
        first = steps.step_of(here.position) - done
        begin = Cursor(here.epoch, steps.start(first) if first else 0)
        return self._count(begin, position.length)

    @property
    def remaining(self) -> int:
        """Pieces that the next ``iter()`` yields."""
        if self.pass_through is not None:
            return len(self)
        return self._count(self.position.start, self.position.remaining)

    def _count(self, begin: Cursor, batches: int) -> int:
        """Return the number of pieces in ``batches`` batches from ``begin`` on."""
        lengths = getattr(self.dataset, "lengths", None)
        if lengths is None:
            return batches * self._pieces(self._steps_of_first()) if batches else 0
        width = getattr(self.collate_fn, "width", int)
        walked = self.plan.walk(begin, batches)
        return sum(self._pieces(width(int(lengths(batch.samples).max()))) for batch in walked)

    def _pieces(self, steps: int) -> int:
        return -(-steps // self.chunk_len)

    def _steps_of_first(self) -> int:
        if self._steps is None:
            self._steps = int(super().peek()[0].shape[1])
        return self._steps


class _Pieces(Iterator[Any]):
    """The pieces of the batches of torch's own loader; continues after an error."""

    def __init__(self, batches: Iterator[Any], cut: Callable[[Any], list[Any]]) -> None:
        self._batches, self._cut = batches, cut
        self._waiting: deque[Any] = deque()

    def __next__(self) -> Any:
        if not self._waiting:
            self._waiting.extend(self._cut(next(self._batches)))
        return self._waiting.popleft()


class _CutIterator(LoaderIterator[Any]):
    """One iteration in pieces; a batch counts as delivered with its last piece."""

    def __init__(self, loader: TBPTTDataLoader) -> None:
        super().__init__(loader)
        self._tbptt = loader
        self._waiting: deque[Any] = deque()

    def close(self) -> None:
        """End this iteration; pieces of the current batch that are left are discarded."""
        self._waiting.clear()
        super().close()

    def __next__(self) -> Any:
        if self._waiting:
            if self.position.iteration != self._iteration:
                raise stale_iterator()
        else:
            self._after, batch = self._fetch()
            try:
                self._waiting.extend(self._tbptt._cut(batch))
            except BatchError:
                assert self._plan is not None
                self._left += 1  # not delivered
                self.position.fail(self._plan)
                raise
        piece = self._waiting.popleft()
        if not self._waiting:
            self.position.delivered(self._after)
        return piece
