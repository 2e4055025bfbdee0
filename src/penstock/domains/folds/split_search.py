"""Looking for the best of many splits, until nothing better is likely."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.datasets.progress import progress_bar
from penstock.domains.folds.class_counts import Parts

log = logging.getLogger("penstock")

BETTER_ATTEMPTS: Final = 300  # without a better split, before none is likely any more
NEW_ATTEMPTS: Final = 50  # that only repeated splits, before there are hardly any others


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a split is worth: the lower the better; or why it cannot be used."""

    score: float = float("inf")
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The best split of a search; ``parts`` is None where none can be used."""

    parts: Parts | None
    score: float
    seed: int
    attempts: int
    problem: str | None  # what most of those that cannot be used lacked


def search(
    propose: Callable[[int], Parts],
    judge: Callable[[Parts], Judgement],
    *,
    first_seed: int,
    attempts: int,
    progress: bool | None,
) -> Found:
    """The best proposal of the seeds from ``first_seed`` on, at most ``attempts`` of them.

    Ends early when a split is perfect; when the best one was found in the first third of the
    search and `BETTER_ATTEMPTS` brought nothing better; and when `NEW_ATTEMPTS` in a row only
    repeated what was there, as happens where few authors leave few ways to split.
    """
    best, best_score, best_at, new_at, done = None, float("inf"), 0, 0, 0
    problems: Counter[str] = Counter()
    seen: dict[bytes, Judgement] = {}
    with progress_bar("splits", attempts, progress) as advance:
        while done < attempts and best_score > 0:
            parts = propose(first_seed + done)
            key = _canonical(parts)
            if key not in seen:
                seen[key], new_at = judge(parts), done
            verdict = seen[key]
            if verdict.problem is not None:
                problems[verdict.problem] += 1
            elif verdict.score < best_score:
                best, best_score, best_at = parts, verdict.score, done
            done += 1
            advance(note=f"best {best_score:.3f}")
            if done - new_at > NEW_ATTEMPTS:
                break
            if best is not None and done - best_at > max(BETTER_ATTEMPTS, 2 * best_at):
                break
    log.info("split: score %.3f, best of %d attempts", best_score, done)
    problem = problems.most_common(1)[0][0] if problems else None
    return Found(best, best_score, first_seed + best_at, done, problem)


def _canonical(parts: Parts) -> bytes:
    """Equal for splits that differ in the numbers of their parts alone."""
    _, first, inverse = np.unique(parts, return_index=True, return_inverse=True)
    return first[inverse].tobytes()
