"""Chunks of zstd: whole or only as far as they are needed, with the same bytes and refusals."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zarr
from numcodecs import zstd

from penstock import open_source
from penstock.errors import SourceError
from penstock.sources.zarr import codecs
from penstock.sources.zarr.codecs import ZSTD_BLOCK, BadChunk, CodecChain

SIZE = 5 * ZSTD_BLOCK + 1000
CHUNK = (np.random.default_rng(0).standard_normal(SIZE) * 8).astype(np.int8).view(np.uint8)
STORED = np.frombuffer(zstd.compress(CHUNK, 3), np.uint8)
CHAIN = CodecChain("zstd", checksum=False)


@pytest.fixture(params=["library", "numcodecs"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numcodecs":
        monkeypatch.setattr(codecs, "_zstd_native", lambda: None)
    else:
        assert codecs._zstd_native() is not None
    return str(request.param)


@pytest.mark.parametrize("wanted", [None, 1, ZSTD_BLOCK, ZSTD_BLOCK + 1, SIZE - 1, SIZE])
def test_the_first_bytes_are_those_of_the_chunk(way: str, wanted: int | None) -> None:
    out = np.zeros(SIZE, np.uint8)
    CHAIN.decode(STORED, out, wanted)
    assert (out[:wanted] == CHUNK[:wanted]).all()


def test_what_is_not_needed_is_not_decoded() -> None:
    out = np.zeros(SIZE, np.uint8)
    CHAIN.decode(STORED, out, 10)
    assert out[:10].any() and not out[ZSTD_BLOCK:].any()


@pytest.mark.parametrize("wanted", [None, 2 * ZSTD_BLOCK])
@pytest.mark.parametrize("kept", [0, 4, 9, 20_000, len(STORED) - 1])
def test_a_truncated_chunk_is_refused(way: str, kept: int, wanted: int | None) -> None:
    if kept == len(STORED) - 1 and wanted is not None:
        wanted = SIZE
    with pytest.raises(BadChunk):
        CHAIN.decode(STORED[:kept], np.zeros(SIZE, np.uint8), wanted)


@pytest.mark.parametrize("wanted", [None, 10])
@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_a_chunk_of_another_size_is_refused(way: str, size: int, wanted: int | None) -> None:
    with pytest.raises(BadChunk, match=f"holds {SIZE} bytes where the chunk has {size}"):
        CHAIN.decode(STORED, np.zeros(size, np.uint8), wanted)


def test_the_checksum_of_a_frame_is_checked_although_few_bytes_are_needed() -> None:
    stored = np.frombuffer(bytearray(zstd.compress(CHUNK, 3, True)), np.uint8)
    CHAIN.decode(stored, np.zeros(SIZE, np.uint8), 10)
    stored[-1] ^= 1
    with pytest.raises(BadChunk, match="checksum"):
        CHAIN.decode(stored, np.zeros(SIZE, np.uint8), 10)


def test_bytes_that_are_no_zstd_are_refused(way: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 50_000, np.uint8)
    for wanted in (None, 10):
        with pytest.raises(BadChunk):
            CHAIN.decode(noise, np.zeros(SIZE, np.uint8), wanted)


def test_threads_decode_at_the_same_time() -> None:
    failed = []

    def work(wanted: int) -> None:
        for _ in range(20):
            out = np.zeros(SIZE, np.uint8)
            CHAIN.decode(STORED, out, wanted)
            if not (out[:wanted] == CHUNK[:wanted]).all():
                failed.append(wanted)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 200_000, SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("axis", [0, 1])
def test_a_few_rows_of_a_large_chunk_are_equal_to_zarr_python(tmp_path, axis: int) -> None:
    data = np.random.default_rng(2).integers(0, 99, (60, 40, 300), np.int32)
    zarr.create_array(
        tmp_path, data=data, chunks=(24, 24, 300), compressors=zarr.codecs.ZstdCodec()
    )
    source = open_source(tmp_path, axis=axis)
    expected = np.moveaxis(data, axis, 0)
    for start, stop in ((0, 1), (22, 26), (5, 8), (24, 30), (39, 40)):
        out = np.zeros((stop - start, *expected.shape[1:]), np.int32)
        source.read(start, stop, {"": out})
        assert (out == expected[start:stop]).all()


@pytest.mark.parametrize("way", ["compiled", "python"])
@pytest.mark.parametrize("shape", [(1000,), (120, 7)])
def test_chunks_of_a_shard_are_decoded_together(tmp_path, monkeypatch, way, shape) -> None:
    if way == "python":
        monkeypatch.setattr(codecs, "native", None)
    data = np.random.default_rng(0).integers(0, 50, shape).astype("i4")
    chunks, shards = ((10,), (500,)) if len(shape) == 1 else ((4, 3), (60, 9))
    zarr.create_array(tmp_path / "x", data=data, chunks=chunks, shards=shards)
    source, calls = open_source(tmp_path / "x"), []
    monkeypatch.setattr(
        codecs._Zstd, "decode", lambda *a, real=codecs._Zstd.decode: calls.append(1) or real(*a)
    )
    for start, stop in ((0, shape[0]), (3, 97), (57, 63)):
        out = np.empty((stop - start, *shape[1:]), "i4")
        source.read(start, stop, {"": out})
        assert (out == data[start:stop]).all()
    assert bool(calls) == (codecs.native is None)


def test_a_damaged_chunk_among_others_is_named(tmp_path) -> None:
    zarr.create_array(tmp_path / "x", data=np.arange(100), chunks=(10,), shards=(100,))
    (shard,) = (tmp_path / "x" / "c").iterdir()
    raw = bytearray(shard.read_bytes())
    offset, nbytes = np.frombuffer(raw[-164:-4], "<u8").reshape(-1, 2)[4].tolist()
    raw[offset : offset + nbytes] = bytes(nbytes)
    shard.write_bytes(raw)
    with pytest.raises(SourceError, match=r"chunk \(4,\) of array .* is damaged"):
        open_source(tmp_path / "x").read(0, 100, {"": np.empty(100, "i8")})
