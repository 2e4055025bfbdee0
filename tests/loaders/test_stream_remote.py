"""Streaming from a real S3 server: shuffled, resumed, interrupted, refused."""

import json

import numpy as np
import pytest
import torch
import zarr

from penstock import SourceError, StreamLoader, open_source
from tests.s3_server import Server

DATA = np.arange(1000 * 4, dtype="f4").reshape(1000, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket").mkdir()
    array = zarr.create_array(
        root / "bucket" / "data.zarr", shape=DATA.shape, dtype="f4", chunks=(50, 4)
    )
    array[...] = DATA
    return root


@pytest.fixture
def server(root):
    running = Server(root)
    yield running
    running.kill()


def make_loader(server, **options):
    source = open_source("s3://bucket/data.zarr", **server.options(**options))
    return StreamLoader(source, 25, window_blocks=4, chunk_size=10)


def test_batches_come_shuffled_from_object_storage_and_resume_exactly(server):
    with make_loader(server) as loader:
        assert loader.threads == 8  # as many reads in flight as the storage likes
        first = list(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = torch.cat([batch for _ in range(3) for batch in loader])
        seen = torch.cat([*first, rest])[:, 0]
    assert torch.equal(seen.sort().values, torch.from_numpy(DATA[:, 0]))
    assert not torch.equal(seen, seen.sort().values)
    with make_loader(server) as other:
        other.load_state_dict(state)
        assert torch.equal(torch.cat([batch for _ in range(3) for batch in other]), rest)


def test_a_server_that_dies_and_comes_back_in_the_middle_is_waited_for(server):
    with make_loader(server) as loader:
        whole = torch.cat([batch for _ in range(4) for batch in loader])
    with make_loader(server) as loader:
        batches = iter(loader)
        begin = [next(batches) for _ in range(3)]
        server.kill()
        server.start()
        rest = [*batches, *(batch for _ in range(3) for batch in loader)]
    assert torch.equal(torch.cat([*begin, *rest]), whole)


def test_a_server_that_stays_away_is_one_sentence_and_the_state_is_right(server):
    with make_loader(server, retry_seconds=1, timeout_seconds=1) as loader:
        batches = iter(loader)
        taken = 1
        next(batches)
        server.kill()
        with pytest.raises(SourceError, match="bucket") as failed:
            for _ in range(5):
                for _ in batches:
                    taken += 1
                batches = iter(loader)
        assert "\n" not in str(failed.value)
        assert loader.state_dict()["position"] == 25 * taken
        server.start()
        assert len(next(iter(loader))) == 25  # and it continues


def test_wrong_credentials_and_a_missing_key_are_refused_in_one_sentence(server):
    with pytest.raises(SourceError) as refused:
        make_loader(server, secret_access_key="wrong-secret-key")
    assert "\n" not in str(refused.value) and "s3://bucket/data.zarr" in str(refused.value)
    with pytest.raises(SourceError, match=r"s3://bucket/nowhere\.zarr") as missing:
        open_source("s3://bucket/nowhere.zarr", **server.options())
    assert "\n" not in str(missing.value)
