"""Zarr on a real S3 server on this machine: read, interrupted, refused, cached."""

import os
import pickle
import shutil
import threading
import time

import numpy as np
import pytest
import zarr

from penstock.errors import SourceError
from penstock.sources import open_source
from penstock.testing.source_contract import SourceContract
from tests.s3_server import Server

DATA = np.random.default_rng(0).standard_normal((203, 6)).round(1).astype("f4")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="module")
def server(stores):
    running = Server(stores)
    yield running
    running.kill()


@pytest.fixture
def mortal(stores):
    """A server of its own for a test that kills it."""
    running = Server(stores)
    yield running
    running.kill()


@pytest.fixture(scope="module")
def stores(root):
    bucket = root / "bucket"
    bucket.mkdir()
    blosc = zarr.codecs.BloscCodec(cname="lz4")
    for name, options in {
        "plain": {"chunks": (32, 6), "compressors": blosc},
        "split": {"chunks": (32, 2), "compressors": ()},
        "sharded": {"chunks": (16, 6), "shards": (64, 6), "compressors": blosc},
        "transposed": {
            "chunks": (32, 6),
            "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
        },
    }.items():
        zarr.create_array(bucket / name, shape=DATA.shape, dtype="f4", **options)[...] = DATA
    zarr.create_group(bucket / "group")
    for name, data in (("x", DATA), ("y", DATA[:, 0])):
        zarr.create_array(bucket / "group" / name, data=data, chunks=(50, *data.shape[1:]))
    return root


def read(source, start, stop):
    out = {name: np.empty((stop - start, *f.shape), f.dtype) for name, f in source.fields.items()}
    source.read(start, stop, out)
    return out


class TestS3(SourceContract):
    @pytest.fixture(autouse=True, params=["plain", "split", "sharded"])
    def _server(self, server, request):
        self.server, self.store = server, request.param

    def make_source(self):
        source = open_source(f"s3://bucket/{self.store}", **self.server.options())
        assert source.reader == "direct"
        return source

    def expected(self):
        return {"": DATA}


def test_other_codecs_are_read_through_zarr_python(server):
    source = open_source("s3://bucket/transposed", **server.options())
    assert source.reader == "zarr-python"
    assert np.array_equal(read(source, 0, 203)[""], DATA)


def test_groups_are_listed(server):
    source = open_source("s3://bucket/group", **server.options())
    found = read(source, 10, 203)
    assert np.array_equal(found["x"], DATA[10:]) and np.array_equal(found["y"], DATA[10:, 0])


def test_the_same_data_has_the_same_fingerprint_here_and_there(server, root):
    there = open_source("s3://bucket/plain", **server.options())
    assert there.fingerprint() == open_source(root / "bucket/plain").fingerprint()


def test_a_missing_chunk_is_the_fill_value_and_a_missing_store_a_sentence(server, root):
    shutil.copytree(root / "bucket/plain", root / "bucket/holes", dirs_exist_ok=True)
    (root / "bucket/holes/c/1/0").unlink()
    found = read(open_source("s3://bucket/holes", **server.options()), 0, 203)[""]
    assert (found[32:64] == 0).all() and np.array_equal(found[64:], DATA[64:])
    with pytest.raises(
        SourceError, match=r"tokens\.bin is a file that can only be read from a local disk"
    ):
        open_source("s3://bucket/tokens.bin", dtype="uint16", **server.options())
    for missing in ("s3://bucket/nothing", "s3://no-bucket/plain"):
        with pytest.raises(SourceError, match="no Zarr array or group"):
            open_source(missing, **server.options())


def test_wrong_credentials_are_refused_at_once(server):
    begin = time.monotonic()
    for wrong in ({"access_key_id": "somebody-else"}, {"secret_access_key": "guessed"}):
        with pytest.raises(SourceError, match="credentials") as caught:
            open_source("s3://bucket/plain", **server.options(**wrong))
        assert "\n" not in str(caught.value)
    assert time.monotonic() - begin < 5


def test_damaged_objects_are_refused_by_name(server, root):
    shutil.copytree(root / "bucket/plain", root / "bucket/damaged", dirs_exist_ok=True)
    os.truncate(root / "bucket/damaged/c/1/0", 100)
    source = open_source("s3://bucket/damaged", **server.options())
    with pytest.raises(SourceError, match="s3://bucket/damaged/c/1/0"):
        read(source, 0, 203)


def test_a_server_that_comes_back_is_waited_for(mortal):
    source = open_source("s3://bucket/plain", **mortal.options())
    read(source, 0, 32)
    mortal.kill()
    again = threading.Timer(0.5, mortal.start)
    again.start()
    try:
        assert np.array_equal(read(source, 0, 203)[""], DATA)
    finally:
        again.join()


def test_a_server_that_dies_again_and_again_loses_nothing(mortal):
    source = open_source("s3://bucket/split", **mortal.options())
    done = threading.Event()

    def break_it():
        for _ in range(3):
            done.wait(0.2)
            mortal.kill()
            mortal.start()

    breaking = threading.Thread(target=break_it)
    breaking.start()
    rounds = 0
    while breaking.is_alive() or rounds < 5:
        assert np.array_equal(read(source, 0, 203)[""], DATA)
        rounds += 1
    breaking.join()


def test_a_server_that_is_gone_is_reported_in_bounded_time(mortal):
    source = open_source("s3://bucket/plain", **mortal.options(retry_seconds=1))
    mortal.kill()
    try:
        begin = time.monotonic()
        with pytest.raises(SourceError, match="within 1 seconds") as caught:
            read(source, 0, 203)
        assert "\n" not in str(caught.value)
        assert time.monotonic() - begin < 10
    finally:
        mortal.start()


def test_cached_chunks_need_no_server(mortal, tmp_path):
    options = mortal.options(cache_dir=tmp_path / "cache", retry_seconds=1)
    for store in ("plain", "sharded"):
        source = open_source(f"s3://bucket/{store}", **options)
        assert np.array_equal(read(source, 0, 203)[""], DATA)
        mortal.kill()
        try:
            other = pickle.loads(pickle.dumps(source))
            assert np.array_equal(read(other, 0, 203)[""], DATA)
        finally:
            mortal.start()


def test_rewritten_data_are_not_read_from_the_cache(server, root, tmp_path):
    options = server.options(cache_dir=tmp_path / "cache")
    path = root / "bucket/changing"
    for value in (1.0, 2.0):
        shutil.rmtree(path, ignore_errors=True)
        zarr.create_array(path, shape=(8,), chunks=(4,), dtype="f4", attributes={"v": value})[:] = (
            value
        )
        assert (read(open_source("s3://bucket/changing", **options), 0, 8)[""] == value).all()


def test_a_forked_process_is_told_and_does_not_hang(server):
    source = open_source("s3://bucket/plain", **server.options())
    read(source, 0, 32)
    child = os.fork()
    if child == 0:
        try:
            read(source, 0, 32)
        except SourceError as error:
            os._exit(0 if "spawn" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://bucket/plain", {"no_such_option": 1}, "cannot open"),
        ("s3://bucket/plain", {"concurrency": 0}, "concurrency"),
        ("http://127.0.0.1:9/x", {"retry_seconds": 0.2, "timeout_seconds": 1}, "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(server, url, options, says):
    with pytest.raises(SourceError, match=says):
        open_source(url, **options)
