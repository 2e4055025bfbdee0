"""Splits by author: no author is in two parts, and every class is in every training part."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of, real_number, whole_number
from penstock.errors import PlanError
from penstock.extras import optional, progress_bar
from penstock.order import Indices

log = logging.getLogger("penstock")

Counts: TypeAlias = npt.NDArray[np.int64]
Parts: TypeAlias = npt.NDArray[np.int64]  # the part that each author is in

# minimum numbers of segments that are tried if more are impossible
RETRY_VAL_SEGMENTS, RETRY_TEST_SEGMENTS = 5, 8
BETTER_ATTEMPTS: Final = 300  # stop after this number of attempts without a better split
NEW_ATTEMPTS: Final = 50  # stop after this number of attempts without a new split

Rating: TypeAlias = float | str  # the score of a split, lower is better; or why it is unusable


class Folds(NamedTuple):
    """The folds of a cross-validation.

    Args:
        folds: Training and validation samples of every fold.
        score: How evenly the classes are distributed; smaller is better.
        seed: The seed of the split.
    """

    folds: list[tuple[Indices, Indices]]
    score: float
    seed: int


class Split(NamedTuple):
    """One split of a dataset.

    Args:
        train: Training samples.
        val: Validation samples.
        score: How evenly the classes are distributed; smaller is better.
    """

    train: Indices
    val: Indices
    score: float


def author_folds(
    labels: npt.ArrayLike,
    authors: npt.ArrayLike,
    n_splits: int = 4,
    *,
    max_attempts: int = 30000,
    min_val_segments: int = 0,
    progress: bool | None = None,
) -> Folds:
    """Return the folds by author whose classes are distributed most evenly.

    No author is in both parts of a fold, every sample is in one validation part, and every class
    is in every training part. The score is the mean relative difference between a class's segments
    in a validation part and an equal share of them; 0 is perfect.

    Args:
        labels: The class of each sample.
        authors: The author of each sample.
        n_splits: Number of folds, 2 or more.
        max_attempts: Number of random splits to try. The search ends earlier if no better split
            is likely.
        min_val_segments: A class in a validation part has at least this number of samples there.
        progress: Show a progress bar. None shows it on a terminal.

    Raises:
        PlanError: No split satisfies the conditions.

    >>> folds, score, seed = author_folds([0, 1] * 8, [0, 0, 1, 1, 2, 2, 3, 3] * 2, n_splits=2)
    >>> score, [len(val) for _, val in folds]
    (0.0, [8, 8])
    """
    whole_number("n_splits", n_splits, minimum=2)
    whole_number("max_attempts", max_attempts, minimum=1)
    whole_number("min_val_segments", min_val_segments, minimum=0)
    table = _AuthorTable.of(labels, authors)
    if len(table.authors) < n_splits:
        found = len(table.authors)
        raise PlanError(f"{n_splits} folds by author need at least {n_splits} authors, got {found}")
    table.require_authors(2, "one to train on when the other is left out")
    sklearn = optional("sklearn.model_selection", extra="train")
    samples = table.class_of, table.class_of, table.author_of
    total = table.counts.sum(axis=0)
    target = np.round(total / n_splits)

    def propose(seed: int) -> Parts:
        options = {"n_splits": n_splits, "shuffle": True, "random_state": seed}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about small classes: `rate` decides on them
            try:
                folds = list(sklearn.StratifiedGroupKFold(**options).split(*samples))
            except ValueError:  # every class has fewer members than there are folds
                folds = list(sklearn.GroupKFold(**options).split(*samples))
        return table.parts_of([val for _, val in folds])

    def rate(least: int, parts: Parts) -> Rating:
        val = table.in_parts(parts, n_splits)
        broken = table.broken_rule(
            (np.any(val == total, axis=0), "is missing from a training part"),
            (
                np.any((val > 0) & (val < least), axis=0),
                f"has fewer than {least} segments to validate",
            ),
        )
        if broken is not None or (val.sum(axis=1) == 0).any():
            return broken or "a validation part is empty"
        misses = zip(np.abs(val - target) / np.maximum(target, 1), val > 0, strict=True)
        return float(np.mean([miss[present].mean() for miss, present in misses]))

    best = _best(
        *(table, propose, rate),
        minimum=("min_val_segments", min_val_segments, RETRY_VAL_SEGMENTS),
        search_options={"first_seed": 0, "attempts": max_attempts, "progress": progress},
        failed=f"splits into {n_splits} folds can be used: {{}}; lower k_folds or min_val_segments",
    )
    return Folds(table.samples_of(best.parts, n_splits), best.score, best.seed)


def author_split(
    labels: npt.ArrayLike,
    authors: npt.ArrayLike,
    test_size: float = 0.2,
    *,
    random_state: int = 435,
    max_attempts: int = 10000,
    min_test_segments: int = 5,
    progress: bool | None = None,
) -> Split:
    """Return the split by author that comes closest to ``test_size`` of every class.

    No author is in both parts. Every class is in both parts, with at least two authors in the
    training part.

    Args:
        labels: The class of each sample.
        authors: The author of each sample.
        test_size: Share of the samples in the second part, between 0 and 1.
        random_state: The first seed to try.
        max_attempts: Number of random splits to try. The search ends earlier if no better split
            is likely.
        min_test_segments: Every class has at least this number of samples in the second part.
        progress: Show a progress bar. None shows it on a terminal.

    Raises:
        PlanError: No split satisfies the conditions.
    """
    if not 0 < real_number("test_size", test_size) < 1:
        raise PlanError(f"test_size must be a share between 0 and 1, got {test_size!r}")
    whole_number("random_state", random_state, minimum=0, maximum=2**32 - 1)
    whole_number("max_attempts", max_attempts, minimum=1)
    whole_number("min_test_segments", min_test_segments, minimum=0)
    table = _AuthorTable.of(labels, authors)
    table.require_authors(3, "two to train on and one to test")
    sklearn = optional("sklearn.model_selection", extra="train")
    target = np.maximum(test_size * table.counts.sum(axis=0), 1)

    def propose(seed: int) -> Parts:
        splitter = sklearn.GroupShuffleSplit(1, test_size=test_size, random_state=seed)
        (parts,) = splitter.split(table.class_of, table.class_of, table.author_of)
        return table.parts_of(list(parts))

    def rate(least: int, parts: Parts) -> Rating:
        train, val = table.in_parts(parts, 2)
        trained_on = (table.counts[parts == 0] > 0).sum(axis=0)  # authors of each class
        broken = table.broken_rule(
            (val == 0, "is missing from the test part"),
            (train == 0, "is missing from the training part"),
            (trained_on < 2, "has fewer than 2 authors in the training part"),
            (val < least, f"has fewer than {least} segments to test"),
        )
        return float(np.mean(np.abs(val - target) / target)) if broken is None else broken

    found = _best(
        *(table, propose, rate),
        minimum=("min_test_segments", min_test_segments, RETRY_TEST_SEGMENTS),
        left=2,
        search_options={"first_seed": random_state, "attempts": max_attempts, "progress": progress},
        failed="splits can be used: {}; lower min_test_segments, or change test_size",
    )
    _, (train, val) = table.samples_of(found.parts, 2)
    return Split(train, val, found.score)


def _best(
    table: _AuthorTable,
    propose: Callable[[int], Parts],
    rate: Callable[[int, Parts], Rating],
    *,
    minimum: tuple[str, int, int],
    search_options: dict[str, Any],
    failed: str,
    left: int = 0,
) -> Found:
    """Return the best split that has a minimum of segments of each class; relax it if none has.

    Args:
        table: The authors.
        propose: Returns the split of a seed.
        rate: Returns the rating of a split, for a minimum.
        minimum: The name of the argument, its value, and the value that is tried next.
        search_options: Of `search`.
        failed: Why there is none; ``{}`` in it becomes the most frequent problem.
        left: Segments of a class that must be left to train on.
    """
    name, least, retry = minimum
    # a strict minimum is relaxed once, as users of the original expect
    for number in dict.fromkeys((least, min(least, retry))):
        rest = f", and {left} must be left to train on" if left else ""
        table.require_segments(number + left, f"{name} is {number}{rest}")
        found = search(propose, partial(rate, number), **search_options)
        if found.parts is not None:
            return found
    raise PlanError(f"none of {found.attempts} {failed.format(found.problem)}")


def check_split(train: Indices, val: Indices, authors: npt.ArrayLike | None) -> None:
    """Raise `PlanError` if a part is empty, or both parts share a sample or an author."""
    for part, name in ((train, "training"), (val, "validation")):
        if not len(part):
            raise PlanError(f"the {name} part of the split is empty")
    shared = np.intersect1d(train, val)
    if len(shared):
        raise PlanError(f"sample {shared[0]} is in the training and in the validation part")
    if authors is not None:
        names = np.asarray(authors)
        both = np.intersect1d(names[train], names[val])
        if len(both):
            raise PlanError(f"author {both[0]!s} is in the training and in the validation part")


@dataclass(frozen=True)
class _AuthorTable:
    """The number of segments of each class by each author; parts consist of authors."""

    classes: npt.NDArray[Any]
    authors: npt.NDArray[Any]
    class_of: Indices  # of each sample
    author_of: Indices
    counts: Counts  # (authors, classes)

    @classmethod
    def of(cls, labels: npt.ArrayLike, authors: npt.ArrayLike) -> _AuthorTable:
        labels, authors = array_of("labels", labels), array_of("authors", authors)
        if labels.ndim != 1 or labels.shape != authors.shape or not len(labels):
            found = f"{labels.shape} and {authors.shape}"
            raise PlanError(f"pass a label and an author for each sample, got shapes {found}")
        classes, class_of = np.unique(labels, return_inverse=True)
        names, author_of = np.unique(authors, return_inverse=True)
        counts = np.zeros((len(names), len(classes)), np.int64)
        np.add.at(counts, (author_of, class_of), 1)
        return cls(classes, names, class_of, author_of, counts)

    def in_parts(self, parts: Parts, count: int) -> Counts:
        """Return the segments of each class in each of ``count`` parts."""
        counts: Counts = (np.arange(count)[:, None] == parts).astype(np.int64) @ self.counts
        return counts

    def parts_of(self, samples: list[Indices]) -> Parts:
        """Return the part of each author, given the samples of each part."""
        parts = np.zeros(len(self.authors), np.int64)
        for part, members in enumerate(samples):
            parts[self.author_of[members]] = part
        return parts

    def samples_of(self, parts: Parts, count: int) -> list[tuple[Indices, Indices]]:
        """Return the samples outside and inside each part."""
        part_of = parts[self.author_of]
        return [(np.flatnonzero(part_of != p), np.flatnonzero(part_of == p)) for p in range(count)]

    def require_authors(self, least: int, reason: str) -> None:
        few = self._fewer((self.counts > 0).sum(axis=0), least)
        if few:
            raise PlanError(
                f"a split by author needs at least {least} authors of every class, {reason}; "
                f"class {few} has fewer: add recordings of others, or leave it out"
            )

    def require_segments(self, least: int, reason: str) -> None:
        few = self._fewer(self.counts.sum(axis=0), least)
        if few:
            raise PlanError(f"{reason}, class {few} has fewer: lower it, or leave the class out")

    def broken_rule(self, *rules: tuple[Any, str]) -> str | None:
        """Return the first class for which a rule is broken, and the rule."""
        for broken, problem in rules:
            if broken.any():
                return f"class {self.classes[int(broken.argmax())]!s} {problem}"
        return None

    def _fewer(self, found: Counts, least: int) -> str:
        few = np.flatnonzero(found < least)
        return ", ".join(f"{self.classes[i]!s} ({found[i]})" for i in few)


class Found(NamedTuple):
    """The best split of a search; ``parts`` is None if no split can be used."""

    parts: Any  # Parts, or None
    score: float
    seed: int
    attempts: int
    problem: str | None  # the most frequent one


def search(
    propose: Callable[[int], Parts],
    rate: Callable[[Parts], Rating],
    *,
    first_seed: int,
    attempts: int,
    progress: bool | None,
) -> Found:
    """Return the best split proposed for the seeds from ``first_seed`` on.

    The search ends early if a split is perfect; if the best one was found in the first third of the
    search and `BETTER_ATTEMPTS` found nothing better; or if `NEW_ATTEMPTS` in a row repeated
    splits seen before, because few authors allow few splits.

    Args:
        propose: Returns the split of a seed.
        rate: Returns the rating of a split.
        first_seed: The first seed to try.
        attempts: The largest number of seeds to try.
        progress: Show a progress bar. None shows it on a terminal.
    """
    best, best_score, best_at, new_at, done = None, float("inf"), 0, 0, 0
    problems: Counter[str] = Counter()
    seen: dict[bytes, Rating] = {}
    with progress_bar("splits", attempts, progress) as advance:
        while done < attempts and best_score > 0:
            parts = propose(first_seed + done)
            key = _canonical(parts)
            if key not in seen:
                seen[key], new_at = rate(parts), done
            rating = seen[key]
            if isinstance(rating, str):
                problems[rating] += 1
            elif rating < best_score:
                best, best_score, best_at = parts, rating, done
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
    """Return a key that is equal for splits that differ only in the numbering of their parts."""
    _, first, inverse = np.unique(parts, return_index=True, return_inverse=True)
    return first[inverse].tobytes()
