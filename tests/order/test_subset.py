"""The laws of selected samples: rank and select, and blocks of storage that are read once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.order.subset import Bitmap, Ranges, SelectedBlocks, SelectedInOrder, kept_ranges
from tests.order.composed import changes, deliver_on_changing_ranks, one, seeds

masks = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=1300),
    st.integers(1, 1300).map(lambda n: [True] * n),
    st.tuples(st.integers(1, 400), st.integers(1, 60)).map(  # clusters
        lambda pair: [i // pair[1] % 2 == 0 for i in range(pair[0])]
    ),
).filter(any)
small = st.integers(1, 5)


def both(mask):
    """The same selection as bits and as ranges."""
    kept = np.flatnonzero(mask)
    first = np.flatnonzero(np.diff(kept, prepend=-2) != 1)
    ends = np.append(first[1:], len(kept))
    return Bitmap(np.array(mask)), Ranges(kept[first], kept[ends - 1] + 1, len(mask))


@given(masks, st.data())
def test_rank_and_select_are_inverse(mask, data):
    every = np.flatnonzero(mask)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(mask))] * 2)))
    for kept in both(mask):
        assert (kept.size, kept.count) == (len(mask), len(every))
        assert np.array_equal(kept.select(np.arange(len(every))), every)
        assert np.array_equal(kept.select(np.arange(len(every))[::-3]), every[::-3])
        before = np.concatenate([[0], np.cumsum(mask)])
        assert np.array_equal(kept.rank(np.arange(len(mask) + 1)), before)
        inside = every[(every >= begin) & (every < end)]
        assert np.array_equal(kept.within(begin, end), inside)
        new = np.diff(every, prepend=-2) != 1
        assert np.array_equal(kept.begins(), np.flatnonzero(new))


def test_many_ranges_become_a_bitmap_of_little_more_than_a_bit_a_sample(monkeypatch):
    starts = np.arange(0, 100_000, 4)
    kept = kept_ranges(starts, starts + 1, 100_000)
    assert isinstance(kept, Bitmap) and kept.bits.nbytes + kept._before.nbytes < 100_000 * 1.2 / 8
    assert np.array_equal(kept.select(np.arange(25_000)), starts)
    few = kept_ranges(starts[:4000], starts[:4000] + 1, 100_000)
    assert isinstance(few, Ranges)  # too few to count
    sparse = kept_ranges(starts, starts + 1, 10**9)
    assert isinstance(sparse, Ranges) and np.array_equal(sparse.select(np.arange(25_000)), starts)


@given(masks, seeds, st.integers(0, 9), small, small, small, st.integers(1, 30))
def test_selected_blocks_are_a_bijection_with_an_inverse(
    mask, seed, epoch, window, lanes, block, more
):
    bits, ranges = both(mask)
    order = SelectedBlocks(bits, seed, block * more, window, lanes)
    samples, positions = one(order, epoch), np.arange(order.size)
    assert np.array_equal(np.sort(samples), positions)
    assert np.array_equal(order.position_of(epoch, samples), positions)
    assert np.array_equal(order.at(epoch, positions[::-2]), samples[::-2])
    same = SelectedBlocks(ranges, seed, block * more, window, lanes)
    assert np.array_equal(one(same, epoch), samples) and same.identity() == order.identity()
    in_order = SelectedInOrder(bits, seed, block, window)
    assert np.array_equal(one(in_order, epoch), positions)
    with pytest.raises(IndexError):
        order.at(epoch, np.array([order.size]))


def windows_of(order, epoch, lane):
    """Samples of the source and positions of each window of a lane, and the blocks it reads."""
    for k in range(order.rounds):
        spans = list(order.window_reads(epoch, k, lane))
        if spans:
            taken = [
                span.start + (np.arange(span.count) if span.take is None else span.take)
                for span in spans
            ]
            blocks = [span.start // order.block for span in spans]
            yield k, np.concatenate(taken), order.window_positions(epoch, k, lane), blocks
            assert all(
                (span.start + span.count - 1) // order.block == block
                for span, block in zip(spans, blocks, strict=True)
            )


@given(masks, seeds, small, small, st.integers(1, 60))
def test_storage_blocks_are_read_once_by_one_lane_one_window_at_a_time(
    mask, seed, window, lanes, block
):
    kept = Bitmap(np.array(mask))
    shuffled = SelectedBlocks(kept, seed, block, window, lanes)
    for order in (shuffled, SelectedInOrder(kept, seed, block, window)):
        samples, reads, seen = kept.select(one(order, 1)), Counter(), []
        for lane in range(order.lanes):
            row = 0
            for k, source, positions, blocks in windows_of(order, 1, lane):
                assert np.array_equal(source, samples[positions])  # a window is what it reads
                assert (positions % order.lanes == lane).all()
                rows = np.sort(positions // order.lanes)
                assert np.array_equal(rows, np.arange(row, row + len(rows)))  # and one range
                assert len(rows) <= order.window_samples
                assert order.round_start(1, k) <= positions.min()
                assert positions.max() < order.round_stop(1, k)
                assert order.round_of(1, int(positions.min())) <= k
                row += len(rows)
                reads.update(blocks)
                seen += positions.tolist()
        assert sorted(seen) == list(range(order.size))
        assert set(reads) == set((np.flatnonzero(mask) // block).tolist())  # no empty block
        assert sum(reads.values()) <= len(reads) + order.lanes - 1  # one that lanes share, twice
        starts = [order.round_start(1, k) for k in range(order.rounds + 1)]
        assert starts == sorted(starts) and starts[-1] == order.size


@given(masks, seeds, small, small, st.integers(1, 60), changes)
def test_selected_blocks_are_the_same_on_any_sequence_of_ranks(
    mask, seed, window, lanes, block, change
):
    order = SelectedBlocks(Bitmap(np.array(mask)), seed, block, window, lanes)
    if order.size < 2:
        return
    got, left = deliver_on_changing_ranks(order, change)
    assert len(set(got.tolist())) == len(got) == order.size - left and left < 5


def test_no_sample_is_always_last():
    mask = np.arange(147) % 7 < 6
    mask[140:146] = False  # a block with a single sample
    order, last = SelectedBlocks(Bitmap(mask), 3, 7, 4, 2), Counter()
    for epoch in range(1500):
        last.update(order.at(epoch, np.arange(order.size - 4, order.size)).tolist())
    assert max(last.values()) < 1500 * 4 / order.size * 2.2 and len(last) == order.size


def test_selected_blocks_are_frozen():
    """STATE-BREAKING: these values are frozen, as those of test_golden.py."""
    mask = np.arange(36) % 4 != 2
    mask[4:8] = mask[34:] = False
    order = SelectedBlocks(Bitmap(mask), 42, 4, 2, 2)
    expected = [18, 10, 20, 15, 3, 2, 19, 0, 21, 1, 5, 11, 4, 16, 22, 17, 9, 7, 13, 8, 12, 6, 14]
    assert one(order, 1).tolist() == expected
