"""Sources made of sources."""

import numpy as np
import pytest

from penstock.errors import PlanError, SourceError
from penstock.sources import (
    ConcatenatedSource,
    MemorySource,
    NpySource,
    RangeSource,
    ZippedSource,
)
from penstock.testing.source_contract import SourceContract

X = np.random.default_rng(0).standard_normal((300, 4)).astype("f4")
Y = np.arange(300)


class TestConcatenated(SourceContract):
    def make_source(self):
        parts = [slice(0, 100), slice(100, 100), slice(100, 101), slice(101, 300)]
        return ConcatenatedSource([MemorySource({"x": X[p], "y": Y[p]}) for p in parts])

    def expected(self):
        return {"x": X, "y": Y}


class TestZipped(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "x.npy"
        np.save(self.path, X)

    def make_source(self):
        return ZippedSource({"x": NpySource(self.path), "rest": MemorySource({"y": Y, "z": X})})

    def expected(self):
        return {"x": X, "y": Y, "z": X}


class TestRange(SourceContract):
    def make_source(self):
        return RangeSource(MemorySource({"x": X, "y": Y}), 37, 251)

    def expected(self):
        return {"x": X[37:251], "y": Y[37:251]}


class TestRangeOfConcatenatedZips(SourceContract):
    def make_source(self):
        zipped = ZippedSource({"x": MemorySource(X), "y": MemorySource(Y)})
        return RangeSource(ConcatenatedSource([zipped, zipped]), 250, 420)

    def expected(self):
        return {"x": np.concatenate([X, X])[250:420], "y": np.concatenate([Y, Y])[250:420]}


def test_a_view_within_one_source_needs_no_copy():
    both = ConcatenatedSource([MemorySource(X), MemorySource(X.copy())])
    assert np.shares_memory(both.view(10, 20)[""], X)
    assert both.view(290, 310) is None


def test_fingerprints_know_order_names_and_range():
    a, b = MemorySource(X), MemorySource(-X)
    prints = {
        ConcatenatedSource([a, b]).fingerprint(),
        ConcatenatedSource([b, a]).fingerprint(),
        ZippedSource({"p": a, "q": b}).fingerprint(),
        ZippedSource({"q": a, "p": b}).fingerprint(),
        RangeSource(a, 0, 10).fingerprint(),
        RangeSource(a, 10, 20).fingerprint(),
    }
    assert len(prints) == 6


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(SourceError, match="at least one"):
        ConcatenatedSource([])
    with pytest.raises(SourceError, match="source 1 has fields"):
        ConcatenatedSource([MemorySource(X), MemorySource(Y)])
    with pytest.raises(SourceError, match="same length"):
        ZippedSource({"x": MemorySource(X), "y": MemorySource(Y[:10])})
    with pytest.raises(SourceError, match="field 'x'"):
        ZippedSource({"x": MemorySource(X), "other": MemorySource({"x": X})})
    with pytest.raises(PlanError, match="300"):
        RangeSource(MemorySource(X), 0, 301)
