"""Keys: pure, far apart, the same one at a time and many at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order import derive_key

words = st.integers(0, 2**64 - 1)
parts = st.one_of(words, st.text(max_size=8))


@given(words, st.lists(parts, max_size=4), st.lists(words, min_size=1, max_size=20))
def test_an_array_of_parts_is_many_keys(seed, path, last):
    keys = derive_key(seed, *path, np.array(last, np.uint64))
    assert keys.dtype == np.uint64
    assert keys.tolist() == [derive_key(seed, *path, part) for part in last]
    after = derive_key(seed, np.array(last, np.uint64), *path)  # an array in the middle too
    assert after.tolist() == [derive_key(seed, part, *path) for part in last]


@given(words, st.lists(parts, max_size=4))
def test_a_key_is_a_pure_function_of_its_path_in_64_bits(seed, path):
    key = derive_key(seed, *path)
    assert isinstance(key, int) and 0 <= key < 2**64
    assert key == derive_key(seed, *path)
    assert key != derive_key(seed, *path, 0)


@given(words, st.lists(parts, min_size=2, max_size=4, unique=True))
def test_the_order_of_the_path_matters(seed, path):
    assert derive_key(seed, *path) != derive_key(seed, *reversed(path))


@given(words, words)
def test_a_seed_and_a_part_cannot_change_places(one, other):
    if one != other:
        assert derive_key(one, other) != derive_key(other, one)
    assert derive_key(one, one) != derive_key(other, other) or one == other


def test_numpy_integers_are_integers():
    assert derive_key(np.int64(5), np.uint64(2**63), np.array(3)) == derive_key(5, 2**63, 3)


def test_neighbouring_parts_give_keys_whose_bits_are_independent():
    keys = derive_key(7, "bits", np.arange(20_000))
    bits = (keys[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    spread = 5 * 0.5 / np.sqrt(len(keys))
    assert np.abs(bits.mean(0) - 0.5).max() < spread
    flips = (bits[1:] ^ bits[:-1]).mean(0)  # from one part to the next
    assert np.abs(flips - 0.5).max() < spread
    assert np.unique(keys).size == keys.size


@pytest.mark.parametrize("part", [-1, 2**64])
def test_a_part_outside_of_64_bits_is_refused(part):
    with pytest.raises(ValueError, match=r"a part of a key .* must be at"):
        derive_key(1, part)
