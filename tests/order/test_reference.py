"""The specification as code: the library gives the same integers, wherever it fixes them.

The reference is not part of the repository. Where it lies beside the checkout (or where
``PENSTOCK_REFERENCE`` points to), it is run and compared; elsewhere these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.order import BlockOrder, Cursor, Plan, ShuffledOrder, Skips, Steps
from penstock.order.block_rounds import BlockLines
from penstock.order.length_batches import LaneBatches, LengthBatches, LengthSteps
from penstock.order.mixture import MixtureOrder, shortest_counts
from penstock.order.orders import EqualWindows
from penstock.order.packing import FlatTokens, Pieces, WholeDocuments, best_fit
from penstock.order.permutation import Permutation, derive_key
from penstock.order.subset import Bitmap, SelectedBlocks
from penstock.order.weighted import COPY, Reweighted, WeightedBlocks, WeightedOrder, fixed_point
from tests.order.composed import feasible, one, seeds

BESIDE = Path(__file__).parents[3] / "shared" / "design" / "reference"
REFERENCE = Path(os.environ.get("PENSTOCK_REFERENCE", BESIDE))
if not (REFERENCE / "compose_ref.py").exists():
    pytest.skip(f"the reference is not in {REFERENCE}", allow_module_level=True)


def load():
    spec = importlib.util.spec_from_file_location("compose_ref", REFERENCE / "compose_ref.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["compose_ref"] = module  # its dataclasses look it up
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


ref = load()
few = settings(max_examples=10)
epochs, small = st.integers(0, 5), st.integers(1, 5)
weights_ = st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any)
floats = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=60).filter(any)
lengths_ = st.lists(st.integers(1, 30), min_size=8, max_size=90)


def same(ours, theirs):
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@few
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
def test_counts(weights):
    assert shortest_counts(weights, 0.05, 20_000) == ref.shortest_counts(weights, 0.05, 20_000)


@few
@given(seeds, st.integers(1, 4), st.integers(1, 150), epochs, st.data())
def test_mixtures(seed, lanes, until, epoch, data):
    k, stages, place = data.draw(st.integers(1, 4)), [], 0
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=k, max_size=k))
    for _ in range(data.draw(st.integers(1, 3))):
        counts = data.draw(st.lists(st.integers(0, 6), min_size=k, max_size=k).filter(any))
        stages.append((place, counts))
        place += data.draw(st.integers(1, 80))
    members = [ShuffledOrder(n, seed ^ i) for i, n in enumerate(sizes)]
    ours = MixtureOrder(members, stages, seed, lanes, until)
    theirs = ref.Mixture(members, stages, seed, lanes, until)
    positions = np.arange(until)
    samples, passes = ours.at_with_passes(epoch, positions)
    same(samples, theirs.at(epoch, positions))
    same(passes, theirs.passes(epoch, positions))
    for sample in range(0, ours.samples, 5):
        found = ours.positions_of(epoch, sample)
        here = np.flatnonzero(samples == sample)
        same(found, here)
        same(
            epoch * until + here, np.sort(theirs.place_of(np.full(len(here), sample), passes[here]))
        )
    assert ours.stages == [list(stage) for stage in theirs.stages]
    for lane in range(lanes):
        same(ours.drawn(until // lanes, lane), theirs.drawn(until // lanes, lane))
    for name in ("first", "all"):
        assert (
            MixtureOrder(members, [(0, [1] * k)], seed, lanes, name).size
            == ref.Mixture(members, [(0, [1] * k)], seed, lanes, name).size
        )


@few
@given(st.one_of(weights_, floats), st.integers(1, 300), seeds, epochs, small, small, small)
def test_weights(weights, places, seed, epoch, block, window, lanes):
    ours, theirs = (make(np.array(weights), places, seed) for make in (WeightedOrder, ref.Weighted))
    same(fixed_point(np.array(weights)), ref.fixed_point(np.array(weights)))
    assert ours.digest == theirs.digest
    same(one(ours, epoch), one(theirs, epoch))
    # a pass is the epoch for the first copy, so that one pass per epoch augments as ever
    copies = theirs.passes(epoch, np.arange(places))
    same(ours.passes(epoch, np.arange(places)), epoch + COPY * copies)
    for sample in range(len(weights)):
        same(ours.positions_of(epoch, sample), np.sort(theirs.positions_of(epoch, sample)))
    # the same blocks in the same lanes; rounds of equal size, so another shuffle within them
    blocks = WeightedBlocks(Reweighted([(0, ours)]), block, window, lanes)
    expected = ref.WeightedBlocks(theirs, block, window, lanes)
    for lane in range(lanes):
        pair = (one(order, epoch)[lane::lanes] for order in (blocks, expected))
        same(*(np.sort(each) for each in pair))
    changed = Reweighted([(0, ours), (2, ours)])
    expected = ref.Reweighted([(0, theirs), (2, theirs)])
    same(one(changed, epoch), one(expected, epoch))
    assert changed.identity()["weights"] == expected.identity()["weights"]


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=90).filter(any), seeds, epochs, small)
def test_lines_of_blocks(counts, seed, epoch, lanes):
    ours, theirs = BlockLines(counts, seed, lanes), ref.RaggedBlockOrder(counts, seed, 1, lanes)
    first = np.concatenate([[0], np.cumsum(counts)])
    for lane in range(lanes):  # a window of one block is the block, shuffled
        items = [one(order, epoch)[lane::lanes] for order in (ours, theirs)]
        same(*(np.searchsorted(first, each, side="right") for each in items))
        same(*(np.sort(each) for each in items))


@few
@given(st.lists(st.booleans(), min_size=1, max_size=1300).filter(any), seeds, epochs, small, small)
def test_subsets(mask, seed, epoch, block, lanes):
    ours, theirs = Bitmap(np.array(mask)), ref.Bitmap(np.array(mask))
    same(ours.bits, theirs.bits)
    same(ours.rank(np.arange(len(mask) + 1)), theirs.rank(np.arange(len(mask) + 1)))
    same(ours.select(np.arange(ours.count)), theirs.select(np.arange(ours.count)))
    # one window of all blocks: the same samples at the same positions
    order = SelectedBlocks(ours, seed, block, len(mask), lanes)
    ragged = ref.RaggedBlockOrder(theirs.block_counts(block), seed, len(mask), lanes)
    same(ours.select(one(order, epoch)), one(ref.Subset(theirs, ragged), epoch))
    # windows of some blocks: the same blocks in the same lanes
    pair = [
        SelectedBlocks(ours, seed, block, 2, lanes),
        ref.RaggedBlockOrder(theirs.block_counts(block), seed, 2, lanes),
    ]
    for lane in range(lanes):
        same(*(np.sort(one(each, epoch)[lane::lanes]) for each in pair))


@settings(max_examples=4)  # the reference looks through three epochs for every sample
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 80), st.integers(0, 60)).map(
            lambda hole: (hole[0], hole[1], hole[1] + hole[2])
        ),
        max_size=5,
    ),
    st.integers(20, 60),
    seeds,
    *(st.integers(a, b) for a, b in ((2, 6), (1, 4), (1, 4))),
    st.booleans(),
)
def test_skips_and_when(holes, size, seed, batch, world, lanes, drop):
    assume(feasible(size, batch, world, drop))
    order, skips = BlockOrder(size, seed, 5, 2, lanes), Skips(holes)
    theirs = ref.SkippingPlan(order, batch, world, drop, skips=ref.Skips(holes))
    assert [list(each) for each in skips.ranges] == theirs.skips.ranges
    steps = Steps(size, batch, world, lanes, drop)
    plans = [Plan(order, steps, rank).skipping(skips) for rank in range(world)]
    cursor, expected = Cursor().normal(plans[0].steps), theirs.normal(0, 0)
    for _ in range(30):
        at = skips.to_order(cursor)
        assert (at.epoch, at.position) == expected
        for rank, plan in enumerate(plans):
            same(plan.samples(cursor), theirs.samples(*expected, rank))
        cursor, expected = cursor.advance(plans[0].steps), theirs.advance(*expected)
    for sample in range(size):
        ours = [each for epoch in range(3) for each in plans[0].when(epoch, sample)]
        found = ref.when(theirs, sample, range(3))
        assert [(o.epoch, o.position, o.step, o.rank, o.row) for o in ours] == [
            (o.epoch, o.position, o.step, o.rank, o.row) for o in found
        ]


@few
@given(lengths_, seeds, epochs, small, st.integers(4, 60), st.sampled_from([60, 90, None]), small)
def test_length_batches(lengths, seed, epoch, group, window, budget, world):
    order, cut = ShuffledOrder(len(lengths), seed), {"budget": budget, "group": group}
    cut["count"] = 4 if budget is None else None
    ours = LengthBatches(order, lengths, window, **cut)
    theirs = ref.LengthBatches(order, lengths, window, seed, **cut)
    same(one(ours, epoch), one(theirs, epoch))
    assert ours.batches(epoch, 0, ours.size) == theirs.batches(epoch, 0, theirs.size)
    same(np.diff(ours.first_batches(epoch)), theirs.batch_counts(epoch))
    for drop in (False, True):
        steps = LengthSteps(ours.size, 1, world, 1, drop, batches=ours).of(epoch)
        p = 0
        while step := theirs.step(epoch, p, world, drop):
            assert steps.stop(p) == step[-1][1]
            assert [
                (a[0], a[-1] + 1) for a in (steps.rank_positions(p, r) for r in range(world))
            ] == step
            p = step[-1][1]
        assert steps.stop(p) == p


@few
@given(lengths_, seeds, epochs, small, st.integers(4, 60), small, small)
def test_batches_of_lanes(lengths, seed, epoch, block, window, lanes, world):
    lengths = lengths[: len(lengths) // lanes * lanes]
    order = BlockOrder(len(lengths), seed, block, 2, lanes)
    ours = LaneBatches(order, lengths, window, budget=60)
    theirs = ref.LaneBatches(order, lengths, window, seed, budget=60)
    same(one(ours, epoch), one(theirs, epoch))
    assert ours.batches(epoch, 0, ours.size) == theirs.batches(epoch, 0, theirs.size)
    same(np.diff(ours.first_batches(epoch)), theirs.batch_counts(epoch))


def rows_of(pieces, sequence):
    here = pieces.sequence == sequence
    return list(zip(*(column[here].tolist() for column in pieces[2:]), strict=True))


@few
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any),
    st.integers(1, 64),
    seeds,
    epochs,
)
def test_packing(lengths, length, seed, epoch):
    ours, theirs = FlatTokens(lengths, length, seed), ref.FlatTokens(lengths, length, seed)
    assert ours.size == theirs.size
    pieces = ours.pieces(epoch, np.arange(ours.size))
    segment, position = pieces.ids(ours.size, length)
    for s in range(ours.size):
        assert rows_of(pieces, s) == theirs.pieces(epoch, s)
        ids = ref.token_ids(theirs.pieces(epoch, s), length)
        same(segment[s], ids[0])
        same(position[s], ids[1])
    # without a seed: documents end to end, cut from the first token on
    plain, cut = (
        FlatTokens(lengths, length),
        ref.concatenate_and_cut(np.arange(len(lengths)), np.array(lengths), length),
    )
    pieces = plain.pieces(0, np.arange(plain.size))
    assert [rows_of(pieces, s) for s in range(plain.size)] == [cut.of(s) for s in range(plain.size)]


@few
@given(st.lists(st.integers(1, 32), min_size=1, max_size=90), st.integers(3, 40))
def test_whole_documents(lengths, window):
    lengths = np.array(lengths)
    ours, begin = WholeDocuments(lengths, 32, window), 0
    pieces: Pieces = ours.pieces(0, np.arange(ours.size))
    spans = ref.Windows(len(lengths), window)
    for w in range(spans.count):
        documents = np.arange(spans.start(w), spans.start(w + 1))
        packed = ref.best_fit(documents, lengths[documents], 32)
        expected = [packed.of(s) for s in range(len(packed.ends))]
        assert [rows_of(pieces, begin + s) for s in range(len(expected))] == expected
        found = best_fit(lengths[documents], 32)
        assert [[d for d, _, _ in s] for s in expected] == [documents[s].tolist() for s in found]
        begin += len(expected)
    assert begin == ours.size


@few
@given(
    st.lists(st.integers(1, 32), min_size=1, max_size=90),
    st.integers(3, 40),
    seeds,
    epochs,
    st.booleans(),
)
def test_windows_of_a_shuffle_of_documents(lengths, window, seed, epoch, split):
    """The parts of the library make up `Packed`, window by window."""
    lengths, order = np.array(lengths), ShuffledOrder(len(lengths), seed)
    theirs = ref.Packed(order, lengths, 32, window, seed, split=split)
    windows = EqualWindows(len(lengths), window)
    assert windows.count == theirs.spans.count
    for w in range(windows.count):
        documents = order.at(epoch, windows.positions(w))
        ours = (FlatTokens if split else WholeDocuments)(lengths[documents], 32)
        key = derive_key(seed, "sequences", epoch, w)
        pieces = ours.pieces(epoch, Permutation(ours.size, key)(np.arange(ours.size)))
        pieces = pieces._replace(document=documents[pieces.document])
        plan = theirs.plan(epoch, w)
        assert [rows_of(pieces, s) for s in range(ours.size)] == [
            plan.of(s) for s in range(len(plan.ends))
        ]


@pytest.mark.proof
def test_the_laws_of_the_reference_hold_on_the_permutations_and_steps_of_the_library():
    """The reference builds on the library's permutations, orders and steps."""
    source = Path(sys.modules["penstock"].__file__).parents[1]
    done = subprocess.run(
        [
            *(sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            str(REFERENCE / "test_compose_ref.py"),
        ],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{REFERENCE}", "EX": "25"},
        cwd=REFERENCE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "54 passed" in done.stdout, done.stdout[-3000:]
