from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from penstock.collate import CollateError, DefaultCollator

Pair = namedtuple("Pair", "x y")
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from([np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64, bool])


def array_of(shape, dtype, number):
    return np.full(shape, number % 2 if dtype is bool else number, dtype)


leaves = st.one_of(
    st.tuples(st.just("array"), shapes, dtypes),
    st.tuples(st.just("tensor"), shapes, dtypes),
    st.sampled_from([("int",), ("float",), ("bool",), ("str",), ("bytes",)]),
    st.tuples(st.just("scalar"), dtypes),
)
layouts = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("dict"), st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("list"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("pair"), inner, inner),
    ),
    max_leaves=6,
)


def sample_of(layout, number):
    kind, *rest = layout
    match kind:
        case "array":
            return array_of(*rest, number)
        case "tensor":
            return torch.from_numpy(array_of(*rest, number))
        case "scalar":
            return rest[0](number % 2) if rest[0] is not bool else np.bool_(number % 2)
        case "dict":
            return {key: sample_of(each, number) for key, each in rest[0].items()}
        case "tuple":
            return tuple(sample_of(each, number) for each in rest[0])
        case "list":
            return [sample_of(each, number) for each in rest[0]]
        case "pair":
            return Pair(*(sample_of(each, number) for each in rest))
    return {
        "int": number,
        "float": number / 3,
        "bool": number > 1,
        "str": str(number),
        "bytes": bytes(number),
    }[kind]


def same(ours, theirs):
    if isinstance(ours, list) and ours and isinstance(ours[0], str | bytes):
        theirs = list(theirs)  # torch: a list of strings, or a tuple of them inside of a tuple
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert ours == theirs


@settings(deadline=None, max_examples=100)
@given(layouts, st.integers(1, 4))
def test_batches_are_those_of_torch(layout, count):
    samples = [sample_of(layout, number) for number in range(count)]
    same(DefaultCollator()(samples), default_collate(samples))


def test_a_batch_of_many_bytes_is_the_same_too():
    samples = [torch.full((3, 224, 224), i / 7) for i in range(16)]
    assert torch.equal(DefaultCollator()(samples), default_collate(samples))


def test_gradients_and_mixed_dtypes_pass_through():
    large = [torch.ones(1 << 20, requires_grad=True), torch.ones(1 << 20)]
    assert DefaultCollator()(large).requires_grad
    mixed = [torch.ones(1 << 20), torch.ones(1 << 20, dtype=torch.float64)]
    same(DefaultCollator()(mixed), default_collate(mixed))


@pytest.mark.parametrize(
    "samples",
    [[1, 2.5], [2.5, 1], [True, 2], [2, True], [np.float64(1), 2.0], [True, False]],
)
def test_numbers_of_several_kinds_become_what_torch_makes_of_them(samples):
    same(DefaultCollator()(samples), default_collate(samples))


def test_the_batch_is_the_callers_own():
    samples = [np.zeros(3), np.ones(3)]
    DefaultCollator()(samples)[0] = 9
    assert samples[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty batch"),
        (None, "samples must be a list of samples, got None"),
        ({"x": torch.ones(2)}, "samples must be a list of samples, got a dict"),
        ([None], "sample 0 is None"),
        ([1, None], "sample 1 is None"),
        ([1.5, None], "sample 1 is None"),
        (["a", None], "sample 1 is None"),
        ([{"a": {"b": 1}}, {"a": {"b": None}}], "sample 1, 'a.b', is None"),
        ([(torch.ones(2), None)], "sample 0, '1', is None"),
        ([{"x": torch.ones(2)}, {"x": None}], "sample 1, 'x', is None"),
        ([{"x": torch.ones(2)}, {"x": torch.ones(3)}], r"sample 1, 'x', .*\(3,\).*\(2,\)"),
        ([{"x": np.ones(2)}, {"x": np.ones(3)}, {"x": np.ones(1)}], r"sample 1, 'x', .*\(3,\)"),
        ([{"x": [1, 2]}, {"x": [1]}], "sample 1, 'x', is a list of 1, sample 0 has a list of 2"),
        ([{"x": 1}, {"y": 1}], "sample 0 has the field 'x', sample 1 does not"),
        ([{"x": 1}, {"x": 1, "y": 1}], "sample 1 has the field 'y', sample 0 does not"),
        ([{"a": {"x": 1}}, {"a": {}}], "sample 0 has the field 'a.x', sample 1 does not"),
        ([{"x": 1}, 2], "sample 1 is an int"),
        ([{"x": 1.5}, {"x": "a"}], "sample 1, 'x', is a str, sample 0 has a float"),
        ([{"x": 1}, {"x": "a"}], "sample 1, 'x', is a str, sample 0 has an int"),
        ([{"x": 1.5}, {"x": "2.5"}], "sample 1, 'x', is a str, sample 0 has a float"),
        ([{"x": 1}, {"x": [1]}], "sample 1, 'x', is a list of 1, sample 0 has an int"),
        ([{"x": {1, 2}}], "sample 0, 'x', is a set"),
        ([{"x": np.array(["a"])}], "sample 0, 'x', is an array of <U1"),
    ],
)
def test_what_cannot_be_batched_is_refused_by_sample_and_field(samples, message):
    with pytest.raises(CollateError, match=message):
        DefaultCollator()(samples)
