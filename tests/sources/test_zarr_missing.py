"""A missing chunk is the fill value; an array that is gone as a whole is an error."""

import shutil

import numpy as np
import pytest
import torch
import zarr

from penstock import StreamLoader
from penstock.errors import PlanError, SourceError
from penstock.sources import ZarrSource, open_source
from penstock.sources.storage import DirectoryStore
from penstock.sources.zarr.direct import CACHED_MAPS
from tests.s3_server import Server

DATA = np.arange(1, 401, dtype="f4").reshape(100, 4)

LAYOUTS = {
    "compressed": {"chunks": (10, 4)},
    "raw": {"chunks": (10, 4), "compressors": ()},
    "split": {"chunks": (10, 2)},
    "sharded": {"chunks": (10, 4), "shards": (20, 4)},
    "version 2": {"chunks": (10, 4), "zarr_format": 2},
    "transposed": {"chunks": (10, 4), "filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
}


def written(path, layout):
    zarr.create_array(path, data=DATA, **LAYOUTS[layout])
    return path


def read(source, start=0, stop=100):
    out = np.full((stop - start, 4), -1, "f4")
    source.read(start, stop, {"": out})
    return out


def lose(path, how):
    """What happens to a store under a run."""
    if how == "deleted":
        shutil.rmtree(path)
    elif how == "unmounted":  # an empty mount point is left
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize("how", ["deleted", "unmounted", "renamed"])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_that_is_gone_is_an_error(tmp_path, layout, direct, how):
    source = ZarrSource(written(tmp_path / "a", layout), direct=direct)
    assert np.array_equal(read(source, 0, 30), DATA[:30])
    lose(tmp_path / "a", how)
    for start, stop in ((0, 100), (95, 100), (40, 50)):
        with pytest.raises(SourceError, match=r"a(/zarr\.json|/\.zarray|/c/\d+/0| )") as caught:
            read(source, start, stop)
        assert "\n" not in str(caught.value)
    with pytest.raises(SourceError):
        source.take(np.array([99, 3]), {"": np.empty((2, 4), "f4")})
    with pytest.raises(SourceError):
        source.fingerprint()


def test_a_stream_over_a_store_that_is_gone_stops(tmp_path):
    with StreamLoader(written(tmp_path / "a", "compressed"), 5, window_blocks=1) as loader:
        batches = iter(loader)
        next(batches)
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(SourceError, match="is gone"):
            while True:  # batches that were read ahead are still right
                assert (next(batches) > 0).all()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "sharded"])
def test_missing_chunks_are_fill_values_or_errors_as_asked(tmp_path, layout, direct):
    path = written(tmp_path / "a", layout)
    chunk = {"version 2": "3.0"}.get(layout, "c/3/0")
    (path / chunk).unlink()
    expected = DATA.copy()
    expected[30:40, : 2 if layout == "split" else 4] = 0
    assert np.array_equal(read(ZarrSource(path, direct=direct)), expected)
    strict = open_source(path, direct=direct, missing="error")
    assert np.array_equal(read(strict, 40, 100), DATA[40:])
    with pytest.raises(SourceError, match=chunk):
        read(strict, 35, 45)
    with pytest.raises(SourceError, match="missing='fill'"):  # and as advised, it is read
        read(strict)
    assert np.array_equal(read(open_source(path, direct=direct, missing="fill")), expected)


def test_missing_chunks_of_a_shard(tmp_path):
    array = zarr.create_array(
        tmp_path / "a", shape=(100, 4), dtype="f4", chunks=(10, 4), shards=(20, 4)
    )
    array[0:10] = 1
    assert read(ZarrSource(tmp_path / "a")).sum() == 40
    strict = ZarrSource(tmp_path / "a", missing="error")
    assert (read(strict, 0, 10) == 1).all()
    for start, stop in ((10, 20), (20, 30)):  # in a shard that is there, and in one that is not
        with pytest.raises(SourceError, match=r"c/[01]/0"):
            read(strict, start, stop)
    with pytest.raises(SourceError, match="missing='fill'"):
        ZarrSource(tmp_path / "a", missing="error", direct=False)


def test_a_shard_that_is_deleted_while_its_index_is_kept_is_an_error(tmp_path):
    source = ZarrSource(written(tmp_path / "a", "sharded"))
    read(source)
    (tmp_path / "a/c/1/0").unlink()
    with pytest.raises(SourceError, match="c/1/0"):
        read(source, 25, 35)


class Counting(DirectoryStore):
    """Counts how often each file is fetched."""

    def __init__(self, path):
        super().__init__(path)
        self.fetched = []

    def fetch(self, key, allocate, offset=0, nbytes=None):
        self.fetched.append(key)
        return super().fetch(key, allocate, offset, nbytes)


def test_looking_for_the_metadata_costs_one_request_a_read_and_none_without_misses(tmp_path):
    path = written(tmp_path / "a", "split")
    stored = Counting(path)
    source = ZarrSource(stored)
    stored.fetched.clear()
    read(source)
    assert stored.fetched.count("zarr.json") == 0 and len(stored.fetched) == 20
    for number in range(10):
        shutil.rmtree(path / f"c/{number}")
    stored.fetched.clear()
    read(source)
    assert stored.fetched.count("zarr.json") == 1 and len(stored.fetched) == 21


def test_the_policy_is_checked_and_survives_pickling(tmp_path):
    import pickle

    path = written(tmp_path / "a", "compressed")
    for wrong in ("zero", None, True, 1):
        with pytest.raises(PlanError, match="missing"):
            ZarrSource(path, missing=wrong)
    (path / "c/3/0").unlink()
    strict = pickle.loads(pickle.dumps(ZarrSource(path, missing="error")))
    with pytest.raises(SourceError, match="c/3/0"):
        read(strict)


@pytest.mark.parametrize("layout", ["compressed", "sharded", "transposed"])
def test_object_storage_that_answers_404_for_everything_is_an_error(tmp_path, layout):
    (tmp_path / "bucket").mkdir()
    path = written(tmp_path / "bucket/a", layout)
    server = Server(tmp_path)
    try:
        source = open_source("s3://bucket/a", **server.options())
        strict = open_source(
            "s3://bucket/a",
            **server.options(),
            missing=("fill" if layout == "sharded" else "error"),
        )
        assert np.array_equal(read(source), DATA) and np.array_equal(read(strict), DATA)
        holes = open_source("s3://bucket/a", **server.options())
        shutil.rmtree(path / "c/1")
        assert np.isin(read(holes)[10:20], [0, *DATA.ravel()]).all()
        path.rename(tmp_path / "away")
        for gone in (source, strict):
            with pytest.raises(SourceError, match="s3://bucket/a"):
                read(gone, 40, 100)
    finally:
        server.kill()


def test_no_chunk_of_training_after_the_loss_holds_fill_values(tmp_path):
    # More chunks than the reader keeps mapped: a mapped chunk stays readable when its file is
    # deleted, so that a smaller array may be complete in memory and never raise.
    data = np.arange(1, 2001, dtype="f4")
    zarr.create_array(tmp_path / "a", data=data, chunks=(10,), compressors=())
    assert len(data) // 10 > CACHED_MAPS
    with StreamLoader(tmp_path / "a", 20, window_blocks=2, chunk_size=1) as loader:
        seen = []
        with pytest.raises(SourceError):
            for chunk in range(200):  # two epochs
                seen += [batch.clone() for batch in loader]
                if chunk == 0:
                    shutil.rmtree(tmp_path / "a")
        assert (torch.cat(seen) > 0).all()
