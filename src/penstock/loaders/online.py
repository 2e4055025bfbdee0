"""``tune="online"``: the number of reader threads that delivers batches fastest.

The number of threads only changes when a batch is ready, not its samples, which are planned.
"""

from __future__ import annotations

import logging
from statistics import median
from typing import Final

log = logging.getLogger("penstock")

WAITED_SECONDS: Final = 0.001  # for a batch: none was ready
SECONDS: Final = 0.5  # of a measurement, at least
BATCHES: Final = 8  # of a measurement, at least
BETTER: Final = 1.05  # more readers must be faster by this factor
WORSE: Final = 0.7  # a speed below this fraction of the fastest is too slow
ROUNDS: Final = 5  # of measurements of the same numbers
SLOW: Final = 3  # measurements in a row that are too slow: the search begins again


class ReaderSearch:
    """A search for the number of readers with the highest speed; the fewest among equals.

    It measures the numbers of a scale in rounds, one after the other, and compares speeds of the
    same round: a moment in which other programs need the machine looks like slow storage. Numbers
    that are far from the fastest in three rounds are dropped.

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
        self._best, self._usual, self._slow = readers, 0.0, 0
        # more readers first: with enough of them, training stops waiting and nothing is measured
        self._left = [*(n for n in self.scale if n >= readers)]
        self._left += [n for n in self.scale if n < readers]
        self._speeds: dict[int, list[float]] = {n: [] for n in self._left}  # one for each round
        self._next = list(self._left) if len(self._left) > 1 else []

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
            self._slow = self._slow + 1 if speed < WORSE * self._usual else 0
            if self._slow == SLOW:  # storage or the step has changed
                self._begin(self._best)
            return
        self._speeds[self._next.pop(0)].append(speed)
        if not self._next:
            self._end_round()

    def _end_round(self) -> None:
        rounds = [*zip(*(self._speeds[n] for n in self._left), strict=True)]
        means = [sum(speeds) for speeds in rounds]
        scores = {
            n: median(speed / mean for speed, mean in zip(self._speeds[n], means, strict=True))
            for n in self._left
        }
        fastest = max(scores.values())
        if len(rounds) > 2:  # a disturbance may have hit one of them
            self._left = [n for n in self._left if scores[n] > WORSE * fastest]
        if len(rounds) < ROUNDS and len(self._left) > 1:
            self._next = list(self._left)
            return
        self._best = min(n for n in self._left if scores[n] * BETTER >= fastest)
        self._usual = median(self._speeds[self._best])


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
        """Discard what was measured since the last batch that was waited for; keep the rest."""
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
