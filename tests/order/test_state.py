"""State: small, flat, JSON-able; what does not fit is refused in one clear sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import StateError
from penstock.order import BlockOrder, Cursor, SequentialOrder, ShuffledOrder
from penstock.order.state import check_data, check_format, check_identity, cursor_of, to_state

HERE = Cursor(3, 480)
OURS = ShuffledOrder(1000, 7)


@given(st.integers(0, 2**40), st.integers(0, 2**62), st.integers(0, 2**64 - 1))
def test_a_state_survives_json(epoch, position, seed):
    cursor, order = Cursor(epoch, position), ShuffledOrder(2**62, seed)
    state = json.loads(json.dumps(to_state(cursor, order, "abc")))
    assert state == to_state(cursor, order, "abc")
    check_format(state)
    check_identity(state, order)
    assert cursor_of(state) == cursor


def test_a_state_is_flat_and_holds_no_ranks_workers_or_batch_size():
    block = to_state(HERE, BlockOrder(1000, 7, 10, 4, 2), "abc")
    assert block == {
        "format": "penstock/1",
        "epoch": 3,
        "position": 480,
        "order": "block",
        "samples": 1000,
        "seed": 7,
        "block": 10,
        "window": 4,
        "lanes": 2,
        "fingerprint": "abc",
    }
    assert list(to_state(HERE, OURS)) == ["format", "epoch", "position", "order", "samples", "seed"]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (ShuffledOrder(1000, 8), "belongs to seed 7, this loader has seed 8: .* same seed"),
        (ShuffledOrder(1200, 7), "belongs to 1,000 samples, this loader has 1,200 samples: the d"),
        (SequentialOrder(1000, 7), "belongs to 'shuffled' order, this loader has 'sequential' ord"),
        (BlockOrder(1000, 7, 10, 4), "no block, no window, no lanes, .* blocks of 10 samples"),
    ],
)
def test_the_state_of_another_order_is_refused_saying_what_differs(order, words):
    with pytest.raises(StateError, match=words) as refused:
        check_identity(to_state(HERE, OURS), order)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": "penstock/9"}, "format 'penstock/9', this release reads 'penstock/1': load"),
        ({"format": None}, "not a loader state: it has no 'format' field"),
        (
            {"skipped": [[3, 9]]},
            r"skipped must be a list of .epoch, start, stop., .* got ..3, 9..",
        ),
    ],
)
def test_the_state_of_another_release_is_refused(changed, words):
    with pytest.raises(StateError, match=words):
        check_format(to_state(HERE, OURS) | changed)


@pytest.mark.parametrize("not_a_state", [None, [], "state", {}, {"a": "b" * 200}])
def test_what_is_not_a_state_is_refused(not_a_state):
    with pytest.raises(StateError, match="not a loader state") as refused:
        check_format(not_a_state)
    assert len(str(refused.value)) < 240


@pytest.mark.parametrize("field", ["epoch", "position", "samples"])
@pytest.mark.parametrize("value", [-1, 1.5, None, "3", True])
def test_a_place_that_cannot_be_is_refused(field, value):
    with pytest.raises(StateError, match=f"the state's {field} must be (an integer|at least)"):
        cursor_of(to_state(HERE, OURS) | {field: value})


def test_a_position_past_the_end_is_refused():
    with pytest.raises(StateError, match="position 1,001 is past its 1,000 samples"):
        cursor_of(to_state(Cursor(0, 1001), OURS))


def test_other_data_is_refused_where_both_sides_know_theirs():
    state = to_state(HERE, OURS, "abc")
    check_data(state, "abc")
    check_data(state, None)
    check_data(to_state(HERE, OURS), "abc")
    with pytest.raises(StateError, match=r"the data changed .*'abc', now 'xyz'.*allow_changed"):
        check_data(state, "xyz")
