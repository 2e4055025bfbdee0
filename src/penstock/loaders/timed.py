"""An iterator of torch's loader that counts how long its batches are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from penstock.loaders.base import Loader


class TimedIterator(Iterator[Any]):
    """Another iterator's batches; the seconds they take are added to ``loader.waited_seconds``.

    An error is raised as it is, and the next call continues as the other iterator does.

    Args:
        loader: What counts the seconds, those of opening too.
        open: Makes the other iterator; its attributes are found here too.
        limit: Batches at most, those that raise included; None for all.
    """

    def __init__(
        self, loader: Loader, open: Callable[[], Iterator[Any]], limit: int | None = None
    ) -> None:
        asked = perf_counter()
        self._loader, self._batches = loader, open()
        self._limit = self._left = limit
        loader.waited_seconds += perf_counter() - asked

    def __len__(self) -> int:
        batches = len(self._batches)  # type: ignore[arg-type]
        return batches if self._limit is None else min(batches, self._limit)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._left is not None:
            if self._left == 0:
                raise StopIteration
            self._left -= 1
        asked = perf_counter()
        try:
            return next(self._batches)
        finally:
            self._loader.waited_seconds += perf_counter() - asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)
