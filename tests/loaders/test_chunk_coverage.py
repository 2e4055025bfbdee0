"""Coverage of any number of passes: exact where that is cheap, bounded work where it is not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.loaders import chunk_report
from penstock.loaders.chunk_report import MOST_LOOKUPS, MOST_SAMPLES, coverage_of
from penstock.order import BlockOrder, Cursor, Plan, SequentialOrder, ShuffledOrder, Steps

PASSES = 10**7


class Counted:
    """An order that counts what is looked up in it; ``still``: every epoch is the first."""

    def __init__(self, order, *, still=False):
        self.order, self.still, self.lookups = order, still, 0
        self.kind, self.size, self.seed, self.lanes = "mine", order.size, order.seed, order.lanes
        self.identity = order.identity

    def _asked(self, epoch, places):
        self.lookups += len(places) + chunk_report.LOOKUPS_OF_A_CALL
        return 0 if self.still else epoch

    def at(self, epoch, positions):
        return self.order.at(self._asked(epoch, positions), positions)

    def position_of(self, epoch, samples):
        return self.order.position_of(self._asked(epoch, samples), samples)


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize(
    ("size", "batch", "limit"), [(1003, 10, None), (1003, 10, 1), (10**9, 8, 100), (10**6, 1, 1)]
)
@pytest.mark.parametrize("passes", [PASSES, 2**61])
def test_any_number_of_passes_costs_a_bounded_number_of_lookups(
    monkeypatch, size, batch, limit, passes, still
):
    monkeypatch.setattr(chunk_report, "MOST_LOOKUPS", MOST_LOOKUPS >> 5)
    monkeypatch.setattr(chunk_report, "MOST_SAMPLES", MOST_SAMPLES >> 5)
    order = Counted(ShuffledOrder(size, 1), still=still)
    share = coverage_of(
        Plan(order, Steps(size, batch, limit=limit), 0), [(Cursor(), Cursor(passes, 0))]
    )
    assert 0 < share <= 1
    assert order.lookups <= (MOST_LOOKUPS + 2 * MOST_SAMPLES) >> 5


def test_the_bound_holds_for_a_billion_samples():
    order = Counted(ShuffledOrder(10**9, 1), still=False)
    assert (
        0
        < coverage_of(Plan(order, Steps(10**9, 8, limit=100), 0), [(Cursor(), Cursor(2**61))])
        <= 1
    )
    assert order.lookups <= MOST_LOOKUPS + 2 * MOST_SAMPLES


def test_the_same_samples_each_time_are_no_more_for_being_read_again():
    plan = Plan(SequentialOrder(1003), Steps(1003, 10), 0)
    assert coverage_of(plan, [(Cursor(), Cursor(PASSES, 20))]) == 1000 / 1003
    stretches = [(Cursor(0, 500), Cursor(0, 700)), (Cursor(3, 600), Cursor(3, 900))]
    assert coverage_of(plan, stretches) == 400 / 1003


@settings(max_examples=20)
@given(st.integers(0, 3), st.integers(1, 9), st.sampled_from(["shuffled", "block"]))
def test_an_estimate_is_near_what_a_count_finds(seed, passes, kind):
    size = 4000
    order = (
        ShuffledOrder(size, seed)
        if kind == "shuffled"
        else BlockOrder(size, seed=seed, block=4, window=50)
    )
    plan = Plan(order, Steps(size, 10, limit=60), 0)
    exact = coverage_of(plan, [(Cursor(), Cursor(passes, 0))])
    seen = {int(each) for epoch in range(passes) for each in order.at(epoch, np.arange(600))}
    assert exact == len(seen) / size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_report, "MOST_LOOKUPS", 1500)
        patch.setattr(chunk_report, "MOST_SAMPLES", 1000)
        assert coverage_of(plan, [(Cursor(), Cursor(passes, 0))]) == pytest.approx(exact, abs=0.05)
