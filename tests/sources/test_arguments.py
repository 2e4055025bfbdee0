"""Every constructor and function of `penstock.sources` checks its arguments."""

import inspect

import numpy as np
import pyarrow as pa
import pytest
import zarr

from penstock import sources
from penstock.errors import PenstockError
from penstock.sources import MemorySource
from penstock.sources.cache import BlockCache

WRONG_PATHS = [3, 1.5, True, None, b"bytes", "", "a\0b", object(), ["x"]]
WRONG_COUNTS = [-1, 1.5, True, "3", None, 2**70, float("nan")]
WRONG_NAMES = ["x", [], [3], [None], {"x": 1}, 3, True]
WRONG_FLAGS = ["yes", 1, None, [True]]
MEMORY = MemorySource(np.arange(10))


@pytest.fixture(scope="module")
def array(tmp_path_factory):
    path = tmp_path_factory.mktemp("z") / "a"
    zarr.create_array(path, data=np.zeros((10, 3)))
    return path


def calls(array):
    """The name of each function, and a call of it with one wrong value."""
    for wrong in WRONG_PATHS:
        yield "open_source", lambda w=wrong: sources.open_source(w)
        yield "ZarrSource", lambda w=wrong: sources.ZarrSource(w)
        yield "NpySource", lambda w=wrong: sources.NpySource(w)
        yield "ArrowSource", lambda w=wrong: sources.ArrowSource(w)
        yield "BlockCache", lambda w=wrong: BlockCache(w, 10)
    for wrong in WRONG_NAMES:
        yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, fields=w)
        yield "ArrowSource", lambda w=wrong: sources.ArrowSource(pa.table({"y": [1]}), columns=w)
    for wrong in WRONG_COUNTS:
        if wrong is not None:
            yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, axis=w)
            yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, along=w)
        yield "BlockCache", lambda w=wrong: BlockCache(array / "cache", w)
        yield "open_source", lambda w=wrong: sources.open_source("s3://b/x", concurrency=w)
    for wrong in (-1, True, "3", None, 1e300, float("nan")):
        yield "open_source", lambda w=wrong: sources.open_source("s3://b/x", retry_seconds=w)
        yield "open_source", lambda w=wrong: sources.open_source("s3://b/x", timeout_seconds=w)
    for wrong in WRONG_FLAGS:
        yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, direct=w)
        yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, decode=w)
        yield "ZarrSource", lambda w=wrong: sources.ZarrSource(array, missing=w)
    for wrong in ([], [3], [None], "abc", 3, None, [object()]):
        yield "concatenate", lambda w=wrong: sources.concatenate(w)
    for wrong in ({}, {"x": 3}, {3: MEMORY}, [MEMORY], "abc", None):
        yield "zip_sources", lambda w=wrong: sources.zip_sources(w)
    for wrong in ({}, 3, None, "text", {3: np.arange(3)}, [[1], [1, 2]], {"x": None}, object()):
        yield "MemorySource", lambda w=wrong: MemorySource(w)
    for start, stop in ((1.5, 3), (True, 3), ("0", 3), (0, None), (0, 2**70), (-1, 3), (5, 3)):
        yield "read", lambda a=start, b=stop: MEMORY.read(a, b, {"": np.empty(20, "i8")})
        yield "view", lambda a=start, b=stop: MEMORY.view(a, b)
    for out in ({"x": np.empty(5)}, {3: np.empty(5)}, {"": [1]}, {"": np.array(1)}, {"": None}):
        yield "read", lambda o=out: MEMORY.read(0, 3, o)
    for wrong in ([0.5], [[1]], ["a"], [-1], [10], [2**70], [True], None, 3):
        yield "take", lambda w=wrong: MEMORY.take(w, {"": np.empty(5, "i8")})


def test_a_wrong_argument_is_refused_with_one_line(array):
    for number, (name, call) in enumerate(calls(array)):
        with pytest.raises(PenstockError) as caught:
            call()
            pytest.fail(f"call {number}, of {name}, was accepted")
        assert "\n" not in str(caught.value), (number, name, caught.value)


def test_every_public_name_that_takes_arguments_is_in_the_sweep(array):
    protocols = {"Source", "MappedSource", "Arrays", "Field", "ComposedSource", "Statistics"}
    named = {name for name, _ in calls(array)}
    assert {n for n in sources.__all__ if callable(getattr(sources, n))} - named <= protocols
    assert inspect.signature(sources.open_source).parameters.keys() >= {"fields", "along", "decode"}
