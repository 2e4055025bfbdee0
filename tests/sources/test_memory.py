"""Arrays and tensors in memory."""

import numpy as np
import pytest
import torch

from penstock.errors import SourceError
from penstock.sources import MemorySource
from penstock.testing.source_contract import SourceContract


class TestOneArray(SourceContract):
    data = np.random.default_rng(0).standard_normal((1000, 3, 2)).astype("f4")

    def make_source(self):
        return MemorySource(self.data)

    def expected(self):
        return {"": self.data}


class TestNamedTensors(SourceContract):
    x = torch.arange(600).reshape(300, 2)
    y = torch.linspace(0, 1, 300, dtype=torch.float64)

    def make_source(self):
        return MemorySource({"x": self.x, "y": self.y})

    def expected(self):
        return {"x": self.x.numpy(), "y": self.y.numpy()}


class TestBigEndianIsConverted(SourceContract):
    data = np.arange(50, dtype=">i4")

    def make_source(self):
        return MemorySource(self.data)

    def expected(self):
        return {"": self.data.astype("<i4")}


class TestNoSamples(SourceContract):
    def make_source(self):
        return MemorySource(np.empty((0, 3)))

    def expected(self):
        return {"": np.empty((0, 3))}


def test_a_changed_value_changes_the_fingerprint():
    data = np.arange(100)
    before = MemorySource(data).fingerprint()
    data[50] += 1
    assert MemorySource(data).fingerprint() != before


def test_views_share_memory_with_the_array():
    data = np.arange(10)
    assert np.shares_memory(MemorySource(data).view(2, 5)[""], data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "at least one array"),
        (np.array(3), "first axis"),
        (np.array(["a", None], dtype=object), "fixed-size"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "same length"),
        (torch.zeros(3, dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(3, device="meta"), "cpu"),
    ],
)
def test_what_cannot_be_a_source_is_refused_in_a_sentence(data, says):
    with pytest.raises(SourceError, match=says):
        MemorySource(data)
