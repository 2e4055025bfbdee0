"""Sampled checks keep to their share of the time, and pass the batches on unchanged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.checks import BatchSchema, Checked, TensorSpec, checked
from penstock.errors import BatchError

SCHEMA = BatchSchema({"": TensorSpec(("batch",), torch.float32)})


class Clock:
    """Time that passes when told to: between batches, and for each check."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(BatchSchema):
    """A schema whose check takes its time."""

    def __init__(self, clock: Clock, costs: list[float]) -> None:
        super().__init__(SCHEMA.fields)
        object.__setattr__(self, "clock", clock)
        object.__setattr__(self, "costs", iter(costs))

    def check(self, batch: object) -> None:
        self.clock.now += next(self.costs)


@given(
    st.lists(st.floats(1e-4, 10), min_size=2, max_size=200),
    st.floats(1e-4, 1),
    st.floats(0.001, 0.5),
)
def test_checks_never_take_more_than_their_share_and_the_first_one(steps, cost, share):
    clock = Clock()
    watched = Checked([], Slow(clock, [cost] * len(steps)), share=share, clock=clock)
    for step in steps:
        clock.now += step
        watched.look(torch.zeros(1))
    assert watched.checks >= 1
    assert watched.spent_seconds <= share * clock.now + cost + 1e-9


def test_a_long_run_does_use_its_share():
    clock = Clock()
    watched = Checked([], Slow(clock, [0.5] * 1000), share=0.01, clock=clock)
    for _ in range(1000):
        clock.now += 1
        watched.look(torch.zeros(1))
    assert 18 <= watched.checks <= 21  # of 0.5 s each, in a hundredth of 1000 s


def test_batches_pass_through_as_they_are_and_again():
    batches = [torch.zeros(2), torch.ones(3)]
    watched = checked(batches, SCHEMA)
    assert len(watched) == 2
    for _ in range(2):
        assert all(a is b for a, b in zip(watched, batches, strict=True))


def test_a_bad_first_batch_and_with_share_one_any_batch_is_refused():
    bad = [torch.tensor([float("nan")])]
    with pytest.raises(BatchError, match="NaN detected"):
        list(checked(bad, SCHEMA))
    with pytest.raises(BatchError, match="NaN detected"):
        list(checked([torch.zeros(1)] * 50 + bad, SCHEMA, share=1))


def test_a_share_beyond_the_whole_is_refused():
    with pytest.raises(ValueError, match="share must be at most 1"):
        checked([], SCHEMA, share=2)
