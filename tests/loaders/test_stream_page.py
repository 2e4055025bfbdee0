"""What a stream says about itself, and what it warns of."""

import numpy as np
import pytest
import zarr

from penstock import open_source, zip_sources
from penstock.errors import PlanError
from penstock.loaders.stream import StreamLoader
from penstock.sources.zarr.codecs import CodecChain, _Zstd
from penstock.testing import WatchedSource
from tests.cases import each_once

ARRAY = np.zeros((4000, 8), "f4")


def line(loader, name):
    (found,) = [text for text in loader.describe().splitlines() if text.split()[0] == name]
    return found.split(maxsplit=1)[1]


def chunked(rows=100):
    return WatchedSource(ARRAY, block_samples=rows)


def test_the_page_says_how_good_the_shuffle_is():
    loader = StreamLoader(chunked(50), 32, window_blocks=20)
    assert line(loader, "shuffle") == (
        "a batch is drawn from 20 blocks: 5.00% of it from any one of them, on average "
        "(1.25% in a full shuffle)"
    )
    in_order = StreamLoader(chunked(50), 32, shuffle=False)
    assert line(in_order, "shuffle").startswith("none")


def test_the_share_of_one_block_is_what_happens():
    loader = StreamLoader(np.arange(8000), 64, block_samples=40, window_blocks=20)
    shares = []
    with loader:
        for batch in loader:
            _, counts = np.unique(batch.numpy() // 40, return_counts=True)
            shares += [*counts / 64, *[0.0] * (20 - len(counts))]
    promised = float(line(loader, "shuffle").split("%")[0].split()[-1]) / 100
    assert promised == 0.05
    assert np.mean(shares) == pytest.approx(promised, rel=0.1)


def test_the_page_says_why_the_geometry_is_what_it_is():
    given = StreamLoader(chunked(), 32, block_samples=10, window_blocks=3, lanes=2)
    for name in ("blocks", "windows", "lanes"):
        assert line(given, name).endswith("(given)")
    found = StreamLoader(chunked(), 32, memory_budget="100kB")
    assert line(found, "blocks") == "100 samples (the storage's chunking)"
    assert line(found, "windows").endswith("(the budget)")
    assert line(found, "lanes") == "1 (one per rank)"
    assert line(StreamLoader(chunked(), 32), "windows") == "40 blocks (all there is)"
    found.load_state_dict(StreamLoader(chunked(), 32, window_blocks=2).state_dict())
    assert line(found, "windows") == "2 blocks (restored from a state)"


def test_the_page_says_how_much_is_decoded_and_why():
    once = StreamLoader(chunked(100), 32)
    assert line(once, "decoding") == (
        "1 bytes per byte delivered, 1 per byte of different rows: every chunk once"
    )
    again = StreamLoader(chunked(100), 32, steps=4, block_samples=100)
    assert line(again, "decoding").startswith("0.483 bytes per byte delivered, 1.93 per byte of")
    assert "parts of chunks that other blocks need too" in line(again, "decoding")
    assert line(StreamLoader(ARRAY, 32, steps=5), "decoding") == "none: storage is mapped"


@pytest.fixture
def decoded(monkeypatch):
    """A list to which the bytes of every decoded chunk are appended."""
    found, one, several = [], CodecChain.decode, _Zstd.decode_all

    def decode(self, stored, out, wanted=None):
        part = wanted is not None and self.decodes_first(out.size)
        found.append(wanted if part else out.size)
        one(self, stored, out, wanted)

    def decode_all(self, stored, begins, sizes, addresses, nbytes):
        done = several(self, stored, begins, sizes, addresses, nbytes)
        found.append(done * nbytes)
        return done

    monkeypatch.setattr(CodecChain, "decode", decode)
    monkeypatch.setattr(_Zstd, "decode_all", decode_all)
    return found


ROWS = np.random.default_rng(0).normal(size=(120, 16, 16)).astype("f4")
CHUNKS = {"rows": (10, 16, 16), "single": (1, 16, 16), "tiles": (10, 8, 8), "uneven": (7, 5, 6)}
READ = {
    "plain": lambda source: source,
    "windows": lambda source: source.windows(4),
    "patches": lambda source: source.patches((8, 8)),
    "a subset": lambda source: source.select(np.arange(0, 120, 3)),
    "one half": lambda source: source.select(np.arange(60)),
}


def check_decoding(source, decoded, **options):
    passes, bound = 12, {"drop_last": False, "threads": 1, "memory_budget": "4MB", **options}
    with StreamLoader(source, 8, **bound) as loader:
        said = line(loader, "decoding")
        decoded.clear()
        delivered = 0
        for _ in range(passes):
            for batch in loader:
                tensors = batch.values() if isinstance(batch, dict) else [batch]
                delivered += sum(each.nbytes for each in tensors)
    promised = float(said.removeprefix("at most ").split()[0])
    counted = sum(decoded) / delivered  # with up to two rounds that are read ahead
    assert counted * passes / (passes + 2) < promised * 1.02, said
    assert promised < counted * 1.02 or said.startswith("at most "), (counted, said)


@pytest.mark.parametrize(("chunks", "read"), each_once(list(CHUNKS), list(READ)))
def test_as_much_is_decoded_as_the_page_says(chunks, read, decoded, tmp_path):
    zarr.create_array(tmp_path / "x", data=ROWS, chunks=CHUNKS[chunks])
    check_decoding(READ[read](open_source(tmp_path / "x")), decoded)
    if read == "plain":
        check_decoding(open_source(tmp_path / "x"), decoded, block_samples=5)


def test_as_much_is_decoded_of_fields_of_other_chunks_as_the_page_says(decoded, tmp_path):
    for name, chunks in CHUNKS.items():
        zarr.create_array(tmp_path / name, data=ROWS, chunks=chunks)
    named = {name: open_source(tmp_path / name) for name in ("rows", "uneven")}
    check_decoding(zip_sources(named), decoded)
    labels = zip_sources({"x": named["rows"], "y": np.arange(120)})
    check_decoding(labels, decoded)


def test_the_page_says_that_zstd_decodes_less_than_whole_chunks(tmp_path):
    data = np.arange(400 * 1000, dtype="f4").reshape(400, 1000)
    zarr.create_array(tmp_path / "large", data=data, chunks=(100, 1000))
    zarr.create_array(tmp_path / "small", data=data, chunks=(10, 1000))  # decoded at once
    for name, first in (("large", True), ("small", False)):
        loader = StreamLoader(tmp_path / name, 32, steps=4, block_samples=5)
        said = line(loader, "decoding")
        assert said.startswith("at most ") == first == said.endswith("up to the last needed byte")
    whole = StreamLoader(tmp_path / "large", 32)
    assert line(whole, "decoding").endswith("every chunk once")


def test_blocks_grow_until_little_is_decoded_twice_where_the_budget_allows():
    many = WatchedSource(np.zeros((16_000, 8), "f4"), block_samples=100)
    large = StreamLoader(many, 8, steps=4, memory_budget="10MB")
    small = StreamLoader(many, 8, steps=4, memory_budget="150kB")
    assert (large.block_samples, small.block_samples) == (400, 100)
    assert line(large, "blocks").startswith("400 samples (4 storage chunks")
    assert "rows are held once" in line(small, "memory")
    with small:
        assert len(list(small)) == (16_000 - 3) // 8


def test_memory_is_that_of_the_budget():
    loader = StreamLoader(chunked(), 32, memory_budget="200kB")
    assert "of a budget of 200 kB" in line(loader, "memory")
    assert loader.buffer_bytes <= 200_000


def warnings_of(caplog, *args, **options):
    caplog.clear()
    loader = StreamLoader(*args, **options)
    logged = [record.message for record in caplog.records if record.levelname == "WARNING"]
    page = [text.split(maxsplit=1)[1] for text in loader.describe().splitlines() if "warn" in text]
    assert logged == page
    return logged


def test_storage_of_one_sample_a_chunk_is_warned_of(caplog):
    (warning,) = warnings_of(caplog, chunked(1), 32)
    assert "storage chunks hold one sample each" in warning
    assert not warnings_of(caplog, chunked(2), 32)
    assert not warnings_of(caplog, np.zeros((5, 300_000)), 2)  # memory has no chunks


def test_a_budget_for_one_block_a_window_is_warned_of(caplog):
    options = {"batch_size": 16, "memory_budget": "90kB"}
    (warning,) = warnings_of(caplog, chunked(200), **options)
    assert "allows only one block per window" in warning and "90 kB" in warning
    assert not warnings_of(caplog, chunked(200), window_blocks=1, **options)  # it was asked for
    assert not warnings_of(caplog, chunked(200), shuffle=False, **options)
    assert not warnings_of(caplog, chunked(200), 16)


def test_attributes_mirror_the_arguments():
    def transform(batch, rng):
        return batch

    given = {
        "batch_size": 16,
        "block_samples": 10,
        "window_blocks": 3,
        "chunk_size": 4,
        "shuffle": True,
        "seed": 7,
        "drop_last": False,
        "steps": 2,
        "device": "cpu",
        "memory_budget": 10_000_000,
        "transform": transform,
        "collate": tuple,
        "evaluation": False,
        "rank": 1,
        "world_size": 2,
        "lanes": 4,
    }
    loader = StreamLoader(ARRAY, **given)
    assert {name: getattr(loader, name) for name in given} == given
    assert len(loader.source) == 4000
    found = StreamLoader(ARRAY, 16)
    assert (found.rank, found.world_size, found.lanes, found.seed) == (0, 1, 1, 42)
    assert found.memory_budget == 10**9


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1 sample, got 0"),
        ({"batch_size": 5000}, "do not fill a step"),
        ({"block_samples": 0}, "block_samples must be at least 1, got 0"),
        ({"window_blocks": -1}, "window_blocks must be"),
        ({"lanes": 0}, "lanes must be"),
        ({"chunk_size": 0}, "chunk_size must be at least 1 batch"),
        ({"steps": 0}, "steps must be at least 1 row"),
        ({"steps": 4001}, "no 4001 consecutive rows in .*4000 rows in 1 pieces: pass a smaller"),
        ({"memory_budget": "lots"}, "memory_budget must be a number of bytes"),
        ({"memory_budget": 0}, "memory_budget=0 B is too small"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_is_refused_at_construction(options, sentence):
    with pytest.raises((PlanError, ValueError), match=sentence):
        StreamLoader(ARRAY, **{"batch_size": 32, **options})


def test_samples_of_no_bytes_are_refused():
    with pytest.raises(PlanError, match="0 bytes"):
        StreamLoader(np.zeros((10, 0)), 2)
