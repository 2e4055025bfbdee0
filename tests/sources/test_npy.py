"""Arrays in .npy files."""

import os

import numpy as np
import pytest

from penstock.errors import SourceError
from penstock.sources import NpySource
from penstock.testing.source_contract import SourceContract

DTYPES = ["f2", "f4", "f8", "?", "i1", "u1", "i2", "u4", "i8", "u8", "c8", "M8[ns]", "m8[s]"]


def some_array(shape, dtype, seed=0):
    """Random bytes as ``dtype``: every bit pattern may occur."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype == np.dtype("?"):
        return rng.integers(0, 2, shape).astype(dtype)
    raw = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


class NpyContract(SourceContract):
    data: np.ndarray

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "data.npy"
        np.save(self.path, self.data)

    def make_source(self):
        return NpySource(self.path)

    def expected(self):
        return {"": np.ascontiguousarray(self.data).astype(self.data.dtype.newbyteorder("="))}


class TestCOrder(NpyContract):
    data = some_array((777, 5), "f4")


class TestFortranOrder(NpyContract):
    data = np.asfortranarray(some_array((200, 5, 3), "i4"))


class TestBigEndian(NpyContract):
    data = np.arange(300, dtype=">f8").reshape(100, 3)


class TestScalars(NpyContract):
    data = some_array((100,), "i2")


class TestNoSamples(NpyContract):
    data = np.empty((0, 4), "f4")


class TestStructured(NpyContract):
    data = some_array((60,), [("a", "f4"), ("b", "i8", (2,))])

    def expected(self):
        return {"": self.data}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read_bit_by_bit(tmp_path, dtype):
    data = some_array((50, 3), dtype)
    np.save(tmp_path / "x.npy", data)
    source = NpySource(tmp_path / "x.npy")
    out = {"": np.empty_like(data)}
    source.read(0, 50, out)
    assert out[""].tobytes() == data.tobytes()


def test_a_truncated_file_is_refused_when_it_is_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100, 10)))
    os.truncate(tmp_path / "x.npy", 4000)
    with pytest.raises(SourceError, match="truncated"):
        NpySource(tmp_path / "x.npy")


def test_a_file_that_shrinks_later_is_an_error_and_not_a_crash(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100_000, 10)))
    source = NpySource(tmp_path / "x.npy")
    source.view(0, 10)
    os.truncate(tmp_path / "x.npy", 4000)
    with pytest.raises(SourceError, match="shrunk"):
        source.view(0, 10)
    with pytest.raises(SourceError, match="truncated"):
        source.read(90_000, 90_010, {"": np.empty((10, 10))})


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match="fixed-size"):
        NpySource(tmp_path / "x.npy")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00\xff\xff{}"])
def test_garbage_is_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(SourceError, match=r"x\.npy"):
        NpySource(tmp_path / "x.npy")


def test_the_fingerprint_follows_the_data_and_not_the_path(tmp_path):
    data = np.arange(1000)
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, data)
    data[500] += 1
    np.save(tmp_path / "c.npy", data)
    a, b, c = (NpySource(tmp_path / f"{n}.npy").fingerprint() for n in "abc")
    assert a == b != c
