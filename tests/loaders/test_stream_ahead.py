"""The next window is read while this one is used, over the end of an epoch too."""

import threading

import numpy as np
import torch

from penstock.keyed import current_reading, keyed_generator, sample_keys
from penstock.loaders.stream import StreamLoader
from penstock.testing import WatchedSource, same_batch

ARRAY = np.arange(600)
GEOMETRY = {"block_samples": 10, "window_blocks": 5}
PATIENCE = 20.0


class Counted:
    """Sets ``reached`` when ``wanted`` blocks have been read."""

    def __init__(self, wanted):
        self.left, self.lock, self.reached = wanted, threading.Lock(), threading.Event()

    def __call__(self, start, stop):
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.reached.set()


def test_the_next_window_is_read_before_this_one_is_used_up():
    second = Counted(10)  # two windows of five blocks
    with StreamLoader(WatchedSource(ARRAY, second), 10, **GEOMETRY) as loader:
        next(iter(loader))  # one batch of the first window
        assert second.reached.wait(PATIENCE)


def test_the_next_epoch_is_begun_before_the_last_batch_of_this_one_is_taken():
    beyond = Counted(61)  # one block of the next epoch
    with StreamLoader(WatchedSource(ARRAY, beyond), 10, **GEOMETRY) as loader:
        batches = iter(loader)
        for _ in range(59):
            next(batches)
        assert beyond.reached.wait(PATIENCE)  # and the last batch was not asked for yet
        assert loader.state_dict()["epoch"] == 0
        next(batches)
        assert loader.state_dict() | {"epoch": 1, "position": 0} == loader.state_dict()


def test_reading_continues_over_the_ends_of_chunks_and_epochs():
    source = WatchedSource(ARRAY)
    with StreamLoader(source, 10, chunk_size=7, **GEOMETRY) as loader:
        while loader.state_dict()["epoch"] < 3:
            for _ in loader:
                pass
        next(iter(loader))
    assert len(source.reads) <= 3 * 60 + 3 * 5 + 5  # nothing was read twice


def test_no_more_is_read_ahead_than_there_is_room_for():
    beyond = Counted(5 * 5 + 1)
    with StreamLoader(WatchedSource(np.arange(100_000), beyond), 10, **GEOMETRY) as loader:
        next(iter(loader))
        assert not beyond.reached.wait(1.0)  # without a bound it is there in milliseconds


def test_evaluation_reads_ahead_into_its_next_pass():
    beyond = Counted(61)  # one block of the next pass
    with StreamLoader(WatchedSource(ARRAY, beyond), 50, evaluation=True, **GEOMETRY) as loader:
        one = torch.cat(list(loader))
        assert beyond.reached.wait(PATIENCE)
        assert torch.equal(one, torch.cat(list(loader)))


# -- the end of the walk: transform and collate


def test_a_transform_gets_the_batch_and_a_generator_of_its_own():
    def transform(batch, rng):
        return {"x": batch, "noise": torch.rand(3, generator=rng)}

    def noise(loader):
        return [batch["noise"].tolist() for _ in range(2) for batch in loader]

    first = noise(StreamLoader(ARRAY, 20, transform=transform, **GEOMETRY))
    again = noise(StreamLoader(WatchedSource(ARRAY), 20, transform=transform, **GEOMETRY))
    other = noise(StreamLoader(ARRAY, 20, transform=transform, seed=7, **GEOMETRY))
    assert first == again
    assert len({tuple(draw) for draw in first}) == 60
    assert first[0] != other[0]
    key = (42, "transform", 0, 20, 0)
    assert first[1] == torch.rand(3, generator=keyed_generator(*key)).tolist()


def test_transform_then_collate_know_which_samples_they_have():
    seen = []

    def transform(batch, rng):
        reading = current_reading()
        seen.append((reading.epoch, reading.samples.tolist() == batch.tolist()))
        return batch, sample_keys(reading.samples, "mask")

    def collate(pair):
        assert current_reading() is not None
        return {"x": pair[0], "keys": pair[1].shape}

    with StreamLoader(ARRAY, 20, transform=transform, collate=collate, **GEOMETRY) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    assert seen == [(0, True)] * 30 + [(1, True)] * 30
    assert batches[0]["keys"] == (20,)
    assert current_reading() is None


def test_ambient_randomness_is_neither_read_nor_disturbed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    options = {"transform": lambda batch, rng: torch.rand(2, generator=rng), **GEOMETRY}
    with StreamLoader(ARRAY, 20, **options) as one, StreamLoader(ARRAY, 20, **options) as two:
        assert same_batch(list(one), list(two))
    assert torch.equal(torch.get_rng_state(), before)
