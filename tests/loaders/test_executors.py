"""Executors only execute: any workers, any start method, any way of reading give the same bits."""

import gc
import multiprocessing
import os
import random
from itertools import islice

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from penstock import (
    ChunkedDataLoader,
    current_epoch,
    current_reading,
    sample_generator,
    sample_keys,
)
from penstock.testing import assert_covers, assert_resumes_everywhere, same_batch

WORLDLY = ["fork", "forkserver", "spawn"]


class Augmented(Dataset):
    """Each sample with noise keyed by (seed, epoch, sample), and the epoch it was read in."""

    def __init__(self, samples=29):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        noise = torch.randn(3, generator=sample_generator(index, "noise"))
        return {"index": index, "noise": noise, "epoch": current_epoch(default=-1)}


class Batched(Augmented):
    """The same, read by ``__getitems__``."""

    def __getitems__(self, indices):
        assert indices == current_reading().samples.tolist()
        return [self[index] for index in indices]


class Gathered(Augmented):
    """A whole batch at once, as `__getbatch__`."""

    def __getbatch__(self, indices):
        keys = sample_keys(indices, "noise")
        return {"index": torch.from_numpy(indices), "keys": torch.from_numpy(keys.view(np.int64))}


def keyed_collate(samples):
    """A collator that asks for its keys, too."""
    reading = current_reading()
    keys = sample_keys(reading.samples, "collate").view(np.int64)
    return [sample["index"] for sample in samples], torch.from_numpy(keys), reading.epoch


def two_epochs(dataset=None, workers=0, **options):
    """Every batch of two epochs and a chunk, chunk by chunk."""
    if workers:
        options["num_workers"] = workers
    dataset = Augmented() if dataset is None else dataset
    options = {"chunk_size": 3, "drop_last": False, **options}
    with ChunkedDataLoader(dataset, 4, **options) as loader:
        return [batch for _ in range(2 * loader.total_chunks + 1) for batch in loader]


CONTROL = two_epochs()


def test_the_control_is_keyed_by_epoch_and_sample():
    first, second = {}, {}
    for batch in CONTROL:
        for row, index in enumerate(batch["index"].tolist()):
            epoch = batch["epoch"][row].item()
            assert epoch in (0, 1, 2)
            if epoch < 2:
                (first if epoch == 0 else second)[index] = batch["noise"][row]
    assert len(first) == len(second) == 29
    assert not any(torch.equal(first[i], second[i]) for i in first)  # another draw each epoch
    assert len({tuple(noise.tolist()) for noise in first.values()}) == 29


@pytest.mark.parametrize(
    ("workers", "method", "persistent"),
    [
        (1, "fork", False),
        (2, "fork", True),
        (4, "fork", True),
        (2, "forkserver", True),
        (1, "spawn", True),  # each one imports torch
    ],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_any_workers_and_start_method_deliver_the_same_bits(workers, method, persistent):
    options = {"multiprocessing_context": method, "persistent_workers": persistent}
    assert same_batch(two_epochs(workers=workers, **options), CONTROL)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("method", WORLDLY)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("prefetch", [1, 5])
@pytest.mark.parametrize("persistent", [True, False])
def test_the_large_matrix_of_executors_delivers_the_same_bits(
    workers, method, prefetch, persistent
):
    options = {"multiprocessing_context": method, "prefetch_factor": prefetch}
    options["persistent_workers"] = persistent
    assert same_batch(two_epochs(workers=workers, **options), CONTROL)


@pytest.mark.parametrize("options", [{"persistent_workers": False}, {"prefetch_factor": 7}])
def test_how_workers_are_kept_and_how_far_they_read_ahead_changes_nothing(options):
    assert same_batch(two_epochs(workers=2, **options), CONTROL)


@pytest.mark.parametrize("workers", [0, 2])
def test_getitems_gives_the_same_as_sample_by_sample(workers):
    assert same_batch(two_epochs(Batched(), workers), CONTROL)


def test_a_gathered_batch_is_the_same_in_workers():
    inline = two_epochs(Gathered())
    assert set(inline[0]) == {"index", "keys"}
    assert same_batch(two_epochs(Gathered(), workers=2), inline)
    other = two_epochs(Gathered(), collate_fn=keyed_collate)  # gathers only what it would collate
    assert isinstance(other[0], tuple)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collator_gets_the_epoch_and_samples_of_its_batch(workers):
    batches = two_epochs(workers=workers, collate_fn=keyed_collate)
    assert [epoch for _, _, epoch in batches][0::8][:3] == [0, 1, 2]
    assert same_batch(batches, two_epochs(collate_fn=keyed_collate))


def test_a_loader_with_workers_resumes_everywhere_and_covers():
    def make(rank=0, world=1):
        ranks = {"rank": rank, "world_size": world}
        return ChunkedDataLoader(torch.arange(11), 2, 3, num_workers=1, **ranks)

    assert_resumes_everywhere(make, epochs=1)
    assert_covers(make, 11, world_size=2)


def test_a_state_from_workers_is_what_was_delivered_not_what_was_prefetched():
    with ChunkedDataLoader(Augmented(), 4, 3, num_workers=2, prefetch_factor=4) as loader:
        head = list(islice(loader, 2))
        state = loader.state_dict()
    assert state["position"] == 8
    inline = ChunkedDataLoader(Augmented(), 4, 3)
    inline.load_state_dict(state)
    assert same_batch(head + list(inline), CONTROL[:3])


@pytest.mark.parametrize("workers", [0, 2])
def test_jumps_while_workers_read_ahead_deliver_what_was_asked(workers):
    options = {"num_workers": workers} if workers else {}
    with ChunkedDataLoader(Augmented(), 4, 3, **options) as loader:
        jumps = [
            lambda: loader.seek(1, 2),
            lambda: loader.set_chunk(0),
            lambda: loader.set_epoch(5),
            lambda: loader.load_state_dict(loader.state_dict() | {"epoch": 0, "position": 8}),
            lambda: loader.set_batch_size(3),
        ]
        for jump in jumps:
            next(iter(loader))  # leaves batches in flight
            jump()
            state = loader.state_dict()
            batch = next(iter(loader))
            order = loader.position.plan.order
            places = np.arange(state["position"], state["position"] + len(batch["index"]))
            assert batch["index"].tolist() == order.at(state["epoch"], places).tolist()
            assert batch["epoch"].tolist() == [state["epoch"]] * len(batch["index"])


class WhoReads(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return get_worker_info().id, os.getpid()


def test_one_set_of_persistent_workers_serves_all_chunks_epochs_and_jumps():
    with ChunkedDataLoader(WhoReads(), 4, 3, num_workers=2) as loader:
        pids = set()
        for turn in range(8):
            if turn == 5:
                loader.seek(9, 1)
            for _, batch_pids in loader:
                pids |= set(batch_pids.tolist())
        assert len(pids) == 2
        assert {child.pid for child in multiprocessing.active_children()} >= pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_close_ends_the_workers_and_the_loader_may_be_iterated_again():
    loader = ChunkedDataLoader(WhoReads(), 4, 3, num_workers=2)
    before = {pid for _, batch_pids in loader for pid in batch_pids.tolist()}
    loader.close()
    assert not any(psutil.pid_exists(pid) for pid in before)
    position = loader.state_dict()["position"]
    after = {pid for _, batch_pids in loader for pid in batch_pids.tolist()}
    assert position == 12 and not before & after
    loader.close()
    loader.close()


def test_workers_that_are_not_persistent_end_with_each_iteration():
    loader = ChunkedDataLoader(WhoReads(), 4, 3, num_workers=2, persistent_workers=False)
    pids = [{pid for _, got in loader for pid in got.tolist()} for _ in range(2)]
    assert not pids[0] & pids[1]
    left = next(iter(loader))[1].tolist()
    gc.collect()
    assert not any(psutil.pid_exists(pid) for pid in (*pids[0], *pids[1], *left))


# -- ambient generators


def ambient():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ambient_generators_are_neither_read_nor_disturbed(workers, shuffle):
    batches = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = ambient()
        batches.append(two_epochs(workers=workers, shuffle=shuffle))
        assert ambient() == before
    assert same_batch(*batches)


class Rude(Dataset):
    """Draws from every ambient generator, as many datasets do."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_dataset_that_draws_from_ambient_generators_draws_differently_in_each_worker():
    with ChunkedDataLoader(Rude(), 4, 6, num_workers=2) as loader:
        draws = torch.stack([torch.stack(batch).double() for batch in loader])
    for generator in range(3):
        values = draws[:, generator].flatten()
        assert values.unique().numel() == values.numel()


# -- gathering


class Plain(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


TENSORS = torch.randn(23, 5), torch.arange(23), torch.rand(23, 2, 2).to(torch.bfloat16)
DATASETS = {
    "tensor": TENSORS[0],
    "tensor of numbers": TENSORS[1],
    "tensors": TensorDataset(*TENSORS),
    "subset": Subset(TensorDataset(*TENSORS), [3, 1, 4, 1, 5, 9, 2, 6]),
    "subset of subset": Subset(Subset(TENSORS[1], list(range(20, 2, -2))), [4, 0, 2]),
    "list": [float(i) for i in range(9)],
    "strings": np.array(["a", "bc", "d", "e"]),
    "rows": np.arange(24.0).reshape(12, 2),
    "big endian": np.arange(12).astype(">i4"),
} | {
    f"array of {dtype}": np.arange(12).astype(dtype)
    for dtype in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?", "c8")
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_gathered_batch_is_what_torchs_collation_would_form(name):
    dataset = DATASETS[name]
    ours = list(ChunkedDataLoader(dataset, 4))
    assert same_batch(ours, list(DataLoader(Plain(dataset), 4)))
    shuffled = ChunkedDataLoader(dataset, 4, shuffle=True)
    picked = [shuffled.samples_at(step).tolist() for step in range(len(shuffled))]
    theirs = DataLoader(Plain(dataset), batch_sampler=picked)
    assert same_batch(list(shuffled), list(theirs))


def test_a_gathered_batch_is_the_users_own():
    data = torch.zeros(8, 2)
    for batch in ChunkedDataLoader(data, 4, 1):
        batch += 1
    assert data.sum() == 0


class Doubling(TensorDataset):
    """A subclass that changes samples must not be gathered around."""

    def __getitem__(self, index):
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class DoublingMany(TensorDataset):
    def __getitems__(self, indices):
        return [tuple(2 * t[i] for t in self.tensors) for i in indices]


@pytest.mark.parametrize("kind", [Doubling, DoublingMany])
def test_a_tensor_dataset_that_changes_its_samples_is_asked_for_them(kind):
    (batch,) = ChunkedDataLoader(kind(torch.arange(4)), 4)
    assert batch[0].tolist() == [0, 2, 4, 6]


class Nested(Dataset):
    """A dataset that reads from a loader of its own: both keep their keys."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        before = current_reading().samples.tolist()
        inner = next(iter(ChunkedDataLoader(Augmented(), 3, seed=9)))
        assert current_reading().samples.tolist() == before
        return index, inner["noise"]


def test_a_dataset_may_read_from_a_loader_of_its_own():
    assert len(list(ChunkedDataLoader(Nested(), 2))) == 2
    assert current_reading() is None
