"""Refusals: each one clear sentence; and a seed that is drawn."""

import logging
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

from penstock import (
    BlockOrder,
    ChunkedDataLoader,
    PlanError,
    SequentialOrder,
    ShuffledOrder,
    StateError,
    WorkerError,
)
from penstock.testing import same_batch

DATA = torch.arange(100)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10**9))


def make(data=DATA, batch=4, chunk=5, **options):
    return ChunkedDataLoader(data, batch, chunk, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch_size must be at least 1 sample, got 0"),
        ({"batch": -3}, "batch_size must be at least 1 sample, got -3"),
        ({"chunk": 0}, "chunk_size must be at least 1 batch, got 0"),
        ({"chunk": -1}, "chunk_size must be at least 1 batch, got -1"),
        ({"data": []}, "cannot order 0 samples: an empty dataset has no order"),
        ({"data": [], "evaluation": True}, "cannot order 0 samples: an empty dataset"),
        ({"data": [], "chunk": None, "shuffle": True}, "cannot order 0 samples"),
        ({"rank": 0, "world_size": 101}, "100 samples for 101 ranks: some rank would get none"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"rank": 1}, "pass both rank and world_size, or neither: only rank was passed"),
        ({"world_size": 2}, "only world_size was passed"),
        ({"batch": 1, "rank": 0, "world_size": 3}, "batches of 1 cannot split 100 samples evenly"),
        ({"batch": 101, "drop_last": True}, "100 samples do not fill a step of 101"),
        ({"seed": -1}, r"seed must be at least 0, got -1"),
        ({"order": ShuffledOrder(99, 1)}, "the order has 99 samples, the dataset 100"),
        ({"sampler": SequentialSampler(DATA)}, "chunk_size=5 needs an order .*, and sampler has"),
        ({"batch_sampler": [[1, 2]], "batch": None}, "chunk_size=5 needs .* and batch_sampler"),
        ({"generator": torch.Generator()}, "chunk_size=5 needs .* and generator has none"),
        ({"data": Endless()}, "chunk_size=5 needs .* and an IterableDataset has none"),
        ({"in_order": False, "num_workers": 2}, "chunk_size=5 needs .* and in_order=False has"),
        ({"batch": None}, "chunk_size=5 needs .* and batch_size=None has none"),
        (
            {"chunk": None, "sampler": SequentialSampler(DATA), "order": SequentialOrder(100)},
            "order=.* needs an order .* and sampler has none",
        ),
        (
            {"chunk": None, "sampler": SequentialSampler(DATA), "rank": 0, "world_size": 2},
            "rank=0 needs an order .* and sampler has none",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_construction_in_one_sentence(options, words):
    with pytest.raises(ValueError, match=words) as refused:
        make(**options)
    assert "\n" not in str(refused.value)
    assert str(refused.value)[0].islower() or str(refused.value)[0].isdigit()


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda loader: loader.set_epoch(-1), "epoch must be at least 0, got -1"),
        (lambda loader: loader.seek(-1), "epoch must be at least 0, got -1"),
        (lambda loader: loader.seek(0, -1), "step must be at least 0, got -1"),
        (lambda loader: loader.set_chunk(-1), "chunk_idx must be at least 0, got -1"),
        (lambda loader: loader.set_batch_size(0), "batch_size must be at least 1 sample, got 0"),
    ],
)
def test_a_move_to_nowhere_is_refused_and_moves_nothing(move, words):
    loader = make()
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(PlanError, match=words):
        move(loader)
    assert loader.state_dict() == before


@pytest.mark.parametrize("step", [25, 10**6])
def test_a_step_past_the_epoch_is_refused(step):
    for ask in (lambda: make().seek(0, step), lambda: make().samples_at(step)):
        with pytest.raises(IndexError, match=r"step must be in \[0, 25\), got"):
            ask()


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (make(seed=7), "belongs to seed 42, this loader has seed 7: build .* the same seed"),
        (make(data=torch.arange(90)), "belongs to 100 samples, this loader has 90 samples: the da"),
        (make(shuffle=False), "belongs to 'shuffled' order, this loader has 'sequential' order"),
        (make(order=BlockOrder(100, 42, 5, 2)), "belongs to .*'shuffled' order, .*no block"),
        (make(data=torch.arange(100) + 1), "the data changed since the state was taken"),
    ],
)
def test_the_state_of_another_loader_is_refused_and_changes_nothing(loader, words):
    state = make().state_dict()
    before = loader.state_dict()
    with pytest.raises(StateError, match=words) as refused:
        loader.load_state_dict(state)
    assert "\n" not in str(refused.value)
    assert loader.state_dict() == before


@pytest.mark.parametrize("wrong", [None, [], {}, {"epoch": 1}, {"format": "penstock/0"}])
@pytest.mark.parametrize("seed", [42, None])
def test_what_is_no_state_of_this_release_is_refused(wrong, seed):
    with pytest.raises(StateError, match=r"not a loader state|this release reads 'penstock/1'"):
        make(seed=seed).load_state_dict(wrong)


def test_changed_data_may_be_allowed():
    loader = make(data=torch.arange(100) + 1)
    state = make().state_dict() | {"position": 8}
    loader.load_state_dict(state, allow_changed_data=True)
    assert loader.state_dict()["position"] == 8


def test_batch_size_chunk_size_workers_and_ranks_may_be_others():
    state = make().state_dict() | {"position": 24}
    for other in (
        make(batch=7),
        make(chunk=None, shuffle=True),
        make(num_workers=2),
        make(rank=1, world_size=3),
        make(drop_last=True),
    ):
        other.load_state_dict(state)
        assert other.state_dict() == state


# -- datasets that cannot go to workers


class Locked(Dataset):
    def __init__(self, unpicklable=None):
        self.inner = {"plain": 1}
        self.handle = unpicklable

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


class Outer(Locked):
    def __init__(self):
        super().__init__(Locked(threading.Lock()))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": Locked(threading.Lock())}, r"Locked\.handle \(lock\) cannot be sent to a worker"),
        ({"data": Locked(lambda: 1)}, r"Locked\.handle \(function\) cannot be sent"),
        ({"data": Outer()}, r"Outer\.handle\.handle \(lock\) cannot be sent"),
        ({"data": Locked(), "collate_fn": lambda samples: 1}, r"function \(function\) cannot be"),
        ({"data": Locked(), "worker_init_fn": lambda worker: 1}, r"function \(function\) cannot"),
    ],
)
def test_what_cannot_be_sent_to_a_worker_is_named(method, options, words):
    loader = make(batch=2, num_workers=2, multiprocessing_context=method, **options)
    with pytest.raises(WorkerError, match=words) as refused:
        next(iter(loader))
    assert "use num_workers=0" in str(refused.value)
    assert loader.state_dict()["position"] == 0


def test_reader_threads_and_fork_do_not_mix(caplog):
    """A fork copies the locks of threads that are not there to release them."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="penstock-reader")
    thread.start()
    try:
        with pytest.raises(PlanError, match=r"'fork' while reader threads run \(penstock-reader"):
            next(iter(make(num_workers=1, multiprocessing_context="fork")))
        with caplog.at_level(logging.INFO, "penstock"), make(num_workers=1) as loader:
            assert len(list(loader)) == 5  # another start method was chosen
        assert "workers start by forkserver" in caplog.text
    finally:
        done.set()
        thread.join()


# -- a seed that is drawn


def test_a_seed_of_none_is_drawn_once_logged_and_kept_in_the_state(caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        one, two = make(seed=None), make(seed=None)
    seeds = [loader.state_dict()["seed"] for loader in (one, two)]
    assert seeds[0] != seeds[1]
    assert all(f"using random seed {seed};" in caplog.text for seed in seeds)
    assert same_batch(list(one), list(make(seed=seeds[0])))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_drawn_seed_is_adopted_from_a_state(shuffle):
    one = make(seed=None, shuffle=shuffle)
    head = list(one)
    two = make(seed=None, shuffle=shuffle)
    two.load_state_dict(one.state_dict())
    assert two.state_dict() == one.state_dict()
    assert same_batch(list(two), list(one))
    assert len(head) == 5


def test_a_given_seed_is_never_replaced_nor_is_the_seed_of_a_given_order():
    state = make(seed=None).state_dict()
    for loader in (make(), make(seed=None, order=ShuffledOrder(100, 3))):
        with pytest.raises(StateError, match="this loader has seed"):
            loader.load_state_dict(state)


def test_a_refused_state_does_not_leave_its_seed_behind():
    loader = make(seed=None)
    before = loader.state_dict()
    for wrong in ({"samples": 7}, {"position": -1}, {"seed": 2**70}, {"fingerprint": "other"}):
        with pytest.raises(ValueError, match=r"samples|position|seed|data changed"):
            loader.load_state_dict(make(seed=5).state_dict() | wrong)
        assert loader.state_dict() == before


def test_states_of_any_tensor_can_be_taken():
    for data in (
        torch.zeros(4, 2, dtype=torch.bfloat16),
        torch.zeros(4, 2, requires_grad=True),
        np.array(["a", "b", "c", "d"]),
        np.array([{}, None, "x", 1], dtype=object),
        torch.zeros(4, 0),
    ):
        state = make(data=data, batch=2).state_dict()
        assert state == make(data=data, batch=2).state_dict()
        make(data=data, batch=2).load_state_dict(state)
