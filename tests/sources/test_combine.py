"""Sources made of sources keep the contract of a source."""

import pickle

import numpy as np
import pytest
import torch

from penstock import concatenate, zip_sources
from penstock.errors import PlanError, SourceError
from penstock.sources import MemorySource, NpySource
from penstock.testing.source_contract import SourceContract

X = np.random.default_rng(0).standard_normal((300, 4)).astype("f4")
Y = np.arange(300)


class TestConcatenated(SourceContract):
    def make_source(self):
        parts = [slice(0, 100), slice(100, 100), slice(100, 101), slice(101, 300)]
        return concatenate([MemorySource({"x": X[p], "y": Y[p]}) for p in parts])

    def expected(self):
        return {"x": X, "y": Y}


class TestZipped(SourceContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "x.npy"
        np.save(self.path, X)

    def make_source(self):
        return zip_sources({"x": NpySource(self.path), "rest": MemorySource({"y": Y, "z": X})})

    def expected(self):
        return {"x": X, "y": Y, "z": X}


class TestSelected(SourceContract):
    rows = np.r_[10:25, 40:61, 99]

    def make_source(self):
        return MemorySource({"x": X, "y": Y}).select(self.rows[::-1])

    def expected(self):
        return {"x": X[self.rows], "y": Y[self.rows]}


class TestRangeOfConcatenatedZips(SourceContract):
    def make_source(self):
        zipped = zip_sources({"x": MemorySource(X), "y": MemorySource(Y)})
        return concatenate([zipped, zipped]).select(range(250, 420))

    def expected(self):
        return {"x": np.concatenate([X, X])[250:420], "y": np.concatenate([Y, Y])[250:420]}


class TestWindows(SourceContract):
    def make_source(self):
        source = concatenate([MemorySource({"x": X[:50], "y": Y[:50]})] * 2)
        return source.windows(offsets={"a": ("x", [0, 3]), "b": ("x", [1]), "y": [2]})

    def expected(self):
        anchors = np.r_[0:47, 0:47]
        return {
            "a": X[anchors[:, None] + [0, 3]],
            "b": X[anchors[:, None] + [1]],
            "y": Y[anchors[:, None] + [2]],
        }


class TestPatches(SourceContract):
    def make_source(self):
        return zip_sources({"x": MemorySource(X), "y": MemorySource(Y)}).patches((3,), stride=(1,))

    def expected(self):
        return {"x": np.stack([X[:, :3], X[:, 1:]], 1).reshape(-1, 3), "y": np.repeat(Y, 2)}


def test_a_view_within_one_source_needs_no_copy():
    both = concatenate([MemorySource(X), MemorySource(X.copy())])
    assert np.shares_memory(both.view(10, 20)[""], X)
    assert both.view(290, 310) is None


def test_fingerprints_name_what_the_verbs_did():
    a, b = MemorySource(X), MemorySource(-X)
    made = [
        concatenate([a, b]),
        concatenate([b, a]),
        zip_sources({"p": a, "q": b}),
        zip_sources({"q": a, "p": b}),
        zip_sources({"p": a, "q": b.select(range(150))}, rates={"q": 0.5}),
        *(
            a.select(range(10)),
            a.select(range(10, 20)),
            a.select([0, 2, 4]),
            a.select([0, 2, 5]),
        ),
        *(a.windows(2), a.windows(3), a.windows(2, stride=2), a.windows(offsets=[0, 2])),
        *(a.patches((2,)), a.patches((2,), random=True), a.patches((2,), stride=(1,))),
        *a.split({"train": 0.5, "val": 0.5}).values(),
    ]
    assert len({source.fingerprint() for source in made}) == len(made)
    for source in made:
        again = pickle.loads(pickle.dumps(source))
        assert (again.fingerprint(), len(again)) == (source.fingerprint(), len(source))


def test_fingerprints_of_the_first_edition_stay():
    """A state of 0.1.0 over a list or a dict of sources still resumes."""
    a, b = MemorySource(np.arange(6)), MemorySource(np.arange(6, 12))
    assert concatenate([a, b]).fingerprint() == "88374fa3f83362a9b05098ed741060ad"
    assert zip_sources({"a": a, "b": b}).fingerprint() == "09cfb8900c6d1c321d182a79f27262f3"
    assert a.select(range(2, 5)).fingerprint() == "2ca938717d68a34625faa088ae9e152d"


def test_what_does_not_belong_together_is_refused():
    x, y = MemorySource(X), MemorySource(Y)
    with pytest.raises(SourceError, match="at least one"):
        concatenate([])
    with pytest.raises(SourceError, match="source 1 has fields"):
        concatenate([x, y])
    with pytest.raises(SourceError, match="open_source reads"):
        concatenate([X, 3])
    with pytest.raises(SourceError, match=r"matching lengths.*300.*10"):
        zip_sources({"x": x, "y": y.select(range(10))})
    with pytest.raises(SourceError, match="field 'x'"):
        zip_sources({"x": x, "other": MemorySource({"x": X})})
    with pytest.raises(SourceError, match=r"rates\['y'\] must be n, 1/n or 0"):
        zip_sources({"x": x, "y": y}, rates={"y": 2 / 3})
    with pytest.raises(SourceError, match="no source 'yy'"):
        zip_sources({"x": x, "y": y}, rates={"yy": 2})
    with pytest.raises(SourceError, match="rate 0 must have one sample"):
        zip_sources({"x": x, "y": y}, rates={"y": 0})
    with pytest.raises(SourceError, match="seam inside of a sample, after 3 rows"):
        parts = concatenate([y.select(range(3)), y.select(range(3))])
        zip_sources({"x": x.select(range(3)), "y": parts}, rates={"y": 2})
    with pytest.raises(PlanError, match="300"):
        x.select(range(301))


def test_anything_that_open_source_takes_is_combined(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4.0))
    both = concatenate([tmp_path / "x.npy", np.arange(3.0), str(tmp_path / "x.npy")])
    assert len(both) == 11 and both.seams == [4, 7]
    named = {"y": {"a": np.arange(4), "b": np.ones(4)}, "z": torch.zeros(2)}
    pairs = zip_sources({"x": tmp_path / "x.npy", **named}, rates={"z": 0.5})
    assert list(pairs.fields) == ["x", "a", "b", "z"] and len(pairs) == 4
