"""What training waited for batches, and whether the ends of chunks are felt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Waits:
    """Seconds waited for batches: of all, of this chunk, and of chunks' first batches apart.

    The very first batch, for which workers are started, counts only in the total.

    >>> waits = Waits()
    >>> for total, first in ((3.0, True), (3.5, False), (5.5, True)):
    ...     waits.batch(total, first=first)
    >>> waits.total, waits.chunk_start, waits.other
    (5.5, 2.0, 0.5)
    """

    before: float = 0.0  # of the loader, when counting began
    total: float = 0.0
    chunk: float = 0.0
    _starts: int = -1  # the very first is none of them
    _start_seconds: float = 0.0
    _others: int = 0
    _other_seconds: float = 0.0

    def batch(self, waited_seconds: float, *, first: bool) -> None:
        """A batch arrived; ``waited_seconds`` is the loader's own count over all of them."""
        wait = waited_seconds - self.before - self.total
        self.total += wait
        self.chunk = wait if first else self.chunk + wait
        if first:
            self._starts += 1
            self._start_seconds += wait if self._starts else 0.0
        else:
            self._others += 1
            self._other_seconds += wait

    @property
    def chunk_start(self) -> float:
        """Seconds that a chunk's first batch took on average."""
        return self._start_seconds / max(1, self._starts)

    @property
    def other(self) -> float:
        """Seconds that any other batch took on average."""
        return self._other_seconds / max(1, self._others)
