"""A shuffle that is computed: a bijection at any size, uniform at any size."""

import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import PlanError
from penstock.order import LARGEST, Permutation, derive_key

words = st.integers(0, 2**64 - 1)
small = st.integers(1, 700)


@given(small, words)
@example(1, 0)
@example(64, 1)
@example(65, 1)
def test_a_permutation_is_a_bijection_with_inverse(n, key):
    p, places = Permutation(n, key), np.arange(n)
    values = p(places)
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), places)
    assert np.array_equal(p.inverse(values), places)
    assert np.array_equal(p(places[::3]), values[::3])


@given(small, words)
def test_one_index_in_plain_integers_is_the_vectorised_one(n, key):
    p = Permutation(n, key)
    values = p(np.arange(n)).tolist()
    assert list(p) == values == [p(i) for i in range(n)]
    assert [p.inverse(v) for v in values] == list(range(n))
    assert len(p) == n and all(type(p[i]) is int for i in range(min(n, 3)))


@given(
    st.integers(1, LARGEST),
    words,
    st.lists(st.integers(0, LARGEST), min_size=1, max_size=20),
)
@example(LARGEST, 2**64 - 1, [LARGEST - 1])
@example(2**61 + 1, 3, [2**61])
def test_a_permutation_of_any_size_round_trips_by_both_paths(n, key, wanted):
    places = np.array([place % n for place in wanted], np.int64)
    p = Permutation(n, key)
    values = p(places)
    assert (values >= 0).all() and (values < n).all()
    assert np.array_equal(p.inverse(values), places)
    assert values.tolist() == [p[i] for i in places.tolist()]
    assert places.tolist() == [p.inverse(v) for v in values.tolist()]


@given(st.integers(1, 70_000), words, st.integers(0, 2**32))
@example(2**16, 1, 0)
@example(2**16 + 1, 1, 0)
@example(2**15 + 1, 1, 0)
@example(1, 1, 0)
def test_many_indices_at_once_are_those_few_by_few(n, key, chosen):
    p, places = Permutation(n, key), np.random.default_rng(chosen).integers(0, n, 3000)
    values, backwards = p(places), p.inverse(places)
    parts = np.array_split(places, 8)
    assert np.array_equal(values, np.concatenate([p(part) for part in parts]))
    assert np.array_equal(backwards, np.concatenate([p.inverse(part) for part in parts]))
    assert values[7] == p[int(places[7])] and backwards[7] == p.inverse(int(places[7]))


@given(small, st.lists(words, min_size=1, max_size=30))
def test_an_array_of_keys_is_many_permutations(n, keys):
    places = np.arange(len(keys)) % n
    many = Permutation(n, np.array(keys, np.uint64))
    values = many(places)
    one_by_one = [Permutation(n, k)[i] for k, i in zip(keys, places.tolist(), strict=True)]
    assert values.tolist() == one_by_one
    assert np.array_equal(many.inverse(values), places)


def test_more_indices_than_a_stride_and_any_shape_are_walked_alike():
    p = Permutation(100_003, 5)
    values = p(np.arange(100_003))
    assert np.array_equal(np.sort(values), np.arange(100_003))
    grid = np.arange(60).reshape(3, 4, 5)
    assert np.array_equal(p(grid), values[grid])
    assert p(np.empty(0, np.int64)).shape == (0,)


def test_the_given_array_is_left_alone():
    places = np.arange(50)
    Permutation(50, 3)(places)
    assert np.array_equal(places, np.arange(50))


def surprise(counts: np.ndarray) -> float:
    """Chi-square of counts that should be equal, in standard deviations."""
    mean, free = counts.mean(), counts.size - 1
    return (((counts - mean) ** 2 / mean).sum() - free) / np.sqrt(2 * free)


SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 65, 100]
KEYS = derive_key(9, "uniform", np.arange(60_000))


@pytest.mark.parametrize("n", SIZES)
def test_every_value_is_equally_likely_at_every_place(n):
    for place in {0, 1, n // 2, n - 1}:
        values = Permutation(n, KEYS)(np.full(KEYS.size, place))
        assert surprise(np.bincount(values, minlength=n)) < 5


@pytest.mark.parametrize("n", SIZES)
def test_every_pair_is_equally_likely_at_neighbouring_and_distant_places(n):
    off_diagonal = ~np.eye(n, dtype=bool)
    for a, b in {(0, 1), (n // 2 - 1, n // 2), (0, n - 1)}:
        first, second = (Permutation(n, KEYS)(np.full(KEYS.size, place)) for place in (a, b))
        pairs = np.bincount(first * n + second, minlength=n * n).reshape(n, n)
        assert pairs[~off_diagonal].sum() == 0
        if n > 2:
            assert surprise(pairs[off_diagonal]) < 5


@pytest.mark.parametrize("n", [1_000, 4_097, 65_536, 1_000_003, 2**40 + 1])
def test_positions_and_steps_between_neighbours_are_uniform_in_one_large_permutation(n):
    values = Permutation(n, 11)(np.arange(min(n, 200_000)))
    cells = 50
    if n > 200_000:  # of a whole permutation the cells are exact, by being a bijection
        assert surprise(np.bincount(values * cells // n, minlength=cells)) < 5
    thirds = values * 7 // n  # where neighbours fall, pair by pair
    pairs = np.bincount(thirds[:-1] * 7 + thirds[1:], minlength=49)
    assert surprise(pairs) < 5
    steps = (values[1:] - values[:-1]) % n * cells // n
    assert surprise(np.bincount(steps, minlength=cells)) < 5


def test_neighbouring_keys_give_unrelated_permutations():
    n, places = 1000, np.arange(1000)
    same = [(Permutation(n, k)(places) == Permutation(n, k + 1)(places)).sum() for k in range(300)]
    assert abs(np.mean(same) - 1) < 0.35  # as often as chance has it: once


def test_memory_is_constant():
    assert sys.getsizeof(Permutation(10, 1)) == sys.getsizeof(Permutation(10**12, 1))


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_a_length_that_cannot_be_is_refused(n):
    with pytest.raises(PlanError, match=r"length must be"):
        Permutation(n, 1)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_out_of_range_is_refused_by_both_paths(index):
    for walk in (Permutation(10, 1), Permutation(10, 1).inverse):
        for wanted in (index, np.array([0, index])):
            with pytest.raises(IndexError, match=r"range\(10\)"):
                walk(wanted)
