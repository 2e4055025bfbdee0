"""An error in one batch: ``next()`` continues after it, ``iter()`` repeats it, nothing is lost."""

import gc
import multiprocessing
import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from penstock import ChunkedDataLoader, StreamLoader, WorkerError
from penstock.datamodules.sequence_loaders import TBPTTDataLoader


class Bad(Dataset):
    """Raises for some samples, as long as it is broken; in a worker where it is a file's to say."""

    def __init__(self, bad=(5,), error=ValueError, trap=None):
        self.bad, self.error, self.trap = bad, error, trap

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad and (self.trap is None or self.trap.exists()):
            raise self.error(f"sample {index} is bad")
        return index


def run(loader, errors=(ValueError, KeyError)):
    """Every batch of an iteration, "error" for each that raised."""
    batches, got = iter(loader), []
    while True:
        try:
            got.append(next(batches).tolist())
        except StopIteration:
            return got
        except errors:
            got.append("error")


EXECUTORS = {
    "inline": {},
    "threads": {"executor": "threads", "threads": 2},
    "worker": {"num_workers": 1},
    "workers": {"num_workers": 2},
    "short-lived workers": {"num_workers": 2, "persistent_workers": False},
}


@pytest.mark.parametrize("bad", [(5,), (0,), (11,), (0, 1, 4, 10), tuple(range(12))])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_same_iterator_continues_with_the_next_batch_as_torchs_does(bad, executor):
    with ChunkedDataLoader(Bad(bad), 2, **EXECUTORS[executor]) as loader:
        assert run(loader) == run(DataLoader(Bad(bad), 2))
        assert loader.state_dict()["epoch"] == 1  # all of it was passed
        assert run(loader) == run(DataLoader(Bad(bad), 2))


def test_workers_outlive_an_error_of_the_dataset():
    with ChunkedDataLoader(Bad(), 2, num_workers=2) as loader:
        batches = iter(loader)
        next(batches)
        before = {child.pid for child in multiprocessing.active_children()}
        next(batches)
        with pytest.raises(ValueError, match="sample 5 is bad"):
            next(batches)
        assert next(batches).tolist() == [6, 7]
        assert {child.pid for child in multiprocessing.active_children()} == before


def collate_badly(samples):
    if 5 in samples:
        raise ValueError("cannot collate 5")
    return torch.tensor(samples)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(12))


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Bad(), {"batch_size": 2, "sampler": range(12)}),
        (Bad(), {"batch_size": 2, "sampler": range(12), "num_workers": 1}),
        (Bad(), {"batch_size": 2, "generator": torch.Generator()}),
        (Bad(), {"batch_sampler": [[0, 1], [5], [2, 3]]}),
        (Bad(), {"batch_size": None, "collate_fn": torch.tensor}),
        (Numbers(), {"batch_size": 2, "collate_fn": collate_badly}),
        (range(12), {"batch_size": 2, "collate_fn": collate_badly}),
    ],
)
def test_what_passes_through_to_torch_continues_too(dataset, options):
    expected = run(DataLoader(dataset, **options))
    gc.collect()  # the error of a worker holds torch's iterator, in a cycle
    assert "error" in expected
    with ChunkedDataLoader(dataset, **options) as loader:
        assert run(loader) == expected
    with ChunkedDataLoader(dataset, limit_batches=4, **options) as limited:
        assert run(limited) == expected[:4]
    gc.collect()


@pytest.mark.parametrize("chunk", [None, 3, 6])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_after_an_error_ended_a_loop_the_next_one_repeats_the_batch(tmp_path, executor, chunk):
    trap = tmp_path / "trap"
    trap.touch()
    options = {"shuffle": False, **EXECUTORS[executor]}
    with ChunkedDataLoader(Bad((5,), trap=trap), 2, chunk, **options) as loader:
        seen = []
        with pytest.raises(ValueError, match="sample 5 is bad"):
            for batch in loader:
                seen += batch.tolist()
        assert seen == [0, 1, 2, 3] and loader.state_dict()["position"] == 4
        with pytest.raises(ValueError, match="sample 5 is bad"):
            next(iter(loader))  # nothing was repaired
        trap.unlink()
        while loader.state_dict()["epoch"] == 0:
            seen += torch.cat(list(loader)).tolist()
        assert seen == list(range(12))


def test_the_cursor_passes_a_failed_batch_only_when_the_next_one_is_asked_for():
    loader = ChunkedDataLoader(Bad((2,)), 2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="sample 2"):
        next(batches)
    assert (loader.state_dict()["position"], loader.remaining) == (2, 5)
    assert next(batches).tolist() == [4, 5]
    assert loader.state_dict()["position"] == 6
    del batches  # and left: without a chunk size the epoch is over, as after any break
    assert next(iter(loader)).tolist() == [0, 1] and loader.state_dict()["epoch"] == 1


def test_moving_the_loader_forgets_the_error():
    loader = ChunkedDataLoader(Bad((2,)), 2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="sample 2"):
        next(batches)
    loader.seek(0, 3)
    assert next(iter(loader)).tolist() == [6, 7]


class Deadly(Dataset):
    """Sample 9 ends its process, until the file is there."""

    def __init__(self, fixed):
        self.fixed = fixed

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 9 and get_worker_info() is not None and not self.fixed.exists():
            os._exit(3)
        return index


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("advice", ["iterate again", "num_workers=0"])
def test_the_advice_after_a_worker_died_is_true(tmp_path, advice):
    fixed, seen = tmp_path / "fixed", []
    with ChunkedDataLoader(Deadly(fixed), 2, num_workers=1) as loader:
        with pytest.raises(RuntimeError) as died:
            for batch in loader:
                seen += batch.tolist()
        assert not isinstance(died.value, WorkerError) or advice in str(died.value)
        state = loader.state_dict()
        assert seen == list(range(state["position"])) and state["epoch"] == 0
        if advice == "iterate again":
            fixed.touch()
            again = loader
        else:
            again = ChunkedDataLoader(Deadly(fixed), 2, num_workers=0)
            again.load_state_dict(state)
        seen += torch.cat(list(again)).tolist()
    assert seen == list(range(24))


class Ending(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 2:
            next(iter(()))
        return index


@pytest.mark.parametrize("options", [{}, {"executor": "threads"}, {"num_workers": 1}])
def test_a_dataset_that_raises_stop_iteration_does_not_end_the_epoch_silently(options):
    with ChunkedDataLoader(Ending(), 2, **options) as loader:
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)
        assert loader.state_dict()["position"] == 2


def test_an_interrupt_repeats_the_batch_and_is_like_a_break_otherwise():
    loader = ChunkedDataLoader(Bad((2,), error=KeyboardInterrupt), 2)
    batches = iter(loader)
    next(batches)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    loader.dataset.bad = ()
    assert next(batches).tolist() == [2, 3]
    loader.dataset.bad = (4,)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    del batches
    assert next(iter(loader)).tolist() == [0, 1]


def transform(batch, rng):
    if (batch == 5).any():
        raise ValueError("5 is bad")
    return batch


def test_a_stream_continues_and_repeats_too():
    data = np.arange(12, dtype=np.float32)
    with StreamLoader(data, 2, shuffle=False, transform=transform) as loader:
        got = run(loader)
        assert got == [[0, 1], [2, 3], "error", [6, 7], [8, 9], [10, 11]]
        with pytest.raises(ValueError, match="5 is bad"):
            list(loader)
        loader.close()
        loader.transform = None
        assert torch.cat(list(loader)).tolist() == list(range(4, 12))


class Sequences(Dataset):
    """Sequences of four steps; one cannot be read."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 1:
            raise ValueError("sequence 1 is bad")
        return torch.full((4,), index), torch.zeros(4, 1), {}


def first(samples):
    return tuple(
        part.unsqueeze(0) if isinstance(part, torch.Tensor) else part for part in samples[0]
    )


@pytest.mark.parametrize("options", [{}, {"sampler": range(4)}])
def test_pieces_of_sequences_continue_after_a_bad_one(options):
    loader = TBPTTDataLoader(
        Sequences(), 1, chunk_len=2, overlap_len=1, collate_fn=first, **options
    )
    batches, got = iter(loader), []
    while True:
        try:
            got.append(int(next(batches)[0][0, 0]))
        except StopIteration:
            break
        except ValueError:
            got.append("error")
    assert got == [0, 0, "error", 2, 2, 3, 3]
