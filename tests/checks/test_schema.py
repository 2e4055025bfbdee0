"""Batch schemas say what is wrong, where, and change nothing."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import checks
from penstock.checks import BatchSchema, TensorSpec
from penstock.errors import BatchError

SCHEMA = BatchSchema(
    {
        "x": TensorSpec(("batch", "features"), torch.float32, low=-1, high=1),
        "y": TensorSpec(("batch",), torch.int64, labels=frozenset({0, 1, 2})),
    }
)


def batch() -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(4, 3), "y": torch.tensor([0, 1, 2, 0])}


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.data(),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 2.0, -1.5]),
)
def test_any_single_bad_value_is_found_at_its_row(rows, columns, data, bad):
    x = torch.zeros(rows, columns)
    row = data.draw(st.integers(0, rows - 1))
    x[row, data.draw(st.integers(0, columns - 1))] = bad
    found = SCHEMA.faults({"x": x, "y": torch.zeros(rows, dtype=torch.int64)})
    assert len(found) == 1 and f"row {row}" in found[0] and " x" in f" {found[0]}"


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_a_named_dimension_is_equal_wherever_it_appears(rows, columns, labels):
    found = SCHEMA.faults({"x": torch.zeros(rows, columns), "y": torch.zeros(labels).long()})
    assert bool(found) == (rows != labels)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x", torch.zeros(4, 3).double(), "x must be float32, found float64"),
        ("x", torch.zeros(4), r"x must have shape \(batch, features\), found \(4,\)"),
        ("x", torch.full((4, 3), float("nan")), "NaN detected in x"),
        ("x", torch.full((4, 3), float("inf")), "Inf detected in x"),
        ("x", torch.full((4, 3), 3.0), r"x out of range \[-1, 1\]: 3.0 at row 0"),
        ("y", torch.tensor([0, 1, 2, 9]), r"y out of range: 9 at row 3 is not one of \[0, 1, 2\]"),
        ("y", [0, 1], "y must be a tensor, found list"),
    ],
)
def test_each_fault_has_its_sentence(field, value, message):
    with pytest.raises(BatchError, match=message):
        SCHEMA.check(batch() | {field: value})
    assert issubclass(BatchError, AssertionError)


@pytest.mark.parametrize(
    "convert",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
        lambda x: x.to(torch.float8_e5m2),
        lambda x: x.to(torch.bfloat16),
        lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_values_of_every_layout_and_dtype_are_checked(convert):
    x = torch.eye(3)
    assert TensorSpec(low=0, high=1).faults("x", convert(x)) == []
    x[1, 1] = 4
    (found,) = TensorSpec(low=0, high=1).faults("x", convert(x))
    assert "out of range [0, 1]: 4.0" in found


def test_booleans_have_labels():
    assert TensorSpec(labels=frozenset({0, 1})).faults("x", torch.tensor([True, False])) == []
    assert TensorSpec(labels=frozenset({0})).faults("x", torch.tensor([True, False]))


def test_missing_and_further_fields_are_named():
    with pytest.raises(BatchError, match="y is missing"):
        SCHEMA.check({"x": torch.zeros(4, 3)})
    exact = BatchSchema(SCHEMA.fields, exact=True)
    SCHEMA.check(batch() | {"z": torch.zeros(1)})
    with pytest.raises(BatchError, match=r"unexpected fields: \['z'\]"):
        exact.check(batch() | {"z": torch.zeros(1)})


def test_sizes_given_hold_for_named_dimensions():
    schema = BatchSchema(SCHEMA.fields, sizes={"features": 8})
    with pytest.raises(BatchError, match=r"\(batch, features=8\), found \(4, 3\)"):
        schema.check(batch())


def test_tuples_and_lone_tensors_have_fields_too():
    BatchSchema({"0": TensorSpec((2,)), "1": TensorSpec((3,))}).check(
        (torch.zeros(2), torch.ones(3))
    )
    with pytest.raises(BatchError, match="NaN detected"):
        BatchSchema({"": TensorSpec()}).check(torch.tensor([float("nan")]))


def test_a_check_draws_no_random_number_and_leaves_the_batch_alone():
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    given = batch()
    copies = {name: value.clone() for name, value in given.items()}
    SCHEMA.check(given)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert all(torch.equal(given[name], copies[name]) for name in given)


def test_checks_stand_without_asserts():
    """With ``python -O`` the compiler leaves out assert statements."""
    source = Path(checks.__file__).read_text()
    optimized = ModuleType("optimized_schema")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, optimized.__name__, optimized)  # dataclasses look it up
        exec(compile(source, checks.__file__, "exec", optimize=1), vars(optimized))
        checked = optimized.BatchSchema({"": optimized.TensorSpec()})
        with pytest.raises(AssertionError, match="NaN detected"):
            checked.check(torch.tensor([float("nan")]))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (torch.tensor([1.0, float("nan")]), "NaN detected in the batch: nan at row 1"),
        (torch.tensor(float("nan")), "NaN detected in the batch: nan"),
        ([1, 2], "a single tensor is missing: the batch has ['0', '1']"),
    ],
)
def test_a_batch_without_a_name_is_called_the_batch(batch, said):
    assert BatchSchema({"": TensorSpec()}).faults(batch) == [said]
