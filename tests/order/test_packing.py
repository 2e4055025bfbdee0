"""Laws of packing: every token once, documents whole where asked, shares of tokens kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import SequentialOrder, ShuffledOrder, Steps
from penstock.order.mixture import MixtureOrder
from penstock.order.packing import FlatTokens, WholeDocuments
from tests.order.composed import changes, deliver_on_changing_ranks, one, seeds

LENGTH = 32


def pieces_of(packed, epoch=0):
    """By sequence: (document, start, stop) of each piece; offsets are checked on the way."""
    found = [[] for _ in range(packed.size)]
    for s, offset, *piece in zip(
        *(column.tolist() for column in packed.pieces(epoch, np.arange(packed.size))), strict=True
    ):
        assert offset == sum(b - a for _, a, b in found[s])
        found[s].append(tuple(piece))
    return found


@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=40).filter(any),
    st.integers(1, 64),
    st.none() | seeds,
    st.integers(0, 5),
)
def test_flat_tokens_come_once_in_the_same_number_of_sequences(lengths, length, seed, epoch):
    flat, tokens = FlatTokens(lengths, length, seed), Counter()
    for s, pieces in enumerate(pieces_of(flat, epoch)):
        used = sum(b - a for _, a, b in pieces)
        assert used == (length if s < flat.size - 1 else flat.total - s * length)
        tokens.update((d, i) for d, a, b in pieces for i in range(a, b))
    assert max(tokens.values()) == 1 and len(tokens) == sum(lengths)
    assert flat.size == -(-sum(lengths) // length)


@given(
    st.lists(st.integers(0, LENGTH), min_size=1, max_size=90).filter(any),
    st.integers(1, 40),
    st.none() | seeds,
    st.integers(0, 5),
)
def test_whole_documents_come_once_and_fit(lengths, window, seed, epoch):
    packed, plain = (
        WholeDocuments(lengths, LENGTH, window, seed),
        WholeDocuments(lengths, LENGTH, window),
    )
    found = pieces_of(packed, epoch)
    # in any pass the same lengths come together: as many sequences, each as full
    assert [[n for _, _, n in s] for s in found] == [[n for _, _, n in s] for s in pieces_of(plain)]
    assert sorted(p for s in found for p in s) == [(d, 0, n) for d, n in enumerate(lengths) if n]
    assert all(0 < sum(b for _, _, b in pieces) <= LENGTH for pieces in found)


@given(
    st.lists(st.integers(0, LENGTH), min_size=1, max_size=40).filter(any), st.booleans(), st.data()
)
def test_random_access_gives_the_same_pieces_and_ids(lengths, split, data):
    packed = (FlatTokens if split else WholeDocuments)(lengths, LENGTH, seed=7)
    chosen = data.draw(st.lists(st.integers(0, packed.size - 1), min_size=1, max_size=9))
    epochs = data.draw(st.lists(st.integers(0, 4), min_size=len(chosen), max_size=len(chosen)))
    every = [pieces_of(packed, epoch) for epoch in range(5)]
    pieces = packed.pieces(np.array(epochs), np.array(chosen))
    segment, position = pieces.ids(len(chosen), LENGTH)
    for row, (epoch, s) in enumerate(zip(epochs, chosen, strict=True)):
        here = pieces.sequence == row
        assert list(zip(*(c[here].tolist() for c in pieces[2:]), strict=True)) == every[epoch][s]
        sizes = [b - a for _, a, b in every[epoch][s]]
        pad = [0] * (LENGTH - sum(sizes))
        expected = [k + 1 for k, n in enumerate(sizes) for _ in range(n)]
        assert segment[row].tolist() == expected + pad
        assert position[row].tolist() == [i for n in sizes for i in range(n)] + pad


documents = st.lists(st.integers(0, LENGTH), min_size=1, max_size=90).filter(any)
packings = st.builds(
    lambda lengths, split, seed: (FlatTokens if split else WholeDocuments)(
        lengths, LENGTH, seed=seed
    ),
    *(documents, st.booleans(), st.none() | seeds),
)


@given(packings, seeds, changes, st.integers(0, 3))
def test_packing_goes_on_exactly_on_any_sequence_of_worlds(packed, seed, changes, epoch):
    order, every = ShuffledOrder(packed.size, seed), pieces_of(packed, epoch)
    got, left = deliver_on_changing_ranks(order, changes, epoch)
    assert got.tolist() == one(order, epoch)[: len(got)].tolist()
    assert len(got) + left == packed.size
    tokens = Counter((d, i) for s in got.tolist() for d, a, b in every[s] for i in range(a, b))
    lost = sum(b - a for s in one(order, epoch)[len(got) :] for _, a, b in every[s])
    assert max(tokens.values(), default=1) == 1 and len(tokens) + lost == packed.total


@given(packings, seeds)
def test_packing_loses_nothing_on_a_world_that_stays(packed, seed):
    order = ShuffledOrder(packed.size, seed)
    for batch, world in ((2, 1), (2, 2), (3, 2), (2, 3), (2, 4), (3, 5), (4, 7)):
        if packed.size < world:
            continue
        steps, p, got = Steps(packed.size, batch, world, drop_last=False), 0, []
        while (stop := steps.stop(p)) > p:
            ranks = [steps.rank_positions(p, rank) for rank in range(world)]
            assert all(1 <= len(rank) <= batch for rank in ranks)
            got += [s for rank in ranks for s in order.at(0, rank).tolist()]
            p = stop
        assert got == one(order).tolist()


@given(documents, st.booleans(), seeds, st.integers(0, 3))
def test_the_number_of_sequences_is_known_without_packing_them(lengths, split, seed, epoch):
    make, found = FlatTokens if split else WholeDocuments, []
    for dtype in (np.uint8, np.int32, np.float64):
        packed = make(np.array(lengths, dtype), LENGTH, seed=seed)
        found.append(pieces_of(packed, epoch))
        assert all(found[-1]) and len(found[-1]) == packed.size  # none is empty, in any pass
    assert found[0] == found[1] == found[2]


@settings(max_examples=20)
@given(packings, packings, st.integers(1, 5), st.integers(1, 5), seeds, st.data())
def test_packed_members_go_on_exactly_and_are_passed_through_once(a, b, few, many, seed, data):
    def mixture():
        members = [ShuffledOrder(a.size, seed), ShuffledOrder(b.size, seed ^ 1)]
        return MixtureOrder(members, [(0, [few, many]), (20, [many, few])], seed, until=80)

    whole, passes = mixture().at_with_passes(0, np.arange(80))
    place, got = 0, []
    while place < 80:  # nothing but the place is known
        count = min(data.draw(st.integers(1, 40)), 80 - place)
        got += mixture().at(0, np.arange(place, place + count)).tolist()
        place += count
    assert got == whole.tolist()
    for packed, mine, first in ((a, whole < a.size, 0), (b, whole >= a.size, a.size)):
        for own in np.unique(passes[mine]).tolist():
            sequences = whole[mine & (passes == own)] - first
            every = pieces_of(packed, own)
            tokens = Counter(
                (d, i) for s in sequences.tolist() for d, u, v in every[s] for i in range(u, v)
            )
            assert max(tokens.values()) == 1
            if own < passes[mine].max():  # the pass is complete
                assert len(tokens) == packed.total


def test_best_fit_fills_sequences():
    lengths = np.random.default_rng(0).integers(1, 200, 3000)
    packed = WholeDocuments(lengths, 512, window=1000)
    assert lengths.sum() / (packed.size * 512) > 0.99


def test_mixing_sequences_keeps_the_shares_of_tokens_and_mixing_documents_does_not():
    rng, length = np.random.default_rng(0), 128
    lengths = [rng.integers(200, 400, 4000), rng.integers(5, 30, 60_000)]  # long and short ones
    packed = [FlatTokens(n, length) for n in lengths]
    order = MixtureOrder([SequentialOrder(p.size) for p in packed], [(0, [1, 1])], 3)
    member = order.draws(np.arange(order.size))[0]
    assert abs(np.mean(member == 0) - 0.5) < 1 / order.size  # all but one sequence are full
    documents = MixtureOrder([ShuffledOrder(len(n), 1) for n in lengths], [(0, [1, 1])], 3)
    samples = one(documents)
    long, short = lengths[0][samples[samples < 4000]], lengths[1][samples[samples >= 4000] - 4000]
    assert long.sum() / (long.sum() + short.sum()) > 0.9  # half of the documents


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(PlanError, match="split=True"):
        WholeDocuments([3, 9], 8)
    for packed in (FlatTokens, WholeDocuments):
        with pytest.raises(PlanError, match="nothing to pack"):
            packed([0, 0], 8)
        with pytest.raises(PlanError, match="lengths"):
            packed([[1], [2]], 8)
