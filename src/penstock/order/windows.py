"""Windows of an order's positions, each planned by itself, and the plans used last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.order.permutation import Indices

T = TypeVar("T")


class EqualWindows:
    """Positions in windows of equal size, except for one unit: none is tiny.

    Windows are whole units; what is less than one unit is added to the last window.

    Args:
        size: Positions of the order.
        window: The largest window, in positions.
        unit: Positions of a unit.

    >>> windows = EqualWindows(10, window=4)
    >>> [windows.start(w) for w in range(windows.count + 1)]
    [0, 4, 7, 10]
    """

    def __init__(self, size: int, window: int, unit: int = 1) -> None:
        self.unit = whole_number("group", unit, minimum=1, unit="batch")
        window = whole_number("window", window, minimum=1, unit="sample")
        if size < unit:
            raise PlanError(
                f"{size} samples are less than one group of {unit}: use a smaller group"
            )
        self.size, units = size, size // unit
        self.count = -(-units // max(1, window // unit))
        self.each, self.more = divmod(units, self.count)

    def start(self, w: int) -> int:
        """Return the first position of window ``w``; for ``w = count``, the end."""
        return self.size if w >= self.count else (w * self.each + min(w, self.more)) * self.unit

    def positions(self, w: int) -> Indices:
        """Return the positions of window ``w``."""
        return np.arange(self.start(w), self.start(w + 1))

    def of(self, position: int) -> int:
        """Return the window of a position."""
        at, long = position // self.unit, self.more * (self.each + 1)
        w = at // (self.each + 1) if at < long else self.more + (at - long) // self.each
        return min(w, self.count - 1)

    def split(self, positions: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield each window that holds some of the positions, and the indices of those."""
        at, long = positions // self.unit, self.more * (self.each + 1)
        window = np.where(at < long, at // (self.each + 1), self.more + (at - long) // self.each)
        window = np.minimum(window, self.count - 1)
        for w in np.unique(window).tolist():
            yield w, np.flatnonzero(window == w)


class Recent(Generic[T]):
    """A pure function of integers that keeps its last few results; a copy of it keeps none.

    Args:
        make: The function.
        keep: Results to keep.

    >>> square = Recent(lambda x: x * x)
    >>> square(3), square(3)
    (9, 9)
    """

    def __init__(self, make: Callable[..., T], keep: int = 3) -> None:
        self._make, self._keep, self._kept = make, keep, dict[tuple[int, ...], T]()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": {}}

    def __call__(self, *key: int) -> T:
        """Return the function's result for these integers."""
        found = self._kept.get(key)
        if found is None:
            found = self._make(*key)
            # a new dict each time: another thread may be reading the old one
            self._kept = {**dict(list(self._kept.items())[1 - self._keep :]), key: found}
        return found
