"""Splits by author: nothing leaks, every class can be learnt, and what cannot be is said."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.model_selection import GroupShuffleSplit, StratifiedGroupKFold

from penstock.domains.folds import author_folds, author_split
from penstock.domains.folds.splits import BETTER_ATTEMPTS, NEW_ATTEMPTS, search
from penstock.errors import PlanError


@st.composite
def populations(draw):
    """Labels and authors of segments; every author records a few classes."""
    classes = draw(st.integers(1, 5))
    authors = draw(st.integers(2, 12))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    size = draw(st.integers(authors * 2, 120))
    return rng.integers(0, classes, size) * 3, rng.integers(0, authors, size)


def even(per_author=4, authors=12, classes=3):
    """Every author has as many segments of every class."""
    labels = np.tile(np.repeat(np.arange(classes), per_author), authors)
    return labels, np.repeat(np.arange(authors), per_author * classes)


@given(populations(), st.integers(2, 4), st.integers(0, 3))
def test_no_author_is_in_two_parts_of_a_fold(population, k, least):
    labels, authors = population
    try:
        found = author_folds(labels, authors, k, max_attempts=6, min_val_segments=least)
    except PlanError:
        assume(False)
    assert len(found.folds) == k
    validated = np.concatenate([val for _, val in found.folds])
    assert sorted(validated.tolist()) == list(range(len(labels)))  # each sample once
    for train, val in found.folds:
        assert not set(authors[train]) & set(authors[val])
        assert len(train) + len(val) == len(labels)
        assert set(labels[train]) == set(labels)
        counts = Counter(labels[val].tolist())
        assert min(counts.values()) >= least


@given(populations(), st.floats(0.1, 0.5), st.integers(0, 3))
def test_no_author_is_in_both_parts_of_a_split(population, test_size, least):
    labels, authors = population
    try:
        train, val, score = author_split(
            labels, authors, test_size, max_attempts=6, min_test_segments=least
        )
    except PlanError:
        assume(False)
    assert not set(authors[train]) & set(authors[val])
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(len(labels)))
    assert set(labels[train]) == set(labels[val]) == set(labels)
    assert min(Counter(labels[val].tolist()).values()) >= max(1, least)
    for label in set(labels):
        assert len(set(authors[train][labels[train] == label])) >= 2
    assert np.isfinite(score)


def folds_score(labels, authors, folds):
    """The rule, written out: how far each class misses an equal share of its segments."""
    per_fold = []
    for _, val in folds:
        misses = []
        for label in sorted(set(labels)):
            found = (labels[val] == label).sum()
            target = round((labels == label).sum() / len(folds))
            if found:
                misses.append(abs(found - target) / max(target, 1))
        per_fold.append(np.mean(misses))
    return np.mean(per_fold)


def test_the_best_seed_wins_by_the_rule():
    rng = np.random.default_rng(4)
    authors = rng.integers(0, 14, 150)
    labels = (authors + rng.integers(0, 2, 150)) % 4
    scores = []
    for seed in range(25):
        splitter = StratifiedGroupKFold(3, shuffle=True, random_state=seed)
        folds = list(splitter.split(labels, labels, authors))
        if all(set(labels[train]) == set(labels) for train, _ in folds):
            scores.append((folds_score(labels, authors, folds), seed))
    found = author_folds(labels, authors, 3, max_attempts=25)
    assert len(scores) > 3 and len({score for score, _ in scores}) > 1
    assert (found.score, found.seed) == (pytest.approx(min(scores)[0]), min(scores)[1])
    assert found.score == pytest.approx(folds_score(labels, authors, found.folds))


def test_a_single_split_takes_the_seed_that_misses_the_share_least():
    rng = np.random.default_rng(4)
    authors, labels = rng.integers(0, 14, 200), rng.integers(0, 3, 200)
    best = np.inf
    for seed in range(435, 465):
        splitter = GroupShuffleSplit(1, test_size=0.2, random_state=seed)
        ((_, val),) = splitter.split(labels, labels, authors)
        targets = [0.2 * (labels == label).sum() for label in range(3)]
        found = [(labels[val] == label).sum() for label in range(3)]
        if min(found) >= 5:
            misses = [abs(f - t) / t for f, t in zip(found, targets, strict=True)]
            best = min(best, np.mean(misses))
    assert author_split(labels, authors, max_attempts=30).score == pytest.approx(best)


def test_a_share_that_rounds_to_nothing_has_a_finite_score():
    labels, authors = even(per_author=1, authors=4)
    assert np.isfinite(author_split(labels, authors, 0.1, min_test_segments=1).score)


def test_the_same_data_gives_the_same_split():
    labels, authors = even(authors=9)
    first, again = (author_folds(labels, authors, 4, max_attempts=20) for _ in range(2))
    assert (first.score, first.seed) == (again.score, again.seed)
    for one, other in zip(first.folds, again.folds, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_names_may_be_strings():
    labels, authors = even()
    named = np.array([f"author {a}" for a in authors]), np.array([f"bird {c}" for c in labels])
    found = author_folds(named[1], named[0], 3, max_attempts=20)
    assert found.score == 0.0


def test_classes_with_fewer_segments_than_folds_are_split_too():
    labels, authors = [0, 0, 1, 1, 2, 2], ["a", "b", "c", "d", "e", "f"]
    found = author_folds(labels, authors, 3, max_attempts=50)
    assert [len(val) for _, val in found.folds] == [2, 2, 2]


# -- when to stop


def trying(scores, attempts, repeat=False):
    calls = []

    def propose(seed):
        calls.append(seed)
        parts = np.zeros(24, np.int64)
        distinct = 0 if repeat else seed
        parts[1:] = (distinct >> np.arange(23)) & 1  # another partition for each seed
        parts[0] = 0
        scored.append(scores(seed))
        return parts

    scored = []
    found = search(
        propose, lambda parts: scored[-1], first_seed=0, attempts=attempts, progress=False
    )
    return found, len(calls)


def test_a_perfect_split_ends_the_search():
    found, calls = trying(lambda seed: 0.0 if seed == 7 else 1.0, 1000)
    assert (found.seed, calls, found.attempts) == (7, 8, 8)


def test_a_search_goes_on_while_better_ones_come():
    found, calls = trying(lambda seed: 1.0 / (1 + seed // 200), 2000)
    assert calls > 1000
    assert found.score < 0.2


def test_a_search_ends_when_nothing_better_is_likely():
    found, calls = trying(lambda seed: 0.4 if seed == 10 else 0.5, 30000)
    assert found.score == 0.4
    assert calls <= BETTER_ATTEMPTS + 20


def test_a_search_ends_when_only_the_same_comes_again():
    _, calls = trying(lambda seed: 0.5, 30000, repeat=True)
    assert calls <= NEW_ATTEMPTS + 2


def test_a_search_never_exceeds_its_attempts():
    assert trying(lambda seed: 1.0 / (1 + seed), 40)[1] == 40


# -- refusals


def test_a_class_with_one_author_is_named():
    labels, authors = even(authors=8)
    labels, authors = np.append(labels, [77, 77]), np.append(authors, [3, 3])
    with pytest.raises(PlanError, match=r"class 77 \(1\) has fewer: add recordings of others"):
        author_folds(labels, authors)
    with pytest.raises(PlanError, match=r"at least 3 authors of every class.*class 77 \(1\)"):
        author_split(labels, authors)


def test_fewer_authors_than_folds_are_refused():
    labels, authors = even(authors=3)
    with pytest.raises(PlanError, match="4 folds by author need at least 4 authors, got 3"):
        author_folds(labels, authors, 4)


def test_a_class_with_too_few_segments_is_named():
    labels, authors = even(authors=8)
    rare = np.append(labels, [77] * 4), np.append(authors, [0, 1, 2, 3])
    with pytest.raises(PlanError, match=r"min_val_segments is 6, class 77 \(4\) has fewer"):
        author_folds(*rare, min_val_segments=6)
    with pytest.raises(PlanError, match=r"min_test_segments is 5.*class 77 \(4\)"):
        author_split(*rare)


def test_what_most_splits_lacked_is_said():
    labels = [0, 0, 1, 1, 1, 1, 1, 1]
    authors = ["a", "b", "a", "b", "c", "d", "e", "f"]
    with pytest.raises(
        PlanError, match=r"none of \d+ splits into 2 folds can be used: class 0 has"
    ):
        author_folds(labels, authors, 2, max_attempts=30, min_val_segments=2)


def test_too_high_a_demand_is_lowered_once():
    labels, authors = even(per_author=3, authors=8, classes=2)  # 6 of a class in two authors
    found = author_folds(labels, authors, 4, max_attempts=20, min_val_segments=9)
    assert found.score == 0.0
    labels, authors = even(per_author=10, authors=6, classes=2)
    assert len(author_split(labels, authors, 0.2, max_attempts=20, min_test_segments=31).val)


@pytest.mark.parametrize(("labels", "authors"), [([], []), ([1, 2], [1]), ([[1]], [[1]])])
def test_labels_and_authors_that_do_not_fit_are_refused(labels, authors):
    with pytest.raises(PlanError, match="pass a label and an author for each"):
        author_folds(labels, authors)
