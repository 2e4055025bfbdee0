"""Selected samples from storage: the right ones, each block read once, in little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from penstock import StreamLoader, concatenate
from penstock.order import subset
from penstock.sources.base import BaseSource
from penstock.sources.contract import Field

N, CHUNK = 2000, 50


class Numbers(BaseSource):
    """Row i is the number i, in chunks that are counted when they are decoded."""

    def __init__(self, size=N, first=0):
        super().__init__(size, {"": Field((), np.dtype(np.int64))})
        self.first, self.decoded = first, Counter()

    @property
    def block_samples(self):
        return CHUNK

    def fingerprint(self):
        return f"numbers {self.first} {len(self)}"

    def _read(self, start, stop, out):
        self.decoded.update(range(start // CHUNK, (stop - 1) // CHUNK + 1))
        out[""][:] = np.arange(self.first + start, self.first + stop)


RNG = np.random.default_rng(0)
MASKS = {
    "half": RNG.random(N) < 0.5,
    "few": RNG.random(N) < 0.02,
    "clusters": np.arange(N) // 130 % 2 == 0,
    "all but one": np.arange(N) != 700,
    "one at each end": np.isin(np.arange(N), [0, N - 1]),
}
GEOMETRY = {"window_blocks": 2, "memory_budget": "64MB"}


@pytest.fixture(params=["ranges", "bitmap"])
def representation(request, monkeypatch):
    if request.param == "bitmap":
        monkeypatch.setattr(subset, "MANY_RANGES", 1)
        monkeypatch.setattr(subset, "RANGE_BYTES", N)
    return request.param


def of_kept(mask, samples):
    return np.flatnonzero(mask)[np.asarray(samples)].tolist()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", MASKS)
def test_an_epoch_is_what_is_selected_and_decodes_no_other_block(name, lanes, representation):
    mask, source = MASKS[name], Numbers()
    batch = min(7, int(mask.sum()) // 2)
    options = {"drop_last": False, "lanes": lanes, **GEOMETRY}
    with StreamLoader(source.select(mask), batch, **options) as loader:
        assert loader.plan.order.kind == "selected blocks" and loader.block_samples == CHUNK
        assert isinstance(loader._orders.selected, subset.Bitmap) == (representation == "bitmap")
        for epoch in range(2):
            got = [batch.tolist() for batch in loader]
            for step in (0, len(got) // 2, len(got) - 1):
                assert got[step] == of_kept(mask, loader.samples_at(step, epoch))
            assert sorted(chain(*got)) == np.flatnonzero(mask).tolist()
            # never an empty block; the next epoch is read ahead while this one is delivered
            assert set(source.decoded) == set((np.flatnonzero(mask) // CHUNK).tolist())


def test_blocks_are_decoded_once_an_epoch_and_not_for_every_window():
    """Counted over five epochs, so that what is read ahead does not matter."""
    mask, source = MASKS["half"], Numbers()
    with StreamLoader(source.select(mask), 10, window_blocks=1, threads=1) as loader:
        for _ in range(5):
            for _ in loader:
                pass
        assert loader.plan.order.rounds > 5
    reads = sum(source.decoded.values()) / (N // CHUNK)
    assert 5 <= reads <= 6  # blocks of selected samples would take 1.5 times as many


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["half", "few", "clusters"])
def test_a_resume_on_any_ranks_reads_exactly_the_rest(name, world, representation):
    mask = MASKS[name]
    options = {"lanes": 12, "drop_last": False, "chunk_size": 5, **GEOMETRY}

    def deliver(world, state=None, steps=None):
        got, after = [], None
        for rank in range(world):
            where = {"rank": rank, "world_size": world}
            with StreamLoader(Numbers().select(mask), 12 // world, **options, **where) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                done = 0
                while loader.state_dict()["epoch"] == 0 and done != steps:
                    for batch in loader:
                        got += batch.tolist()
                        done += 1
                        if done == steps:
                            break
                after = json.loads(json.dumps(loader.state_dict()))
        return got, after

    whole, last = deliver(1)
    assert sorted(whole) == np.flatnonzero(mask).tolist()
    for cut in (1, len(whole) // 24):
        first, state = deliver(1, steps=cut)
        assert first == whole[: len(first)]
        rest, end = deliver(world, state)
        left = set(whole) - set(first) - set(rest)
        assert len(rest) == len(set(rest)) and not set(first) & set(rest) and len(left) < world
        assert (end["epoch"], end["position"]) == (last["epoch"], last["position"])


def test_skips_and_when_count_selected_samples():
    mask = MASKS["half"]
    with StreamLoader(Numbers().select(mask), 10, lanes=2, drop_last=False, **GEOMETRY) as loader:
        order = loader.plan.order
        loader.skip(0, 100, 333)
        got = [batch.tolist() for batch in loader]
        kept = np.delete(np.arange(order.size), np.arange(100, 333))
        assert sorted(chain(*got)) == sorted(of_kept(mask, order.at(0, kept)))
        for sample in (0, 17, order.size - 1):
            (found,) = loader.when(sample)
            if found.step is None:
                assert 100 <= found.position < 333
            else:
                assert got[found.step][found.row] == of_kept(mask, [sample])[0]


@pytest.mark.parametrize("name", MASKS)
def test_samples_in_storage_order_and_states_of_a_sequence(name, representation):
    mask = MASKS[name]
    options = {"shuffle": False, "drop_last": False, **GEOMETRY}
    batch = min(7, int(mask.sum()) // 2)
    with StreamLoader(Numbers().select(mask), batch, **options) as loader:
        got = torch.cat(list(loader)).tolist()
        assert got == np.flatnonzero(mask).tolist()
        state = loader.state_dict()
    assert state["order"] == "sequential" and "block" not in state
    with StreamLoader(Numbers().select(mask), batch, evaluation=True, **GEOMETRY) as loader:
        assert torch.cat(list(loader)).tolist() == got == torch.cat(list(loader)).tolist()


def test_a_part_of_joined_files_and_of_patches_is_read_from_what_it_is_a_part_of():
    files = concatenate([Numbers(730), Numbers(510, first=730), Numbers(760, first=1240)])
    mask = MASKS["half"]
    with StreamLoader(files.select(mask), 10, drop_last=False, **GEOMETRY) as loader:
        assert sorted(torch.cat(list(loader)).tolist()) == np.flatnonzero(mask).tolist()
    images = np.arange(60 * 8 * 8).reshape(60, 8, 8)
    patches = StreamLoader(images, 4).source.patches((4, 4), random=True)
    chosen = np.arange(len(patches)) % 3 == 1
    with StreamLoader(patches.select(chosen), 8, drop_last=False, **GEOMETRY) as loader:
        assert loader.plan.order.kind == "selected blocks"
        got = torch.cat(list(loader)).numpy()
    out = np.empty((len(patches), 4, 4), images.dtype)
    patches.drawn(42, 0).read(0, len(patches), {"": out})
    assert sorted(map(bytes, got)) == sorted(map(bytes, out[chosen]))


def test_what_holds_blocks_or_replaces_them_is_read_as_before():
    mask, numbers = MASKS["half"], Numbers()
    loaders = {
        "one range": lambda: StreamLoader(numbers.select(range(100, 300)), 10),
        "replaced": lambda: StreamLoader(numbers.select(mask), 10, on_error="replace"),
        "windows": lambda: StreamLoader(numbers.windows(9).select(mask[: N - 8]), 10),
        "rows of windows": lambda: StreamLoader(numbers.select(MASKS["clusters"]), 10, steps=3),
        "selected twice": lambda: StreamLoader(numbers.select(mask).select([1, 5, 7, 30]), 2),
    }
    for make in loaders.values():
        with make() as loader:
            assert loader.plan.order.kind == "block"
            next(iter(loader))


def test_a_scattered_selection_takes_a_fraction_of_a_byte_per_sample():
    size = 1 << 22
    mask = np.zeros(size, bool)
    mask[np.random.default_rng(0).integers(0, size, size // 10)] = True
    source = Numbers(size)
    tracemalloc.start()
    part = source.select(mask)
    held, _ = tracemalloc.get_traced_memory()
    with StreamLoader(part, 256, block_samples=1 << 14, window_blocks=2) as loader:
        it = iter(loader)
        batch = next(it)
        samples = loader.samples_at(0)
        after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batch.tolist() == of_kept(mask, samples)
    # a bit a sample, and 24 bytes for each chunk of 50; then two rounds of 32,768 samples
    assert held < 0.7 * size and after - held < (4 << 20)
