"""Samples of several rows never reach over a seam: between files, or across a gap."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamLoader, concatenate, open_source, zip_sources
from penstock.datamodules.inputs import split
from penstock.errors import PlanError
from penstock.sources.base import composed
from penstock.sources.contract import seams_of
from penstock.sources.memory import MemorySource
from penstock.testing import WatchedSource


def rows(start, stop):
    return MemorySource(np.arange(start, stop))


@st.composite
def sources(draw, depth=3):
    """A source made of sources, whose rows hold numbers that jump wherever there is a seam."""
    kind = draw(st.sampled_from(["rows", "joined", "range", "selected", "watched"]))
    if depth == 0 or kind == "rows":
        start = draw(st.integers(0, 10**6))
        return rows(2 * start, 2 * start + draw(st.integers(1, 9)))
    if kind == "joined":
        parts = draw(st.lists(sources(depth=depth - 1), min_size=1, max_size=3))
        return concatenate(parts)
    inner = draw(sources(depth=depth - 1))
    if kind == "watched":
        return WatchedSource(inner)
    start = draw(st.integers(0, len(inner) - 1))
    stop = draw(st.integers(start + 1, len(inner)))
    if kind == "range":
        return composed(inner).select(range(start, stop))
    return composed(inner).select(list(draw(st.sets(st.integers(0, len(inner) - 1), min_size=1))))


@given(sources())
def test_every_jump_of_the_rows_is_a_seam(source):
    out = np.empty(len(source), np.int64)
    source.read(0, len(source), {"": out})
    jumps = set((np.flatnonzero(np.diff(out) != 1) + 1).tolist())
    assert jumps <= set(seams_of(source))
    assert all(0 < seam < len(source) for seam in seams_of(source))


@given(sources(), sources())
def test_sources_side_by_side_have_the_seams_of_both(one, other):
    length = min(len(one), len(other))
    one, other = (composed(each).select(range(length)) for each in (one, other))
    assert set(zip_sources({"a": one, "b": other}).seams) == {*one.seams, *other.seams}


def test_one_file_and_a_range_of_it_have_no_seam(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(50))
    source = open_source(tmp_path / "a.npy")
    assert seams_of(source) == seams_of(source.select(range(3, 40))) == []
    assert seams_of(concatenate([source])) == []


def joined(tmp_path, kind):
    """Several recordings as one source, in one of the ways there are."""
    arrays = [np.arange(100), np.arange(500, 540), np.arange(900, 1000)]
    if kind == "list of paths":
        paths = [tmp_path / f"s{i}.npy" for i in range(3)]
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        return paths
    if kind == "list of arrays":
        return arrays
    if kind == "dict of lists":
        return {"x": arrays, "y": np.arange(240)}
    if kind == "range":
        return open_source(arrays).select(range(50, 200))
    if kind == "nested":
        return [open_source(arrays).select(range(120))]
    if kind == "split":
        return split(open_source(np.arange(400)), 0.2, seed=1)[0]
    if kind == "watched":
        return WatchedSource(arrays)
    arrow = pytest.importorskip("pyarrow")
    if kind == "parquet directory":
        parquet = pytest.importorskip("pyarrow.parquet")
        for i, array in enumerate(arrays):
            parquet.write_table(arrow.table({"x": array}), tmp_path / f"{i}.parquet")
        return tmp_path
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": list(range(240))})
    return (
        whole.shuffle(seed=1)
        if kind == "shuffled"
        else whole.select([*range(90), *range(100, 200)])
    )


KINDS = [
    *("list of paths", "list of arrays", "dict of lists", "range", "nested", "split", "watched"),
    *("parquet directory", "shuffled", "selected"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_several_rows_stay_inside_their_piece(tmp_path, kind):
    source = open_source(joined(tmp_path, kind))
    if kind == "shuffled":  # no row continues the one before it
        with pytest.raises(PlanError, match="no 3 consecutive rows in"):
            StreamLoader(source, 4, steps=3)
        return
    expected = sum(max(0, b - a - 2) for a, b in pairwise([0, *seams_of(source), len(source)]))
    seen = 0
    with StreamLoader(source, 4, steps=3, drop_last=False) as loader:
        for batch in loader:
            rows = batch if isinstance(batch, torch.Tensor) else batch["x"]
            assert bool((rows[:, 1:] - rows[:, :-1] == 1).all())
            seen += len(rows)
    assert seen == loader.samples == expected


def test_a_parquet_file_alone_may_have_samples_of_several_rows(tmp_path):
    pytest.importorskip("pyarrow.parquet")
    folder = joined(tmp_path, "parquet directory")
    with StreamLoader(folder / "0.parquet", 4, steps=3) as loader:
        assert next(iter(loader))["x"].shape == (4, 3)
