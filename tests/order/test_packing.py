"""Laws of packing: every token once, documents whole where asked, shares of tokens kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.order import SequentialOrder, ShuffledOrder
from penstock.order.mixture import MixtureOrder
from penstock.order.packing import FlatTokens, WholeDocuments
from tests.order.composed import one, seeds

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
