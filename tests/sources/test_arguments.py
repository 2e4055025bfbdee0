"""Every constructor and function of `penstock.sources` checks what it is given."""

import inspect

import numpy as np
import pyarrow as pa
import pytest

from penstock import sources
from penstock.domains.recording import write_recording
from penstock.errors import PenstockError
from penstock.sources import MemorySource
from penstock.sources.cache import BlockCache
from penstock.sources.object_requests import Patience
from penstock.sources.remote import open_remote

WRONG_PATHS = [3, 1.5, True, None, b"bytes", "", "a\0b", object(), ["x"]]
WRONG_COUNTS = [-1, 1.5, True, "3", None, 2**70, float("nan")]
WRONG_NAMES = ["x", [], [3], [None], {"x": 1}, 3, True]
WRONG_FLAGS = ["yes", 1, None, [True]]
MEMORY = MemorySource(np.arange(10))


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return write_recording(tmp_path_factory.mktemp("r") / "r", {"VOLTAGE": np.zeros((10, 3))})


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    import zarr

    path = tmp_path_factory.mktemp("z") / "a"
    zarr.create_array(path, data=np.zeros((10, 3)))
    return path


def calls():
    """Name, and a call with one wrong value; ``place`` has a recording and an array."""
    for wrong in WRONG_PATHS:
        yield "open_source", lambda _, w=wrong: sources.open_source(w)
        yield "ZarrSource", lambda _, w=wrong: sources.ZarrSource(w)
        yield "NpySource", lambda _, w=wrong: sources.NpySource(w)
        yield "ArrowSource", lambda _, w=wrong: sources.ArrowSource(w)
        yield "RecordingSource", lambda _, w=wrong: sources.RecordingSource(w)
        yield "load_metadata", lambda _, w=wrong: sources.load_metadata(w)
        yield "load_column_slice", lambda _, w=wrong: sources.load_column_slice(w, 3, 0, 1)
        yield "create_zarr_loader", lambda _, w=wrong: sources.create_zarr_loader(w, 3, 4, 2)
        yield "NeuronData", lambda _, w=wrong: sources.NeuronData.from_metadata(w)
        if wrong not in ("",):
            yield "write_recording", lambda _, w=wrong: write_recording(w, {"VOLTAGE": [[1.0]]})
            yield "BlockCache", lambda _, w=wrong: BlockCache(w, 10)
        yield "open_remote", lambda _, w=wrong: open_remote(w)
    for wrong in WRONG_NAMES:
        yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, fields=w)
        yield "ArrowSource", lambda _, w=wrong: sources.ArrowSource(pa.table({"y": [1]}), columns=w)
        w = [1.5] if wrong == [3] else wrong  # a column of a recording may be given by number
        yield "RecordingSource", lambda p, w=w: sources.RecordingSource(p.recording, columns=w)
    for wrong in WRONG_COUNTS:
        if wrong is not None:
            yield (
                "create_zarr_loader",
                lambda p, w=wrong: sources.create_zarr_loader(p.recording, 3, 4, w),
            )
            yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, axis=w)
            yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, along=w)
            yield (
                "RecordingSource",
                lambda p, w=wrong: sources.RecordingSource(p.recording, neurons={"VOLTAGE": w}),
            )
            yield (
                "load_column_slice",
                lambda p, w=wrong: sources.load_column_slice(p.recording, 3, 0, 5, w),
            )
        yield (
            "load_column_slice",
            lambda p, w=wrong: sources.load_column_slice(p.recording, w, 0, 5),
        )
        yield (
            "load_column_slice",
            lambda p, w=wrong: sources.load_column_slice(p.recording, 3, w, 5),
        )
        yield (
            "load_column_slice",
            lambda p, w=wrong: sources.load_column_slice(p.recording, 3, 0, w),
        )
        yield (
            "create_zarr_loader",
            lambda p, w=wrong: sources.create_zarr_loader(p.recording, w, 4, 2),
        )
        yield (
            "create_zarr_loader",
            lambda p, w=wrong: sources.create_zarr_loader(p.recording, 3, w, 2),
        )
        yield "RangeSource", lambda _, w=wrong: sources.RangeSource(MEMORY, w, 5)
        yield "RangeSource", lambda _, w=wrong: sources.RangeSource(MEMORY, 0, w)
        yield "BlockCache", lambda p, w=wrong: BlockCache(p.array / "cache", w)
        yield "open_remote", lambda _, w=wrong: open_remote("s3://b/x", concurrency=w)
        yield "DataSplit", lambda _, w=wrong: sources.DataSplit(w, 5, 6, 7)
        yield (
            "write_recording",
            lambda p, w=wrong: write_recording(
                p.array / "new", {"VOLTAGE": [[1.0]]}, chunk_timesteps=w
            ),
        )
    for wrong in (-1, True, "3", None, 1e300, float("nan")):
        yield "Patience", lambda _, w=wrong: Patience(w, 1.0)
        yield "Patience", lambda _, w=wrong: Patience(1.0, w)
    for wrong in WRONG_FLAGS:
        yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, direct=w)
        yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, decode=w)
        yield "ZarrSource", lambda p, w=wrong: sources.ZarrSource(p.array, missing=w)
    for wrong in ([], [3], [None], "abc", 3, None, [np.arange(3)]):
        yield "ConcatenatedSource", lambda _, w=wrong: sources.ConcatenatedSource(w)
    for wrong in ({}, {"x": 3}, {3: MEMORY}, [MEMORY], "abc", None):
        yield "ZippedSource", lambda _, w=wrong: sources.ZippedSource(w)
    for wrong in (None, 3, "abc", np.arange(3)):
        yield "RangeSource", lambda _, w=wrong: sources.RangeSource(w, 0, 1)
    for wrong in ({}, 3, None, "text", {3: np.arange(3)}, [[1], [1, 2]], {"x": None}, object()):
        yield "MemorySource", lambda _, w=wrong: MemorySource(w)
    for wrong in ({}, None, {"X": [[1.0]]}, {"VOLTAGE": [1.0]}, {"VOLTAGE": "text"}, 3):
        yield "write_recording", lambda p, w=wrong: write_recording(p.array / "new", w)
    for start, stop in ((1.5, 3), (True, 3), ("0", 3), (0, None), (0, 2**70), (-1, 3), (5, 3)):
        yield "read", lambda _, a=start, b=stop: MEMORY.read(a, b, {"": np.empty(20, "i8")})
        yield "view", lambda _, a=start, b=stop: MEMORY.view(a, b)
    for out in ({"x": np.empty(5)}, {3: np.empty(5)}, {"": [1]}, {"": np.array(1)}, {"": None}):
        yield "read", lambda _, o=out: MEMORY.read(0, 3, o)
    for wrong in ([0.5], [[1]], ["a"], [-1], [10], [2**70], [True], None, 3):
        yield "take", lambda _, w=wrong: MEMORY.take(w, {"": np.empty(5, "i8")})


CALLS = list(calls())


@pytest.mark.parametrize("number", range(len(CALLS)), ids=[name for name, _ in CALLS])
def test_a_wrong_value_is_refused_in_a_sentence(number, recording, array):
    class place:
        pass

    place.recording, place.array = recording, array
    with pytest.raises(PenstockError) as caught:
        CALLS[number][1](place)
    assert "\n" not in str(caught.value), caught.value


def test_every_public_name_that_takes_arguments_is_in_the_sweep():
    protocols = {"Source", "MappedSource", "Arrays", "Field", "FlyVisSim"}
    named = {name for name, _ in CALLS}
    assert {n for n in sources.__all__ if callable(getattr(sources, n))} - named <= protocols
    assert inspect.signature(sources.open_source).parameters.keys() >= {"fields", "along", "decode"}
