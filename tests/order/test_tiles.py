"""Tiles: spans that cover a recording once, in the announced number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import PlanError
from penstock.order import tiles


@given(
    st.integers(1, 5000),
    st.integers(1, 900),
    st.integers(0, 2**64 - 1),
    st.integers(1, 20),
)
def test_tiles_cover_once_in_the_announced_number(total, chunk, key, align):
    spans = tiles(total, chunk, key, align)
    assert len(spans) == -(-total // chunk)
    assert sorted(i for begin, end in spans for i in range(begin, end)) == list(range(total))
    assert all(0 < end - begin <= chunk for begin, end in spans)


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(0, 2**64 - 1), st.integers(1, 20))
def test_starts_are_aligned_where_the_chunk_is(total, units, key, align):
    assert all(begin % align == 0 for begin, _ in tiles(total, units * align, key, align))


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(0, 2**64 - 1), st.integers(1, 20))
def test_lengths_are_equal_but_for_one_unit(total, units, key, align):
    lengths = [end - begin for begin, end in sorted(tiles(total, units * align, key, align))]
    assert max(lengths) - min(lengths[:-1] or lengths) <= align
    assert max(lengths) - lengths[-1] < 2 * align  # its last unit may be cut short


def test_keys_move_the_borders_and_the_order():
    assert len({tuple(tiles(1003, 100, key)) for key in range(50)}) == 50
    assert len({tuple(sorted(tiles(1003, 100, key))) for key in range(50)}) == 11


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one_are_refused(wrong):
    total, chunk, align = wrong
    with pytest.raises(PlanError, match="total, chunk and align must be at least 1"):
        tiles(total, chunk, 3, align)
