"""Zarr arrays: every version, codec, dtype, shape of chunks and axis gives the same samples."""

import warnings

import numpy as np
import pytest
import zarr

from penstock.errors import SourceError
from penstock.sources import ZarrSource
from penstock.testing.source_contract import SourceContract

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def some_array(shape, dtype, seed=0):
    """Compressible data in which any value may occur."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind in "fc":
        return rng.standard_normal(shape).round(1).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, 100, shape).astype("i8").astype(dtype)


def blosc(cname, shuffle):
    import numcodecs

    modes = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
    return {
        2: numcodecs.Blosc(cname=cname, clevel=3, shuffle=modes[shuffle]),
        3: zarr.codecs.BloscCodec(cname=cname, clevel=3, shuffle=shuffle),
    }


def codecs():
    """Name -> the compressor for versions 2 and 3 (None where there is none)."""
    import numcodecs
    from zarr.codecs.numcodecs import LZ4, Zlib

    chains = {
        f"blosc-{c}-{s}": blosc(c, s) for c in ("lz4", "zstd") for s in ("shuffle", "bitshuffle")
    }
    chains["blosc-blosclz"] = blosc("blosclz", "noshuffle")
    chains["blosc-zlib"] = blosc("zlib", "shuffle")
    chains["blosc-lz4hc"] = blosc("lz4hc", "shuffle")
    chains["raw"] = {2: None, 3: ()}
    chains["zstd"] = {2: numcodecs.Zstd(level=3), 3: zarr.codecs.ZstdCodec(level=3)}
    chains["zstd-checksum"] = {3: zarr.codecs.ZstdCodec(level=3, checksum=True)}
    chains["gzip"] = {2: numcodecs.GZip(level=3), 3: zarr.codecs.GzipCodec(level=3)}
    with warnings.catch_warnings():  # zarr-python warns that these are outside the standard
        warnings.simplefilter("ignore")
        chains["zlib"] = {2: numcodecs.Zlib(level=3), 3: Zlib(level=3)}
        chains["lz4"] = {2: numcodecs.LZ4(), 3: LZ4()}
    chains["crc32c"] = {3: [zarr.codecs.Crc32cCodec()]}
    chains["zstd-crc32c"] = {3: [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
    return chains


CODECS = [(name, version) for name, both in codecs().items() for version in both]


def write(path, data, *, chunks, codec="blosc-lz4-shuffle", version=3, **options):
    array = zarr.create_array(
        path,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunks,
        compressors=codecs()[codec][version],
        zarr_format=version,
        **options,
    )
    array[...] = data
    return path


def read_all(source):
    out = {
        name: np.empty((len(source), *field.shape), field.dtype)
        for name, field in source.fields.items()
    }
    source.read(0, len(source), out)
    return out


class ZarrContract(SourceContract):
    """Subclasses say what is written; reading must be ``reader``."""

    data = some_array((203, 6), "f4")
    chunks = (32, 6)
    options: dict = {}  # noqa: RUF012
    axis = 0
    reader = "direct"
    direct = True

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path):
        self.path = write(tmp_path / "data.zarr", self.data, chunks=self.chunks, **self.options)
        assert self.make_source().reader == self.reader

    def make_source(self):
        return ZarrSource(self.path, axis=self.axis, direct=self.direct)

    def expected(self):
        return {"": np.ascontiguousarray(np.moveaxis(self.data, self.axis, 0))}


class TestBlosc(ZarrContract):
    pass


class TestVersion2(ZarrContract):
    options = {"version": 2, "codec": "blosc-zstd-bitshuffle"}  # noqa: RUF012


class TestRaw(ZarrContract):
    options = {"codec": "raw"}  # noqa: RUF012

    def test_whole_chunks_are_looked_at_in_place(self):
        assert self.make_source().view(32, 64) is not None


class TestRawChunksSplitAlongColumns(ZarrContract):
    options = {"codec": "raw"}  # noqa: RUF012
    chunks = (32, 4)


class TestChunksSplitAlongColumns(ZarrContract):
    chunks = (32, 4)


class TestChunksLargerThanTheArray(ZarrContract):
    chunks = (500, 10)


class TestSharded(ZarrContract):
    chunks = (16, 3)
    options = {"shards": (64, 6)}  # noqa: RUF012


class TestShardedRaw(ZarrContract):
    chunks = (16, 6)
    options = {"shards": (64, 6), "codec": "raw"}  # noqa: RUF012


class TestShardIndexAtTheStart(ZarrContract):
    chunks = (16, 6)
    options = {  # noqa: RUF012
        "shards": {"shape": (64, 6), "index_location": "start"},
        "codec": "zstd",
    }


class TestSamplesAlongAnotherAxis(ZarrContract):
    data = some_array((5, 101, 3), "i2")
    chunks = (2, 16, 3)
    axis = 1


class TestRawSamplesAlongAnotherAxis(ZarrContract):
    data = some_array((5, 101, 3), "i2")
    chunks = (5, 16, 3)
    axis = 1
    options = {"codec": "raw"}  # noqa: RUF012

    def test_whole_chunks_are_looked_at_in_place(self):
        assert self.make_source().view(16, 32)[""].shape == (16, 5, 3)


class TestOneDimension(ZarrContract):
    data = some_array((203,), "f8")
    chunks = (32,)


class TestManyDimensions(ZarrContract):
    data = some_array((50, 3, 4, 2), "u1")
    chunks = (8, 2, 4, 1)


class TestNoSamples(ZarrContract):
    data = some_array((0, 6), "f4")


class TestThroughZarrPython(ZarrContract):
    direct = False
    reader = "zarr-python"


class TestShardedThroughZarrPython(ZarrContract):
    chunks = (16, 3)
    options = {"shards": (64, 6)}  # noqa: RUF012
    direct = False
    reader = "zarr-python"


class TestAnotherAxisThroughZarrPython(ZarrContract):
    data = some_array((5, 101, 3), "i2")
    chunks = (2, 16, 3)
    axis = 1
    direct = False
    reader = "zarr-python"


class TestFortranOrder(ZarrContract):
    options = {"version": 2, "order": "F"}  # noqa: RUF012
    reader = "zarr-python"


class TestBigEndian(ZarrContract):
    data = some_array((203, 6), ">f4")
    options = {"version": 2}  # noqa: RUF012
    reader = "zarr-python"

    def expected(self):
        return {"": self.data.astype("<f4")}


class TestTransposed(ZarrContract):
    options = {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}  # noqa: RUF012
    reader = "zarr-python"


class TestGroup(SourceContract):
    x = some_array((100, 4), "f4")
    y = some_array((100,), "i8")

    @pytest.fixture(autouse=True, params=[2, 3])
    def _store(self, tmp_path, request):
        self.path = tmp_path / "group.zarr"
        zarr.create_group(self.path, zarr_format=request.param)
        write(self.path / "x", self.x, chunks=(32, 4), version=request.param)
        write(self.path / "y", self.y, chunks=(50,), version=request.param, codec="gzip")

    def make_source(self):
        return ZarrSource(self.path)

    def expected(self):
        return {"x": self.x, "y": self.y}


@pytest.mark.parametrize(
    ("codec", "version", "sharded"),
    [(*one, sharded) for one in CODECS for sharded in (False, True) if one[1] == 3 or not sharded],
)
def test_every_codec_decodes_to_what_zarr_python_reads(tmp_path, codec, version, sharded):
    data = some_array((100, 6), "f4")
    options = {"shards": (64, 6)} if sharded else {}
    path = write(tmp_path / "a", data, chunks=(32, 6), codec=codec, version=version, **options)
    direct, other = ZarrSource(path), ZarrSource(path, direct=False)
    assert (direct.reader, other.reader) == ("direct", "zarr-python")
    assert np.array_equal(read_all(direct)[""], data)
    assert np.array_equal(read_all(other)[""], data)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("codec", ["blosc-lz4-bitshuffle", "raw"])
@pytest.mark.parametrize(
    "dtype",
    [
        "f2",
        "f4",
        "f8",
        "?",
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "c8",
        "c16",
        "M8[ns]",
        "M8[D]",
        "m8[s]",
    ],
)
def test_every_dtype_is_read_directly(tmp_path, dtype, codec, version):
    data = some_array((50, 3), dtype)
    path = write(tmp_path / "a", data, chunks=(16, 3), codec=codec, version=version)
    (tmp_path / "a" / ("c/1/0" if version == 3 else "1.0")).unlink()
    source = ZarrSource(path)
    assert source.reader == "direct"
    found = read_all(source)[""]
    assert found.dtype == data.dtype
    assert found.tobytes() == zarr.open_array(path)[...].tobytes()
    assert found.tobytes() == read_all(ZarrSource(path, direct=False))[""].tobytes()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("f4", np.nan), ("f8", -np.inf), ("i4", -7), ("u8", 2**64 - 1), ("?", True), ("c8", 1 - 2j)],
)
def test_missing_chunks_are_the_fill_value(tmp_path, dtype, fill, version):
    path = tmp_path / "a"
    zarr.create_array(
        path, shape=(10, 3), chunks=(4, 3), dtype=dtype, fill_value=fill, zarr_format=version
    )
    source = ZarrSource(path)
    assert source.reader == "direct"
    assert read_all(source)[""].tobytes() == np.full((10, 3), fill, dtype).tobytes()


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("version", [2, 3])
def test_dimension_separators(tmp_path, version, separator):
    encoding = {"name": "v2" if version == 2 else "default", "separator": separator}
    data = some_array((10, 6), "f4")
    path = write(tmp_path / "a", data, chunks=(4, 3), version=version, chunk_key_encoding=encoding)
    assert np.array_equal(read_all(ZarrSource(path))[""], data)


def test_the_reader_and_its_reason_are_visible(tmp_path):
    path = write(tmp_path / "a", some_array((9, 2), "f4"), chunks=(4, 2), version=2, order="F")
    source = ZarrSource(path)
    assert source.readers == {"": "zarr-python (Fortran order)"}
    assert "Fortran order" in repr(source)


def test_structured_dtypes_go_through_zarr_python(tmp_path):
    data = np.zeros(20, [("a", "<f4"), ("b", "<i8")])
    data["a"], data["b"] = np.arange(20), np.arange(20)[::-1]
    path = write(tmp_path / "a", data, chunks=(8,), version=2)
    source = ZarrSource(path)
    assert source.reader == "zarr-python"
    assert np.array_equal(read_all(source)[""], data)


def test_arrays_of_a_group_are_chosen_by_path(tmp_path):
    zarr.create_group(tmp_path / "g").create_group("inner")
    write(tmp_path / "g/x", np.arange(10), chunks=(5,))
    write(tmp_path / "g/inner/y", np.arange(7), chunks=(5,))
    with pytest.raises(SourceError, match=r"different lengths .*fields=\['x'\]"):
        ZarrSource(tmp_path / "g")
    assert len(ZarrSource(tmp_path / "g", fields=["inner/y"])) == 7
