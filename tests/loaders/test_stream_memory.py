"""Memory: what is really reserved stays within the budget, and a batch is the user's."""

import mmap
import types
import weakref

import numpy as np
import psutil
import pytest
import torch

from penstock.loaders.stream import StreamLoader
from penstock.sources import thread_buffers
from penstock.streaming import buffers
from penstock.testing import WatchedSource

zarr = pytest.importorskip("zarr")


class Ledger:
    """Bytes that `reserve` took from the system and that are still there; and most of them."""

    def __init__(self):
        self.now = self.most = 0

    def took(self, pages, nbytes):
        self.now += nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(pages, self.gave_back, nbytes)

    def gave_back(self, nbytes):
        self.now -= nbytes


@pytest.fixture
def ledger(monkeypatch):
    """The system's own mapping, and the sources' scratch memory, with a note of each."""
    found = Ledger()

    class Pages(mmap.mmap):
        def __new__(cls, fileno, nbytes, **options):
            pages = super().__new__(cls, fileno, nbytes, **options)
            found.took(pages, nbytes)
            return pages

    def empty(nbytes, dtype):
        array = np.empty(nbytes, dtype)
        found.took(array, array.nbytes)
        return array

    noted = {name: getattr(mmap, name) for name in dir(mmap) if name.isupper()}
    monkeypatch.setattr(buffers, "mmap", types.SimpleNamespace(mmap=Pages, **noted))
    names = {name: getattr(np, name) for name in ("uint8", "prod", "int64", "ndarray", "dtype")}
    monkeypatch.setattr(thread_buffers, "np", types.SimpleNamespace(empty=empty, **names))
    return found


def stored(tmp_path, kind, rows):
    array = np.random.default_rng(0).integers(0, 9, (rows, 16)).astype("f4")
    if kind == "memory":
        return array, array
    if kind == "watched":
        return WatchedSource(array, block_samples=50), array
    if kind == "npy":
        np.save(tmp_path / "x.npy", array)
        return tmp_path / "x.npy", array
    codecs = {"raw": (), "blosc": zarr.codecs.BloscCodec(), "gzip": zarr.codecs.GzipCodec()}
    path = tmp_path / f"{kind}.zarr"
    options = {"chunks": (50, 16), "compressors": codecs[kind]}
    zarr.create_array(path, shape=array.shape, dtype="f4", **options)[...] = array
    return path, array


GEOMETRIES = [
    {"batch_size": 32},
    {"batch_size": 7, "block_samples": 13, "window_blocks": 5},
    {"batch_size": 100, "window_blocks": 2},
    {"batch_size": 16, "steps": 4},
    {"batch_size": 16, "steps": 3, "block_samples": 1, "window_blocks": 40},
    {"batch_size": 16, "steps": 5, "block_samples": 10, "window_blocks": 8},  # rows are held
    {"batch_size": 16, "steps": 5, "window_blocks": 2, "rank": 1, "world_size": 2},
    {"batch_size": 24, "lanes": 3, "window_blocks": 4},
    {"batch_size": 12, "lanes": 5, "rank": 1, "world_size": 2},
    {"batch_size": 64, "shuffle": False},
    {"batch_size": 10, "evaluation": True, "rank": 2, "world_size": 3},
    {"batch_size": 400, "block_samples": 2000, "drop_last": False},
]


STORED = ["memory", "npy", "watched", "raw", "blosc", "gzip"]


@pytest.mark.parametrize("kind", STORED)
def test_what_is_really_reserved_is_within_the_budget(tmp_path, kind, ledger):
    """A third of the geometries with each kind of storage: each of them with two kinds."""
    check_reserved(tmp_path, kind, ledger, GEOMETRIES[STORED.index(kind) % 3 :: 3])


@pytest.mark.proof
@pytest.mark.parametrize("kind", STORED)
def test_what_is_reserved_is_within_the_budget_in_every_geometry(tmp_path, kind, ledger):
    check_reserved(tmp_path, kind, ledger, GEOMETRIES)


def check_reserved(tmp_path, kind, ledger, geometries):
    source, _ = stored(tmp_path, kind, 1234)
    for options in geometries:
        probe = StreamLoader(source, memory_budget="64MB", **options)
        for budget in (probe.buffer_bytes, "750kB"):
            ledger.most = ledger.now
            loader = StreamLoader(source, memory_budget=budget, **options)
            batches = sum(1 for _ in range(2) for _ in loader)
            assert 0 < ledger.most and batches
            assert ledger.most <= loader.buffer_bytes <= loader.memory_budget, (options, budget)
            loader.close()
            del loader
            assert ledger.now == 0


def test_the_budget_is_used_and_not_only_kept(ledger):
    array = np.zeros((20_000, 256), "f4")
    loader = StreamLoader(WatchedSource(array, block_samples=50), 32, memory_budget="5MB")
    assert 0.8 * 5e6 < loader.buffer_bytes <= 5e6
    with loader:
        next(iter(loader))
        assert 0.8 * 5e6 < ledger.most <= 5e6


def test_a_user_who_keeps_every_batch_has_right_data_and_no_more_is_reserved(ledger):
    array = np.arange(3000 * 4).reshape(3000, 4)
    loader = StreamLoader(WatchedSource(array), 25, block_samples=20, window_blocks=3)
    kept, wanted = [], []
    with loader:
        for epoch in range(3):
            for step, batch in enumerate(loader):
                kept.append(batch)
                wanted.append(loader.samples_at(step, epoch))
        assert ledger.most <= loader.buffer_bytes
        for batch, samples in zip(kept, wanted, strict=True):
            assert torch.equal(batch, torch.from_numpy(array[samples]))
    for batch, samples in zip(kept, wanted, strict=True):  # after the end too
        assert torch.equal(batch, torch.from_numpy(array[samples]))


def views_of(batch, i):
    """Something that looks at the batch's memory, in one of many ways."""
    return [
        lambda: batch,
        lambda: batch[1:3],
        lambda: batch.numpy()[2:, 1],
        lambda: batch.view(-1)[5:],
        lambda: memoryview(batch.numpy()),
        lambda: torch.from_dlpack(batch.T),
    ][i % 6]()


def test_kept_views_of_any_kind_are_never_overwritten():
    array = np.arange(4000 * 4).reshape(4000, 4)
    kept = []
    with StreamLoader(WatchedSource(array), 20, block_samples=10, window_blocks=4) as loader:
        for epoch in range(4):
            for step, batch in enumerate(loader):
                if step % 3 == 0:
                    view = views_of(batch, step // 3)
                    kept.append((view, np.asarray(view).copy()))
                    kept = kept[-7:] if epoch % 2 else kept
                del batch
                for view, copy in kept[-20:]:
                    assert np.array_equal(np.asarray(view), copy)
    for view, copy in kept:
        assert np.array_equal(np.asarray(view), copy)


def test_one_field_kept_of_a_batch_keeps_its_place():
    arrays = {"x": np.arange(2000), "y": np.arange(2000) * 2}
    kept = []
    with StreamLoader(WatchedSource(arrays), 10, block_samples=10, window_blocks=3) as loader:
        for step, batch in enumerate(loader):
            kept.append((batch["x" if step % 2 else "y"], loader.samples_at(step, 0)))
            del batch
        for step, (field, samples) in enumerate(kept):
            assert field.tolist() == (samples if step % 2 else 2 * samples).tolist()


def test_a_batch_is_a_view_that_costs_no_copy():
    seen = set()
    with StreamLoader(np.arange(2000), 10, block_samples=10, window_blocks=3) as loader:
        for _ in range(3):
            for batch in loader:
                seen.add(batch.data_ptr())
                del batch
    assert len(seen) < 30  # places are used again and again


def test_breaking_off_uses_the_same_memory_again(ledger):
    with StreamLoader(np.arange(5000), 10, block_samples=10, window_blocks=30) as loader:
        next(iter(loader))
        reserved = ledger.now
        kept = []
        for _ in range(10):
            for step, batch in enumerate(loader):
                kept.append(batch)
                if step == 5:
                    break
            assert ledger.now == reserved
        assert ledger.most == reserved


def test_a_batch_may_be_written_to():
    with StreamLoader(np.arange(100), 10, block_samples=10) as loader:
        for epoch in range(3):
            for step, batch in enumerate(loader):
                assert batch.tolist() == loader.samples_at(step, epoch).tolist()
                batch.zero_()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="a hint this system has not")
def test_a_batch_kept_after_close_keeps_only_its_own_memory():
    process, array = psutil.Process(), np.ones((100_000, 64), "f4")  # 25.6 MB
    loader = StreamLoader(array, 500, block_samples=100, window_blocks=500)
    batches = [batch for batch, _ in zip(loader, range(90), strict=False)][-2:]
    before = process.memory_info().rss
    loader.close()
    gone = before - process.memory_info().rss
    assert gone > 10e6
    assert all(bool((batch == 1).all()) for batch in batches)
