"""Batch checks on some of the batches, within a share of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

from penstock.arguments import real_number, shown
from penstock.checks.schema import BatchSchema
from penstock.errors import ConfigError

SHARE = 0.01  # of the time: too little to notice, and hours of training still see thousands


class Checked:
    """The batches of any loader, the first one checked, and then as many as the budget allows.

    Which batches those are depends on the clock alone: no random number is drawn, and the
    batches are the loader's own, unchanged. It may be iterated again and again.

    Args:
        loader: Iterable of batches.
        schema: What each batch should be.
        clock: Seconds, to measure with.
        share: Of the time between the first batch and now that checks may take. 1 checks all.

    >>> import torch
    >>> from penstock.checks import TensorSpec
    >>> schema = BatchSchema({"": TensorSpec(("batch",), torch.int64, low=0)})
    >>> batches = checked([torch.tensor([1, 2]), torch.tensor([3])], schema)
    >>> [batch.tolist() for batch in batches], batches.seen
    ([[1, 2], [3]], 2)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        schema: BatchSchema,
        *,
        share: float = SHARE,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not isinstance(schema, BatchSchema):
            raise ConfigError(f"schema must be a BatchSchema, got {shown(schema)}")
        if not isinstance(loader, Iterable):
            raise ConfigError(f"loader must be iterable, got {shown(loader)}")
        self.share = real_number("share", share, minimum=0, maximum=1, error=ConfigError)
        self.loader, self.schema = loader, schema
        self.seen = self.checks = 0
        self.spent_seconds = 0.0
        self._clock = clock
        self._began: float | None = None
        self._dearest = 0.0  # the longest check so far: what the next one may cost

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.look(batch)
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def look(self, batch: Any) -> None:
        """Check this batch if the budget allows; raise what is wrong with it."""
        now = self._clock()
        if self._began is None:
            self._began = now
        self.seen += 1
        allowed = self.share * (now - self._began)
        if self.checks and self.share < 1 and self.spent_seconds + self._dearest > allowed:
            return
        self.checks += 1
        self.schema.check(batch)
        took = self._clock() - now
        self.spent_seconds += took
        self._dearest = max(self._dearest, took)


def checked(loader: Iterable[Any], schema: BatchSchema, *, share: float = SHARE) -> Checked:
    """The batches of ``loader``, checked within ``share`` of the time."""
    return Checked(loader, schema, share=share)
