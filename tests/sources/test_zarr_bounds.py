"""Opening costs the same for any number of chunks, and decoding stops at the size of a chunk."""

import functools
import gzip
import json
import multiprocessing
import resource
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest

from penstock.errors import SourceError
from penstock.sources import ZarrSource


def version_2(shape, chunks, **other):
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": "<f4",
        "order": "C",
        "fill_value": 0,
        "filters": None,
        "compressor": None,
        **other,
    }


def version_3(shape, chunks, *codecs, inner=None):
    chain = [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs]
    if inner is not None:
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        options = {"chunk_shape": inner, "codecs": chain, "index_codecs": index}
        chain = [{"name": "sharding_indexed", "configuration": options}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": chain,
    }


def stored(path, metadata):
    path.mkdir()
    name = "zarr.json" if metadata["zarr_format"] == 3 else ".zarray"
    (path / name).write_text(json.dumps(metadata))
    return path


MANY = 4_000_000
HUGE = 10**18
GRIDS = {
    "4 M chunks": version_2([MANY], [1]),
    "4 M chunks in a row": version_2([1000, MANY], [1, 1]),
    "4 M shards": version_3([MANY * 16], [16], inner=[1]),
    "4 M chunks in a shard": version_3([MANY * 2], [MANY], inner=[1]),
    "a huge axis": version_2([HUGE], [1]),
    "a huge axis of shards": version_3([HUGE], [100], inner=[1]),
    "a huge second axis": version_2([10, 10**17], [10, 1]),
    "a huge first axis in large chunks": version_2([HUGE, 4], [10**4, 4]),
    "many axes": version_2([10**6] * 3 + [1], [1] * 4),
}


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("grid", GRIDS)
def test_opening_takes_no_memory_and_no_time_for_chunks(tmp_path, grid, direct):
    path = stored(tmp_path / "a", GRIDS[grid])
    ZarrSource(stored(tmp_path / "warm", version_2([4], [2])), direct=direct)  # imports
    begin = time.monotonic()
    tracemalloc.start()
    source = ZarrSource(path, direct=direct)
    assert len(source) == GRIDS[grid]["shape"][0]
    if "row" not in grid and "axes" not in grid and "second" not in grid:
        out = np.ones((3, *source.fields[""].shape), "f4")
        source.read(len(source) - 3, len(source), {"": out})
        source.view(1, 2)
        assert (out == 0).all()
        if direct:
            source.fingerprint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    assert time.monotonic() - begin < 10


# -- chunks that decode to more than a chunk


def zstd_of_zeros(nbytes):
    """A zstd frame of zeros that does not say its size: blocks of 128 kB, four bytes each."""
    frame = bytearray(b"\x28\xb5\x2f\xfd\x00\x70")
    while True:
        size = min(nbytes, 128 * 1024)
        nbytes -= size
        frame += (int(nbytes == 0) | 1 << 1 | size << 3).to_bytes(3, "little") + b"\x00"
        if not nbytes:
            return bytes(frame)


BOMB = 128 << 20
CHUNK = 80  # bytes
CODECS = {
    "zstd": {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
    "gzip": {"name": "gzip", "configuration": {"level": 1}},
    "zlib": {"name": "numcodecs.zlib", "configuration": {"level": 1}},
    "lz4": {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}},
    "blosc": {
        "name": "blosc",
        "configuration": {
            "typesize": 4,
            "cname": "lz4",
            "clevel": 1,
            "shuffle": "noshuffle",
            "blocksize": 0,
        },
    },
}


def lz4_of_zeros(said, length):
    """A block that says ``said`` bytes, and is one literal and a match of ``length``."""
    body = b"\x1f\x00\x01\x00" + b"\xff" * (length // 255) + b"\x00"
    return struct.pack("<I", said) + body


def blosc_chunk(nbytes, blocksize, body=b"\0" * 40, flags=0x20):
    head = struct.pack("<BBBBIII", 2, 1, flags, 4, nbytes, blocksize, 16 + len(body))
    return head + body


@functools.cache
def bombs():
    """Name of the codec, and stored bytes that are not a chunk of 80 bytes."""
    return list(made_bombs())


def made_bombs():
    yield "zstd", zstd_of_zeros(BOMB)
    yield "zstd", zstd_of_zeros(CHUNK + 1)
    yield "zstd", zstd_of_zeros(CHUNK - 1)
    yield "zstd", zstd_of_zeros(CHUNK) + zstd_of_zeros(BOMB)
    for size in (CHUNK, BOMB, 2**62):  # a frame that says its size, and lies
        head = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little")
        yield "zstd", head + zstd_of_zeros(BOMB)[6:]
    zeros = bytes(1 << 20)
    packed = zlib.compressobj(1, wbits=31)
    body = b"".join(packed.compress(zeros) for _ in range(BOMB >> 20)) + packed.flush()
    yield "gzip", body
    yield "gzip", gzip.compress(bytes(CHUNK)) + gzip.compress(bytes(1 << 20))
    packed = zlib.compressobj(1)
    yield "zlib", b"".join(packed.compress(zeros) for _ in range(BOMB >> 20)) + packed.flush()
    for said in (CHUNK, BOMB, 2**32 - 1):
        yield "lz4", lz4_of_zeros(said, BOMB >> 8)
    for nbytes, blocksize in ((BOMB, CHUNK), (CHUNK, BOMB), (CHUNK, 2**31 - 1), (2**31 - 1, 1)):
        yield "blosc", blosc_chunk(nbytes, blocksize)
        yield "blosc", blosc_chunk(nbytes, blocksize, flags=0x02)
    yield "blosc", blosc_chunk(CHUNK, CHUNK, body=struct.pack("<II", 2**31 - 1, 2**31 - 1))


def read_in(path, answer):
    """Run in a process of its own: how far its memory grows while the chunk is read."""
    source = ZarrSource(path)
    assert source.reader == "direct"
    out = np.empty(20, "f4")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        source.read(0, 20, {"": out})
        said = f"read {out.tolist()}"
    except SourceError as error:
        said = str(error)
    answer.send((said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024))


@pytest.mark.parametrize(("codec", "number"), [(codec, n) for n, (codec, _) in enumerate(bombs())])
def test_a_chunk_that_decodes_to_more_is_refused_in_bounded_memory(tmp_path, codec, number):
    content = bombs()[number][1]
    path = stored(tmp_path / "a", version_3([20], [20], CODECS[codec]))
    (path / "c").mkdir()
    (path / "c/0").write_bytes(content)
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=read_in, args=(path, send))
    process.start()
    try:
        assert receive.poll(60)
        said, grown_mb = receive.recv()
    finally:
        process.kill()
        process.join()
    assert "c/0" in said and "restore" in said and "delete" not in said
    assert grown_mb < 40, said


def test_a_zstd_frame_without_its_size_is_read(tmp_path):
    path = stored(tmp_path / "a", version_3([20], [20], CODECS["zstd"]))
    (path / "c").mkdir()
    (path / "c/0").write_bytes(zstd_of_zeros(CHUNK))
    out = np.ones(20, "f4")
    ZarrSource(path).read(0, 20, {"": out})
    assert (out == 0).all()


def test_an_array_whose_chunks_no_memory_can_hold_is_a_sentence(tmp_path):
    for number, chunk in enumerate((10**12, 10**13, 10**17, 10**18)):
        path = stored(tmp_path / str(number), version_3([10**18], [chunk]))
        (path / "c").mkdir()
        (path / "c/0").write_bytes(b"12345678")
        with pytest.raises(SourceError, match=str(path)) as caught:
            ZarrSource(path).read(0, 2, {"": np.empty(2, "f4")})
        assert "\n" not in str(caught.value)
