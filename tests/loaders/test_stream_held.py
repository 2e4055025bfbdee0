"""Rows held once: faults, replaced blocks, kept batches and memory, as with any other stream."""

import copy
import json
import pickle
import threading

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import StreamLoader, concatenate, open_source
from penstock.errors import PlanError, SourceError, WorkerError
from penstock.sources.base import composed
from penstock.sources.contract import Field
from penstock.streaming import held_rows
from penstock.testing import WatchedSource

ROWS = np.arange(600 * 4, dtype="f4").reshape(600, 4)
STEPS = 5


def stream(before_read=lambda start, stop: None, batch_size=8, **options):
    source = WatchedSource(ROWS, before_read, block_samples=10)
    options = {"steps": STEPS, "block_samples": 10, "window_blocks": 4, "seed": 3} | options
    loader = StreamLoader(source, batch_size, **options)
    assert loader.holds_rows
    return loader


def windows(samples):
    return torch.from_numpy(np.stack([ROWS[i : i + STEPS] for i in samples]))


def test_batches_before_an_error_are_delivered_and_it_arrives_as_itself():
    def fail(start, stop):
        if start <= 305 < stop:
            raise SourceError("row 305 is gone")

    with stream(fail) as loader:
        delivered, batches = 0, iter(loader)
        with pytest.raises(SourceError, match="row 305 is gone") as caught:
            for batch in batches:
                assert torch.equal(batch, windows(loader.samples_at(delivered, 0)))
                delivered += 1
        assert any("reading samples" in note for note in caught.value.__notes__)


def test_a_block_that_cannot_be_read_is_replaced_by_another_one(tmp_path):
    def fail(start, stop):
        if start <= 305 < stop:
            raise SourceError("row 305 is gone")

    listed = tmp_path / "bad.jsonl"
    found = []
    for _ in range(2):
        with stream(fail, on_error="replace", quarantine=listed, drop_last=False) as loader:
            batches = [batch.clone() for batch in loader]
            planned = np.concatenate([loader.samples_at(i, 0) for i in range(len(loader))])
        got = (torch.cat(batches)[:, 0, 0] / 4).long().numpy()
        assert torch.equal(torch.cat(batches), windows(got))  # whole windows, none is torn
        assert set(planned[planned != got]) == set(range(300, 310))
        found.append(got)
    assert np.array_equal(*found)
    entries = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [(entry["sample"], entry["stop"]) for entry in entries] == [(300, 310)]


def test_a_read_that_hangs_times_out_and_close_returns():
    gate = threading.Event()
    loader = stream(lambda start, stop: gate.wait(60), timeout=0.2)
    try:
        with pytest.raises(WorkerError, match="samples"):
            next(iter(loader))
        loader.close()  # warns, and leaves the thread that hangs
    finally:
        gate.set()


@pytest.mark.parametrize("batch_size", [1, 8, 200, 590])
def test_a_batch_may_be_larger_than_the_rounds_that_fit_into_memory(batch_size):
    with stream(batch_size=batch_size, window_blocks=2, drop_last=False) as loader:
        for epoch in range(2):
            for step, batch in enumerate(loader):
                assert torch.equal(batch, windows(loader.samples_at(step, epoch)))


@pytest.mark.parametrize("rank", [0, 1])
def test_skipped_positions_of_several_ranks_are_left_out(rank):
    with stream(rank=rank, world_size=2) as loader:
        loader.skip(0, 33, 250)  # an odd number: the lanes of a rank change
        for epoch in range(2):
            for step, batch in enumerate(loader):
                assert torch.equal(batch, windows(loader.samples_at(step, epoch)))


def test_batches_that_are_kept_are_never_overwritten():
    kept = []
    with stream() as loader:
        for step, batch in enumerate(loader):
            kept.append((batch, loader.samples_at(step, 0)))
            assert all(torch.equal(one, windows(samples)) for one, samples in kept[-12:])
        for _ in range(3):  # also by later iterations, which use the same memory
            next(iter(loader))
    assert all(torch.equal(one, windows(samples)) for one, samples in kept)


def test_a_block_that_needs_more_than_was_measured_is_read_all_the_same(monkeypatch):
    monkeypatch.setattr(held_rows, "MEASURED_BLOCKS", 1)
    chosen = np.r_[0:100, 100:600:3]  # windows only in the first rows; then every third row
    source = composed(WatchedSource(ROWS, block_samples=40)).select(chosen)
    pairs = source.patches((2,), stride=(1,))
    with StreamLoader(pairs, 16, block_samples=60, window_blocks=2, drop_last=False) as loader:
        for step, batch in enumerate(loader):
            samples = loader.samples_at(step, 0)
            wanted = np.empty((len(samples), 2), "f4")
            pairs.take(samples, {"": wanted})
            assert np.array_equal(batch, wanted)


@settings(max_examples=20, deadline=None)
@given(
    kept=st.lists(st.booleans(), min_size=20, max_size=60).filter(any),
    offsets=st.lists(st.integers(0, 12), min_size=1, max_size=3, unique=True),
    stride=st.integers(1, 4),
    chunk=st.integers(1, 9),
    block=st.integers(1, 30),
)
def test_the_memory_of_a_block_of_windows_is_a_bound(kept, offsets, stride, chunk, block):
    # of every block, also if hardly any is looked at
    rows = composed(WatchedSource(ROWS[: len(kept)], block_samples=chunk)).select(np.array(kept))
    source = rows.windows(offsets=offsets, stride=stride)
    if not len(source):
        return
    stored = held_rows.StoredRows(source, source.leaves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_rows, "MEASURED_BLOCKS", 1)
        capacity = stored.needs(block)[1]
    for first in range(0, len(source), block):
        samples = np.arange(first, min(len(source), first + block))
        for store, spans in source.needs(samples).items():
            assert stored.nbytes(spans) <= capacity[store]


@settings(max_examples=20, deadline=None)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    chunks=st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 7)),
    block=st.integers(1, 40),
    epoch=st.integers(0, 99),
)
def test_patches_of_any_epoch_are_in_what_is_held_for_the_widest(
    size, stride, chunks, block, epoch
):
    data = zarr.create_array({}, data=np.zeros((4, 7, 7), "f4"), chunks=chunks)
    source = open_source(data).patches(size, stride=stride, random=True)
    first = min(block, len(source) - 1)
    samples = np.arange(first, min(len(source), first + block))
    (spans,), drawn = source.widest_needs(samples).values(), source.drawn(7, epoch)
    found = drawn.locate(samples)[""]
    for row, corner in zip(found.rows, found.corner, strict=True):
        assert any(
            span.start <= row < span.stop
            and (corner >= span.low).all()
            and (corner + size <= span.high).all()
            for span in spans
        )


def test_patches_are_not_warned_of_chunks_with_one_sample(tmp_path, caplog):
    data = zarr.create_array(tmp_path / "i.zarr", data=np.zeros((6, 8, 8)), chunks=(1, 8, 8))
    with StreamLoader(open_source(data).patches((8, 8)), 2):
        assert "one sample each" not in caplog.text
    with StreamLoader(open_source(data), 2):
        assert "one sample each" in caplog.text


def test_few_batches_are_lent_where_they_are_large():
    large = stream(batch_size=500, memory_budget="160kB", window_blocks=1)
    small = stream(batch_size=8)
    with large, small:
        kept = [next(iter(large)), next(iter(small))]
        assert large.buffer_bytes <= 160_000
        assert large._slots.lent == 2 and small._slots.lent == 4
        del kept


class Declared:
    """A source of which only the shape is known: a budget looks at nothing else."""

    block_samples = 24

    def __init__(self, rows, width):
        self._rows, self.fields = rows, {"": Field((width,), np.dtype("f4"))}

    def __len__(self):
        return self._rows

    def fingerprint(self):
        return "declared"

    def read(self, start, stop, out):
        raise NotImplementedError

    take = read


@pytest.mark.parametrize(
    ("steps", "budget", "blocks"), [(7, "1GB", 39), (25, "1GB", 39), (7, "256MB", 20)]
)
def test_windows_of_77_megabytes_are_mixed_within_the_budget(steps, budget, blocks):
    loader = StreamLoader(Declared(960, 20_480), 32, steps=steps, memory_budget=budget)
    assert loader.holds_rows and loader.buffer_bytes <= loader.memory_budget
    assert min(loader.window_blocks, loader.samples // loader.block_samples) >= blocks
    with pytest.raises(PlanError, match="too small"):
        StreamLoader(Declared(960, 20_480), 32, steps=25, memory_budget="100MB")


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_loader_that_holds_rows_or_labels_can_be_copied(again, tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=ROWS, chunks=(10, 4))
    zarr.create_array(tmp_path / "y.zarr", data=np.arange(600), chunks=(600,))
    labelled = open_source({"x": tmp_path / "x.zarr", "y": tmp_path / "y.zarr"})
    for options in ({"steps": STEPS, "window_blocks": 4}, {}):
        with StreamLoader(labelled, 8, **options) as loader:
            batches = iter(loader)
            next(batches)
            with again(loader) as other:
                one, two = next(batches), next(iter(other))
                assert torch.equal(one["x"], two["x"]) and torch.equal(one["y"], two["y"])


def test_only_samples_that_are_the_same_in_every_epoch_are_remembered():
    # so few random patches that a look at some samples of the source misses them
    data = np.arange(130 * 64).reshape(130, 8, 8)
    images = zarr.create_array({}, data=data, chunks=(1, 8, 4))
    fixed = open_source(images).patches((2, 3), stride=(1, 1))
    drawn = open_source(zarr.create_array({}, data=-data[:1], chunks=(1, 8, 8)))
    few = drawn.patches((2, 3), random=True)
    source = concatenate([fixed, few, fixed])
    seen = []
    with StreamLoader(source, 32, seed=5, block_samples=30, drop_last=False) as loader:
        for epoch in range(3):
            positions = [loader.positions_at(number, epoch) for number in range(len(loader))]
            samples = loader.plan.order.at(epoch, np.concatenate(positions))
            found = np.empty((len(source), 2, 3), data.dtype)
            found[samples] = np.concatenate([batch.numpy() for batch in loader])
            wanted = np.empty_like(found)
            source.drawn(5, epoch).take(np.arange(len(source)), {"": wanted})
            assert np.array_equal(found, wanted)
            seen.append(found[len(fixed) :][: len(few)])
    assert not np.array_equal(seen[0], seen[1])
