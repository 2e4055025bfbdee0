"""Splits by author: no author is in two parts, and every class can be learnt."""

from __future__ import annotations

import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import real_number, whole_number
from penstock.domains.folds.class_counts import Census, Parts
from penstock.domains.folds.split_search import Judgement, search
from penstock.errors import PlanError
from penstock.extras import optional
from penstock.order import Indices

RETRY_VAL_SEGMENTS, RETRY_TEST_SEGMENTS = 5, 8  # asked for where more cannot be had


class Folds(NamedTuple):
    """Training and validation samples of every fold, their score and the seed that gave them."""

    folds: list[tuple[Indices, Indices]]
    score: float
    seed: int


class Split(NamedTuple):
    """Training and validation samples, and their score."""

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
    """The folds by author whose classes are spread most evenly, of many that are tried.

    No author is in the training and the validation part of a fold, every sample is validated
    once, every class is in every training part, and a class that is in a validation part has at
    least ``min_val_segments`` there. The score is the mean share by which a class misses an equal
    share of its segments; 0 is perfect.

    >>> folds, score, seed = author_folds([0, 1] * 8, [0, 0, 1, 1, 2, 2, 3, 3] * 2, n_splits=2)
    >>> score, [len(val) for _, val in folds]
    (0.0, [8, 8])
    """
    whole_number("n_splits", n_splits, minimum=2)
    whole_number("max_attempts", max_attempts, minimum=1)
    whole_number("min_val_segments", min_val_segments, minimum=0)
    census = Census.of(labels, authors)
    if len(census.authors) < n_splits:
        raise PlanError(
            f"{n_splits} folds by author need at least {n_splits} authors, "
            f"got {len(census.authors)}: lower k_folds"
        )
    census.require_authors(2, "one to train on when the other is left out")
    while True:
        census.require_segments(min_val_segments, f"min_val_segments is {min_val_segments}")
        found = search(
            partial(_propose_folds, census, n_splits),
            partial(_judge_folds, census, n_splits, min_val_segments),
            first_seed=0,
            attempts=max_attempts,
            progress=progress,
        )
        if found.parts is not None:
            return Folds(_samples_of(census, found.parts, n_splits), found.score, found.seed)
        if min_val_segments <= RETRY_VAL_SEGMENTS:
            raise PlanError(
                f"none of {found.attempts} splits into {n_splits} folds can be used: "
                f"{found.problem}; lower k_folds or min_val_segments"
            )
        min_val_segments = RETRY_VAL_SEGMENTS


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
    """The split by author that comes nearest to ``test_size`` of every class's segments.

    No author is in both parts; every class is in both, with two authors or more in the training
    part and at least ``min_test_segments`` in the other.
    """
    if not 0 < real_number("test_size", test_size) < 1:
        raise PlanError(f"test_size must be a share between 0 and 1, got {test_size!r}")
    whole_number("random_state", random_state, minimum=0, maximum=2**32 - 1)
    whole_number("max_attempts", max_attempts, minimum=1)
    whole_number("min_test_segments", min_test_segments, minimum=0)
    census = Census.of(labels, authors)
    census.require_authors(3, "two to train on and one to test")
    while True:
        least = min_test_segments
        census.require_segments(least + 2, f"min_test_segments is {least}, and two must be left")
        found = search(
            partial(_propose_split, census, test_size),
            partial(_judge_split, census, test_size, least),
            first_seed=random_state,
            attempts=max_attempts,
            progress=progress,
        )
        if found.parts is not None:
            ((train, val),) = _samples_of(census, found.parts, 2)[1:]
            return Split(train, val, found.score)
        if min_test_segments <= RETRY_TEST_SEGMENTS:
            raise PlanError(
                f"none of {found.attempts} splits can be used: {found.problem}; "
                "lower min_test_segments, or take another test_size"
            )
        min_test_segments = RETRY_TEST_SEGMENTS


def check_split(train: Indices, val: Indices, authors: npt.ArrayLike | None) -> None:
    """Refuse parts that share a sample, or an author."""
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


def _propose_folds(census: Census, n_splits: int, seed: int) -> Parts:
    sklearn = optional("sklearn.model_selection", extra="train")
    stratified = sklearn.StratifiedGroupKFold(n_splits, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes with few members: they are judged here
        try:
            folds = list(stratified.split(census.class_of, census.class_of, census.author_of))
        except ValueError:  # every class has fewer members than there are folds
            plain = sklearn.GroupKFold(n_splits, shuffle=True, random_state=seed)
            folds = list(plain.split(census.class_of, census.class_of, census.author_of))
    return census.parts_of([val for _, val in folds])


def _propose_split(census: Census, test_size: float, seed: int) -> Parts:
    sklearn = optional("sklearn.model_selection", extra="train")
    splitter = sklearn.GroupShuffleSplit(1, test_size=test_size, random_state=seed)
    ((train, val),) = splitter.split(census.class_of, census.class_of, census.author_of)
    return census.parts_of([train, val])


def _judge_folds(census: Census, n_splits: int, least: int, parts: Parts) -> Judgement:
    val = census.in_parts(parts, n_splits)
    total = census.counts.sum(axis=0)
    missing = (val == total).any(axis=0)
    if missing.any():
        name = census.classes[int(missing.argmax())]
        return Judgement(problem=f"class {name!s} is missing from a training part")
    few = ((val > 0) & (val < least)).any(axis=0)
    if few.any():
        name = census.classes[int(few.argmax())]
        return Judgement(problem=f"class {name!s} has fewer than {least} segments to validate")
    if (val.sum(axis=1) == 0).any():
        return Judgement(problem="a validation part is empty")
    target = np.round(total / n_splits)
    misses = np.abs(val - target) / np.maximum(target, 1)
    per_fold = [row[present].mean() for row, present in zip(misses, val > 0, strict=True)]
    return Judgement(score=float(np.mean(per_fold)))


def _judge_split(census: Census, test_size: float, least: int, parts: Parts) -> Judgement:
    train, val = census.in_parts(parts, 2)
    authors = (census.counts[parts == 0] > 0).sum(axis=0)
    rules = [
        (val == 0, "is missing from the test part"),
        (train == 0, "is missing from the training part"),
        (authors < 2, "has fewer than 2 authors in the training part"),
        (val < least, f"has fewer than {least} segments to test"),
    ]
    for broken, what in rules:
        if broken.any():
            return Judgement(problem=f"class {census.classes[int(broken.argmax())]!s} {what}")
    target = np.maximum(test_size * census.counts.sum(axis=0), 1)
    return Judgement(score=float(np.mean(np.abs(val - target) / target)))


def _samples_of(census: Census, parts: Parts, count: int) -> list[tuple[Indices, Indices]]:
    """The samples outside and inside of each part; made of authors, so that none is in both."""
    part_of = parts[census.author_of]
    return [(np.flatnonzero(part_of != p), np.flatnonzero(part_of == p)) for p in range(count)]
