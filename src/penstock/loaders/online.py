"""``tune="online"``: the number of reader threads with which batches come fastest.

Threads change nothing but the time at which a batch is ready: which samples it has is planned.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("penstock")

WAITED_SECONDS: Final = 0.001  # for a batch: none was ready
SECONDS: Final = 0.5  # of a measurement, at least
BATCHES: Final = 8  # of a measurement, at least
BETTER: Final = 1.05  # times the speed that is worth more readers
WORSE: Final = 0.7  # of the speed at which the search begins again


class ReaderSearch:
    """A search for the number of readers with the highest speed; the fewest among equals.

    It measures all numbers of a scale, and those that are not far from the fastest once more: a
    moment in which other programs need the machine looks like slow storage.

    Args:
        readers: The number to begin with.
        most: The largest number.

    >>> search = ReaderSearch(2, most=8)
    >>> while not search.settled:
    ...     search.add(min(search.readers, 4) * 100.0)  # storage that serves four at a time
    >>> search.readers
    4
    """

    def __init__(self, readers: int, most: int) -> None:
        scale = {1, 2, 3, 4, 6, 8, 12, 16, readers, most}
        self.scale = sorted(each for each in scale if each <= max(readers, most))
        self._begin(readers)

    def _begin(self, readers: int) -> None:
        self._best, self._speeds, self._twice = readers, dict[int, float](), False
        # more readers first: with enough of them, training stops waiting and nothing is measured
        others = [*(n for n in self.scale if n > readers), *(n for n in self.scale if n < readers)]
        self._next = [readers, *others] if others else []

    @property
    def settled(self) -> bool:
        """Whether the search has ended."""
        return not self._next

    @property
    def readers(self) -> int:
        """The number to use now."""
        return self._next[0] if self._next else self._best

    def add(self, speed: float) -> None:
        """Note the speed with `readers`, and choose the next number to measure.

        Args:
            speed: Samples per second.
        """
        if self.settled:
            if len(self.scale) == 1 or speed >= WORSE * self._speeds[self._best]:
                return
            self._begin(self._best)  # storage or the step has changed
        now, speeds = self._next.pop(0), self._speeds
        speeds[now] = max(speed, speeds.get(now, 0.0))
        if self._next:
            return
        fastest = max(speeds.values())
        if not self._twice:
            self._twice = True
            self._next = [n for n in self.scale if speeds[n] > WORSE * fastest]
        else:
            self._best = min(n for n in self.scale if speeds[n] * BETTER >= fastest)


class OnlineTuner:
    """Chooses the number of readers of a loader from the times of the batches it delivers.

    A measurement runs from one batch that was waited for to another: at both moments none was
    ready, so what came in between is what was read. Where training never waits, nothing is
    measured, and nothing changes.

    Args:
        readers: The number to begin with.
        most: The largest number that the memory allows.
    """

    def __init__(self, readers: int, most: int) -> None:
        self._search = ReaderSearch(readers, max(readers, most))
        self._begin()

    @property
    def readers(self) -> int:
        """The number to use now."""
        return self._search.readers

    @property
    def settled(self) -> bool:
        """Whether the number stays, unless the speed falls."""
        return self._search.settled

    def _begin(self, settles: float = 0.0) -> None:
        self._settles = settles  # seconds in which batches of the number before may come
        self._seconds, self._samples, self._batches = 0.0, 0, 0  # of the measurement
        self._suspend()

    def _suspend(self) -> None:
        """Leave out what came since the last batch that was waited for; the rest stays."""
        self._since: tuple[float, int, int] | None = None  # None: until a batch is waited for

    def note(self, waited: float, step: float | None, samples: int) -> bool:
        """Note a batch that has arrived; return whether `readers` has changed.

        Args:
            waited: Seconds that it was waited for.
            step: Seconds since the batch before; None after a pause.
            samples: Its samples.
        """
        if step is None:  # chunks and epochs may be shorter than a measurement
            self._suspend()
            return False
        self._settles -= waited + step
        if self._since is not None:
            seconds, some, batches = self._since
            self._since = seconds + waited + step, some + samples, batches + 1
        if waited < WAITED_SECONDS or self._settles > 0:
            return False
        seconds, some, batches = self._since or (0.0, 0, 0)
        self._seconds, self._samples = self._seconds + seconds, self._samples + some
        self._batches, self._since = self._batches + batches, (0.0, 0, 0)
        if self._seconds < SECONDS or self._batches < BATCHES:
            return False
        before, was_settled = self.readers, self.settled
        self._search.add(self._samples / self._seconds)
        self._begin(SECONDS / 4 if self.readers != before else 0.0)
        if self.settled and not was_settled:
            log.info("tune='online': %d reader threads are fastest", self.readers)
        return self.readers != before
