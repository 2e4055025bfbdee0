"""Zarr behind a plain web server: parts of shards are asked for by range."""

import functools
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import zarr

from penstock.errors import SourceError
from penstock.sources import open_source
from penstock.testing.source_contract import SourceContract

DATA = np.random.default_rng(0).standard_normal((203, 6)).round(1).astype("f4")


class Handler(BaseHTTPRequestHandler):
    """Files with ranges; ``server.failures`` of the next answers are errors, the rest is data."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        file = self.server.root / self.path.lstrip("/")
        if self.server.failures > 0:
            self.server.failures -= 1
            return self.answer(self.server.status, b"")
        if not file.is_file():
            return self.answer(404, b"")
        whole = file.read_bytes()
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return self.answer(200, whole)
        first, last = self.span(asked, len(whole))
        head = {"Content-Range": f"bytes {first}-{last}/{len(whole)}"}
        return self.answer(206, whole[first : last + 1], head)

    do_HEAD = do_GET

    @staticmethod
    def span(asked, size):
        first, last = asked.groups()
        if not first:
            return max(0, size - int(last)), size - 1
        return int(first), min(size - 1, int(last) if last else size - 1)

    def answer(self, status, body, head=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        for name, value in (head or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("web")
    options = {"chunks": (16, 6), "shards": (64, 6)}
    zarr.create_array(root / "sharded", data=DATA, **options)
    zarr.create_group(root / "group")
    zarr.create_array(root / "group/x", data=DATA, chunks=(50, 6))
    zarr.create_array(root / "group/y", data=DATA[:, 0], chunks=(50,))
    zarr.consolidate_metadata(root / "group")
    web = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler))
    web.root, web.requests, web.failures, web.status = root, [], 0, 503
    thread = threading.Thread(target=web.serve_forever, args=(0.05,))
    thread.start()
    web.url = f"http://127.0.0.1:{web.server_address[1]}"
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")


class TestShardsByRange(SourceContract):
    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.server = server

    def make_source(self):
        return open_source(f"{self.server.url}/sharded", retry_seconds=10)

    def expected(self):
        return {"": DATA}


def test_only_the_wanted_part_of_a_shard_is_fetched(server):
    source = open_source(f"{server.url}/sharded")
    server.requests.clear()
    source.read(16, 32, {"": np.empty((16, 6), "f4")})
    shards = [asked for path, asked in server.requests if path.endswith("c/0/0")]
    assert len(shards) == 2 and all(asked for asked in shards)


def test_consolidated_groups_need_no_listing(server):
    source = open_source(f"{server.url}/group")
    assert list(source.fields) == ["x", "y"]
    out = {"y": np.empty(203, "f4")}
    source.read(0, 203, out)
    assert np.array_equal(out["y"], DATA[:, 0])


def test_passing_trouble_is_tried_again(server):
    source = open_source(f"{server.url}/sharded", retry_seconds=10)
    server.failures, server.status = 3, 503
    out = {"": np.empty((203, 6), "f4")}
    source.read(0, 203, out)
    assert np.array_equal(out[""], DATA)
    assert server.failures == 0


@pytest.mark.parametrize("status", [401, 403, 400])
def test_lasting_trouble_is_reported_at_once(server, status):
    source = open_source(f"{server.url}/sharded", retry_seconds=10)
    server.failures, server.status = 1, status
    try:
        with pytest.raises(SourceError, match="sharded/c/0/0"):
            source.read(0, 16, {"": np.empty((16, 6), "f4")})
        assert server.failures == 0
    finally:
        server.failures = 0


@pytest.mark.parametrize("compressors", ["auto", None])
def test_chunks_of_a_shard_come_in_one_request(server, tmp_path, compressors):
    data = np.random.default_rng(0).integers(0, 99, (240, 60)).astype("i4")
    options = {"chunks": (4, 6), "shards": (120, 60), "compressors": compressors}
    zarr.create_array(server.root / f"many-{compressors}", data=data, overwrite=True, **options)
    url = f"{server.url}/many-{compressors}"

    def requests(start, stop, **options):
        source, out = open_source(url, **options), np.empty((stop - start, 60), "i4")
        server.requests.clear()
        source.read(start, stop, {"": out})
        assert (out == data[start:stop]).all()
        return len(server.requests)

    assert requests(0, 120) == 2  # the index, and 300 chunks
    assert requests(0, 240) == 4
    assert requests(8, 40) == 2  # chunks of other rows between them, less than asking costs
    # a cache is asked for single chunks: it has them whatever is read with them
    assert requests(0, 120, cache_dir=tmp_path / "cache") == 1 + 300
    assert requests(4, 60, cache_dir=tmp_path / "cache") == 0
