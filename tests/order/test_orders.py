"""Orders: bijections of the dataset, one for every epoch, without memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import PlanError
from penstock.loaders.partition import ChosenOrder, FixedShuffle
from penstock.order import LARGEST, BlockOrder, Order, SequentialOrder, ShuffledOrder, tiles
from penstock.order.orders import (
    at_epochs,
    passes_of,
    places_of,
    positions_of,
    samples_of,
)

seeds = st.integers(0, 2**64 - 1)
small = st.integers(1, 700)
geometry = st.tuples(st.integers(1, 40), st.integers(1, 6), st.integers(1, 9))


def orders(n, seed, blocks):
    return SequentialOrder(n, seed), ShuffledOrder(n, seed), BlockOrder(n, seed, *blocks)


@given(small, seeds, geometry, st.integers(0, 2**40), st.data())
def test_orders_are_bijections_with_inverse_and_random_access(n, seed, blocks, epoch, data):
    for order in orders(n, seed, blocks):
        positions = np.arange(n)
        samples = order.at(epoch, positions)
        assert samples.dtype == np.int64
        assert np.array_equal(np.sort(samples), positions)
        assert np.array_equal(order.position_of(epoch, samples), positions)
        pick = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
        assert np.array_equal(order.at(epoch, pick), samples[pick])
        assert [order.at(epoch, np.array([p]))[0] for p in pick] == samples[pick].tolist()


@given(
    st.integers(1, LARGEST),
    seeds,
    st.tuples(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 2**17)),
    st.lists(st.integers(0, LARGEST), max_size=9),
)
def test_orders_of_any_size_round_trip(n, seed, blocks, wanted):
    positions = np.array([place % n for place in wanted] + [0, n - 1], np.int64)
    for order in orders(n, seed, blocks):
        samples = order.at(3, positions)
        assert (samples >= 0).all() and (samples < n).all()
        assert np.array_equal(order.position_of(3, samples), positions)


@given(
    st.integers(1, LARGEST),
    st.tuples(st.integers(1, LARGEST), st.integers(1, LARGEST), st.integers(1, LARGEST)),
)
def test_a_block_order_of_absurd_geometry_still_round_trips(n, blocks):
    order = BlockOrder(n, 1, *blocks)
    positions = np.array([0, n // 2, n - 1])
    assert np.array_equal(order.position_of(0, order.at(0, positions)), positions)


@given(st.integers(50, 700), seeds, st.integers(0, 100))
def test_epochs_differ(n, seed, epoch):
    positions = np.arange(n)
    for order in (ShuffledOrder(n, seed), BlockOrder(n, seed, 4, 3, 2)):
        assert not np.array_equal(order.at(epoch, positions), order.at(epoch + 1, positions))


@given(small, seeds)
def test_a_sequential_order_is_the_samples_as_they_lie_in_every_epoch(n, seed):
    assert np.array_equal(SequentialOrder(n, seed).at(7, np.arange(n)), np.arange(n))


def test_all_are_orders_and_their_identity_is_plain():
    for order in orders(10, np.uint64(3), (2, 2, 1)):
        assert isinstance(order, Order)
        kinds = {type(value) for value in order.identity().values()}
        assert kinds <= {int, str}  # or a state is not JSON
        assert order.identity()["order"] == order.kind


def test_seeds_make_other_orders():
    positions = np.arange(100)
    assert not np.array_equal(
        ShuffledOrder(100, 1).at(0, positions), ShuffledOrder(100, 2).at(0, positions)
    )


def test_an_empty_dataset_has_no_order():
    for make in (SequentialOrder, lambda n: ShuffledOrder(n, 1), lambda n: BlockOrder(n, 1, 2, 2)):
        with pytest.raises(PlanError, match="cannot order 0 samples: an empty dataset"):
            make(0)
        with pytest.raises(PlanError, match=r"size must be at"):
            make(LARGEST + 1)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_of_64_bits_is_refused(seed):
    for make in (SequentialOrder, ShuffledOrder):
        with pytest.raises(PlanError, match=r"seed must be at"):
            make(10, seed)
    with pytest.raises(PlanError, match="seed must be at"):
        BlockOrder(10, seed, 2, 2)


def test_a_position_out_of_range_is_refused():
    for order in orders(10, 1, (2, 2, 1)):
        for wrong in (-1, 10):
            with pytest.raises(IndexError, match=r"range\(10\)"):
                order.at(0, np.array([wrong]))
            with pytest.raises(IndexError, match=r"range\(10\)"):
                order.position_of(0, np.array([wrong]))


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


@settings(max_examples=25)
@given(small, seeds, geometry, st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_each_position_may_have_an_epoch_of_its_own(n, seed, blocks, epochs, data):
    epochs = np.array(epochs)
    positions = np.array([data.draw(st.integers(0, n - 1)) for _ in epochs])
    for order in (*orders(n, seed, blocks), FixedShuffle(n, seed)):
        samples = at_epochs(order, epochs, positions)
        one_by_one = [order.at(e, positions[[i]])[0] for i, e in enumerate(epochs.tolist())]
        assert samples.tolist() == one_by_one


@settings(max_examples=25)
@given(small, seeds, geometry, st.integers(0, 9))
def test_an_order_without_more_members_has_each_sample_once(n, seed, blocks, epoch):
    chosen = ChosenOrder(n, SequentialOrder(n + 7, seed))
    for order in (*orders(n, seed, blocks), chosen):
        assert places_of(order, epoch) == order.size == n
        assert passes_of(order, epoch, np.arange(n)) is None
        samples = order.at(epoch, np.arange(n)).tolist()
        for sample in range(0, samples_of(order), 1 + n // 9):
            expected = [samples.index(sample)] if sample in samples else []
            assert positions_of(order, epoch, sample) == expected
    assert samples_of(chosen) == n + 7
