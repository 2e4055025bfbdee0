"""Arrays in .npy files."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import StreamLoader
from penstock.errors import SourceError
from penstock.sources import NpySource, open_source
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


# -- headers that are damaged, or lie


def with_header(path, text, version=1, data=bytes(800), length=None):
    body = text if isinstance(text, bytes) else text.encode("latin1")
    size = (len(body) if length is None else length).to_bytes(2 if version == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + size + body + data)
    return path


def header(descr="'<f4'", order="False", shape="(10, 4)", more=""):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{more}}}\n"


HEADERS = {
    "open bracket": header(shape="(10, 4"),
    "token error": "{'descr': '<f4', 'fortran_order': False, 'shape': (10,\n",
    "open string": "{'descr': '''<f4",
    "binary": bytes(range(256)),
    "deep": "(" * 2000,
    "deep dict": "{1:" * 300 + "}" * 300,
    "minus": "-" * 3000 + "1",
    "code": header(shape="__import__('os').listdir()"),
    "no keys": "{}",
    "a list": "[]",
    "more keys": header(more=", 'x': 1"),
    "negative": header(shape="(-10, 4)"),
    "negative second": header(shape="(10, -4)"),
    "both negative": header(shape="(-10, -4)"),
    "bools": header(shape="(True, 4)"),
    "floats": header(shape="(10.0, 4)"),
    "a number": header(shape="10"),
    "text": header(shape="('10', 4)"),
    "scalar": header(shape="()"),
    "too long": header(shape="(10, 5000)"),
    "absurd": header(shape=f"({10**18}, 4)"),
    "overflow": header(shape=f"({2**62}, {2**62})"),
    "overflow to zero": header(shape=f"({2**32}, {2**32})"),
    "empty but absurd": header(shape=f"(0, {10**30})"),
    "empty and too large": header(shape=f"(0, {2**40}, {2**40})"),
    "digits": header(shape="(" + "9" * 5000 + ",)"),
    "dimensions": header(shape="(" + "1," * 70 + ")"),
    "objects": header(descr="'|O'"),
    "objects inside": header(descr="[('a', '<f4'), ('b', '|O')]"),
    "nothing": header(descr="'|V0'"),
    "empty strings": header(descr="'<U0'"),
    "no dtype": header(descr="'zz'"),
    "dtype number": header(descr="4"),
    "dtype tuple": header(descr="('<f4', (2, -2))"),
    "dtype list": header(descr="[1, 2]"),
    "dtype pairs": header(descr="[('a',)]"),
    "order": header(order="'C'"),
    "python 2": header(shape="(10L, 5000L)"),
}


@pytest.mark.parametrize("version", [1, 2, 3, 9])
@pytest.mark.parametrize("name", HEADERS)
def test_every_malformed_header_is_one_sentence(tmp_path, name, version):
    path = with_header(tmp_path / "x.npy", HEADERS[name], version)
    with pytest.raises(SourceError, match=r"x\.npy") as caught:
        NpySource(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("length", [0, 1, 50, 2**16 - 1])
def test_headers_of_another_length_than_they_say(tmp_path, length):
    with pytest.raises(SourceError, match=r"x\.npy"):
        NpySource(with_header(tmp_path / "x.npy", header(), length=length))
    with pytest.raises(SourceError, match=r"x\.npy"):
        NpySource(with_header(tmp_path / "x.npy", header(), 2, length=2**31))


def test_a_header_of_python_2_is_read(tmp_path):
    path = with_header(tmp_path / "x.npy", header(shape="(10L, 4L)"), data=bytes(160))
    assert len(NpySource(path)) == 10


@given(st.data())
def test_changed_headers_are_read_as_numpy_reads_them_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    np.save(path, np.arange(40, dtype="f4").reshape(10, 4))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 127))] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b"0123456789-,()<>fiOVSU'"))
        )
    path.write_bytes(content)
    try:
        source = NpySource(path)
    except SourceError as error:
        assert "\n" not in str(error)
        return
    out = {"": np.empty((len(source), *source.fields[""].shape), source.fields[""].dtype)}
    source.read(0, len(source), out)
    found = np.load(path)
    assert out[""].tobytes() == found.astype(found.dtype.newbyteorder("=")).tobytes()


# -- files that shrink under a run


@pytest.mark.parametrize("order", ["C", "F", "big-endian"])
@pytest.mark.parametrize("access", ["read", "take", "view", "fingerprint", "strided"])
def test_no_access_after_a_file_has_shrunk_touches_lost_pages(tmp_path, order, access):
    """In a process of its own: SIGBUS would end it."""
    array = np.arange(400_000, dtype=">f4" if order == "big-endian" else "f4").reshape(-1, 4)
    np.save(tmp_path / "x.npy", np.asfortranarray(array) if order == "F" else array)
    source = NpySource(tmp_path / "x.npy")
    source.view(0, 10)
    source.take(np.array([3]), {"": np.empty((1, 4), "f4")})
    child = os.fork()
    if child == 0:
        os.truncate(tmp_path / "x.npy", 4096)
        rows = np.empty((100, 4), "f4")
        try:
            if access == "read":
                source.read(90_000, 90_100, {"": rows})
            elif access == "take":
                source.take(np.arange(90_000, 90_100), {"": rows})
            elif access == "view":
                os._exit(0 if source.view(90_000, 90_100) is None else 3)
            elif access == "fingerprint":
                source.fingerprint()
            else:
                source.read(90_000, 90_100, {"": rows[:, ::-1]})
        except SourceError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("access", ["read", "take", "view", "stream"])
@pytest.mark.parametrize("how", ["in place", "replaced"])
@pytest.mark.parametrize("name", ["x.npy", "x.bin"])
def test_a_file_of_the_same_size_that_was_written_again_is_refused(tmp_path, name, how, access):
    path, data = tmp_path / name, np.arange(64, dtype="f4")

    def write(where, values):
        np.save(where, values) if name == "x.npy" else values.tofile(where)

    write(path, data)
    os.utime(path, ns=(10**18, 10**18))  # long ago: the clock of a file system ticks slowly
    source = open_source(path, **({} if name == "x.npy" else {"dtype": "f4"}))
    loader = StreamLoader(source, 8, seed=1)
    before = source.fingerprint()
    assert len(list(loader)) == 8
    other = tmp_path / f"other.{name}"
    write(other, data + 1)
    if how == "in place":  # without cutting it: the loader reads ahead from mapped pages
        with path.open("r+b") as file:
            file.write(other.read_bytes())
    else:
        os.utime(other, ns=(10**18, 10**18))
        os.replace(other, path)
    out = {"": np.empty(64, "f4")}
    accesses = {
        "read": lambda: source.read(0, 64, out),
        "take": lambda: source.take(np.arange(64), out),
        "view": lambda: source.view(0, 64),
        # blocks that were read ahead, before the change, are delivered first
        "stream": lambda: [list(loader) for _ in range(4)],
    }
    with loader, pytest.raises(SourceError, match="has changed while it was read"):
        accesses[access]()
    again = open_source(path, **({} if name == "x.npy" else {"dtype": "f4"}))
    assert again.fingerprint() != before


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("along", [1, 2, -1])
def test_samples_may_be_along_any_axis(tmp_path, along, order):
    array = np.asarray(np.arange(60.0).reshape(3, 4, 5), order=order)
    np.save(tmp_path / "x.npy", array)
    source = open_source(tmp_path / "x.npy", along=along)
    expected = np.moveaxis(array, along, 0)
    out = {"": np.zeros((2, *expected.shape[1:]))}
    source.read(1, 3, out)
    assert len(source) == len(expected)
    assert np.array_equal(out[""], expected[1:3])
    source.take(np.array([3, 0]), out)
    assert np.array_equal(out[""], expected[[3, 0]])
    with StreamLoader(source, 2, shuffle=False, drop_last=False) as loader:
        assert np.array_equal(torch.cat(list(loader)), expected)
    assert source.fingerprint() != open_source(tmp_path / "x.npy").fingerprint()
    with pytest.raises(SourceError, match="no axis along=3: choose the axis of samples by number"):
        open_source(tmp_path / "x.npy", along=3)
