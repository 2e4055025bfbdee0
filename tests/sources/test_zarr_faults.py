"""Damaged Zarr stores: an error that names the file, never other data, never a crash."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import zarr

from penstock.errors import PlanError, SourceError
from penstock.sources import ZarrSource

COMPRESSORS = {
    "raw": (),
    "blosc": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle"),
    "blosc-zstd": zarr.codecs.BloscCodec(cname="zstd"),
    "zstd": zarr.codecs.ZstdCodec(),
    "gzip": zarr.codecs.GzipCodec(),
    "crc32c": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
}
DATA = np.random.default_rng(0).standard_normal((64, 100)).round(2).astype("f4")


@pytest.fixture(params=COMPRESSORS)
def store(request, tmp_path):
    return written(tmp_path / "a.zarr", COMPRESSORS[request.param])


def written(path, compressors=(), **options):
    array = zarr.create_array(
        path, shape=DATA.shape, dtype="f4", chunks=(16, 100), compressors=compressors, **options
    )
    array[...] = DATA
    return path


def read(source, start, stop):
    out = {"": np.empty((stop - start, 100), "f4")}
    source.read(start, stop, out)
    return out[""]


def assert_refused(store, chunk="c/1/0"):
    source = ZarrSource(store)
    with pytest.raises(SourceError, match=chunk) as caught:
        read(source, 0, 64)
    assert "restore" in str(caught.value) or "copy it again" in str(caught.value)
    with pytest.raises(SourceError, match=chunk):
        read(source, 17, 20)
    assert np.array_equal(read(source, 32, 64), DATA[32:])


@pytest.mark.parametrize("size", [0, 1, 3, 15, 16, 17, 100, -1])
def test_truncated_chunks(store, size):
    file = store / "c/1/0"
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    assert_refused(store)


@pytest.mark.parametrize("seed", range(5))
def test_chunks_of_garbage(store, seed):
    file = store / "c/1/0"
    garbage = np.random.default_rng(seed).bytes(file.stat().st_size + seed)
    if not ZarrSource(store).view(0, 1) or seed:  # raw bytes of the right size are data
        file.write_bytes(garbage)
        assert_refused(store)


@pytest.mark.parametrize("damage", ["truncate", "garbage"])
def test_damage_is_an_error_through_zarr_python_too(store, damage):
    file = store / "c/1/0"
    size = file.stat().st_size
    if damage == "truncate":
        os.truncate(file, size // 2)
    else:
        file.write_bytes(np.random.default_rng(0).bytes(size - 1))
    source = ZarrSource(store, direct=False)
    with pytest.raises(SourceError, match=r"a\.zarr"):
        read(source, 0, 64)
    assert np.array_equal(read(source, 32, 64), DATA[32:])


def test_chunks_with_more_bytes_than_they_can_have(store):
    file = store / "c/1/0"
    file.write_bytes(file.read_bytes() + bytes(1 << 20))
    assert_refused(store)


def test_a_chunk_of_another_size_is_not_taken(store, tmp_path):
    compressors = zarr.open_array(store).compressors
    for rows in (8, 32):
        other = zarr.create_array(
            tmp_path / f"other{rows}",
            shape=(64, 100),
            dtype="f4",
            chunks=(rows, 100),
            compressors=compressors,
        )
        other[...] = DATA
        shutil.copy(tmp_path / f"other{rows}/c/1/0", store / "c/1/0")
        assert_refused(store)


def test_flipped_bytes_never_crash(store):
    """Without a checksum a flipped byte may decode; it must not crash or be out of bounds."""
    file = store / "c/1/0"
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        bad = bytearray(good)
        for place in rng.integers(0, min(len(good), rng.choice([20, 200, len(good)])), 3):
            bad[place] ^= int(rng.integers(1, 256))
        file.write_bytes(bad)
        guarded = np.full((48, 100), 7, "f4")
        try:
            ZarrSource(store).read(16, 32, {"": guarded[16:32]})
        except SourceError as error:
            assert "c/1/0" in str(error)
        assert (guarded[:16] == 7).all() and (guarded[32:] == 7).all()


def test_a_checksum_catches_any_flipped_byte(tmp_path):
    store = written(tmp_path / "a", COMPRESSORS["crc32c"])
    file = store / "c/1/0"
    good = file.read_bytes()
    for place in range(0, len(good), 97):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert_refused(store)


def test_a_raw_chunk_that_shrinks_after_it_was_mapped_is_an_error(tmp_path):
    source = ZarrSource(written(tmp_path / "a"))
    assert np.array_equal(source.view(16, 32)[""], DATA[16:32])
    os.truncate(tmp_path / "a/c/1/0", 100)
    with pytest.raises(SourceError, match="c/1/0"):
        source.view(16, 32)


def test_a_raw_chunk_of_the_wrong_size_is_not_mapped(tmp_path):
    written(tmp_path / "a")
    os.truncate(tmp_path / "a/c/1/0", 10_000)
    with pytest.raises(SourceError, match="c/1/0"):
        ZarrSource(tmp_path / "a").view(16, 32)


@pytest.mark.parametrize("damage", ["truncate", "garbage", "empty"])
def test_damaged_shards(tmp_path, damage):
    store = written(tmp_path / "a", COMPRESSORS["blosc"], shards=(32, 100))
    file = store / "c/0/0"
    size = file.stat().st_size
    if damage == "garbage":
        file.write_bytes(np.random.default_rng(0).bytes(size))
    else:
        os.truncate(file, size // 2 if damage == "truncate" else 0)
    assert_refused(store, "c/0/0")


def test_a_shard_index_that_lies_is_refused(tmp_path):
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(16, 100),
        codecs=[zarr.codecs.BytesCodec()],
        index_codecs=[zarr.codecs.BytesCodec()],
    )
    store = tmp_path / "a"
    array = zarr.create(shape=DATA.shape, dtype="f4", chunks=(32, 100), store=store, codecs=[codec])
    array[...] = DATA
    file = store / "c/0/0"
    good = file.read_bytes()
    for offset, nbytes in [(2**63, 6400), (0, 2**62), (len(good), 6400), (0, 100)]:
        file.write_bytes(good[:-16] + np.array([offset, nbytes], "<u8").tobytes())
        assert_refused(store, "c/0/0")


def test_a_missing_shard_and_missing_chunks_in_it_are_fill_values(tmp_path):
    store = tmp_path / "a"
    array = zarr.create_array(
        store, shape=(64, 4), dtype="f4", chunks=(8, 4), shards=(32, 4), fill_value=5
    )
    array[40:48] = 1
    out = {"": np.empty((64, 4), "f4")}
    ZarrSource(store).read(0, 64, out)
    assert (out[""][40:48] == 1).all() and (np.delete(out[""], slice(40, 48), 0) == 5).all()


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"node_type": "array"}',
        b'{"zarr_format": 3, "node_type": "array", "shape": "x"}',
    ],
)
def test_damaged_metadata_is_a_sentence(tmp_path, metadata):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/zarr.json").write_bytes(metadata)
    with pytest.raises(SourceError):
        ZarrSource(tmp_path / "a")


def test_a_missing_store_says_what_was_looked_for(tmp_path):
    with pytest.raises(SourceError, match=r"zarr\.json"):
        ZarrSource(tmp_path / "nothing")


def test_a_group_of_arrays_that_do_not_belong_together_is_refused(tmp_path):
    zarr.create_group(tmp_path / "g")
    for name, rows in (("x", 10), ("y", 11)):
        zarr.create_array(tmp_path / "g" / name, shape=(rows,), dtype="f4", chunks=(5,))
    with pytest.raises(SourceError, match="fields="):
        ZarrSource(tmp_path / "g")
    assert len(ZarrSource(tmp_path / "g", fields=["y"])) == 11
    with pytest.raises(SourceError, match="z"):
        ZarrSource(tmp_path / "g", fields=["z"])


def test_an_axis_that_is_not_there_is_refused(tmp_path):
    for axis in (2, -1):
        with pytest.raises(SourceError, match="axis"):
            ZarrSource(written(tmp_path / f"a{axis}"), axis=axis)


def test_unpickling_does_not_touch_storage(tmp_path):
    saved = pickle.dumps(ZarrSource(written(tmp_path / "a")))
    os.rename(tmp_path / "a", tmp_path / "away")
    source = pickle.loads(saved)
    assert len(source) == 64
    os.rename(tmp_path / "away", tmp_path / "a")
    assert np.array_equal(read(source, 0, 64), DATA)


def test_fingerprints_follow_stored_bytes_and_not_the_path(store, tmp_path):
    shutil.copytree(store, tmp_path / "copy")
    before = ZarrSource(store).fingerprint()
    assert ZarrSource(tmp_path / "copy").fingerprint() == before
    file = store / "c/0/0"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert ZarrSource(store).fingerprint() != before


def test_fingerprints_change_with_the_shape(tmp_path):
    store = written(tmp_path / "a")
    before = ZarrSource(store).fingerprint()
    metadata = json.loads((store / "zarr.json").read_text())
    metadata["shape"] = [63, 100]
    (store / "zarr.json").write_text(json.dumps(metadata))
    assert ZarrSource(store).fingerprint() != before


@pytest.mark.parametrize("direct", [True, False])
def test_reads_after_a_fork(tmp_path, direct):
    source = ZarrSource(written(tmp_path / "a", COMPRESSORS["blosc"]), direct=direct)
    read(source, 0, 64)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(read(source, 0, 64), DATA) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_buffers_of_another_shape_are_refused(tmp_path):
    source = ZarrSource(written(tmp_path / "a"))
    with pytest.raises(PlanError, match="needs"):
        source.read(0, 4, {"": np.empty((4, 99), "f4")})
