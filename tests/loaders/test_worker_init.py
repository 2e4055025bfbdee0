"""Seeds of worker processes: of all three generators, counted once."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from penstock.loaders import workers
from penstock.loaders.workers import seed_ambient, worker_init_fn


class Ambient(Dataset):
    """What a worker's ambient generators give, and its seed."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        worker = get_worker_info()
        assert torch.initial_seed() == worker.seed
        draws = [random.random(), float(np.random.random()), torch.rand(()).item()]
        return worker.id, worker.seed, draws


def of_workers(seed):
    loader = DataLoader(
        Ambient(),
        batch_size=None,
        num_workers=4,
        worker_init_fn=worker_init_fn,
        generator=torch.Generator().manual_seed(seed),
    )
    return sorted(loader)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4")
def test_workers_of_a_stock_loader_have_neighbouring_seeds_and_unrelated_draws():
    found = of_workers(5)
    base = found[0][1]
    assert [seed - base for _, seed, _ in found] == [0, 1, 2, 3]  # not 0, 2, 4, 6
    assert len({draw for _, _, draws in found for draw in draws}) == 12
    assert of_workers(5) == found
    assert of_workers(6) != found


@pytest.fixture(autouse=True)
def this_process_is_no_worker_after_the_test(monkeypatch):
    monkeypatch.setattr(workers, "_reseeds", False)


def draws_after(seed, function=seed_ambient):
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        function(seed)
        return random.random(), float(np.random.random()), torch.rand(()).item()
    finally:
        random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**63, 2**64 - 2])
def test_no_seed_is_too_large(seed):
    assert draws_after(seed) == draws_after(seed)
    assert draws_after(seed) != draws_after(seed + 1)


@pytest.mark.parametrize("worker_id", [0, 7, 2**32, 2**64])
def test_called_by_hand_with_the_largest_seed_it_does_not_raise(worker_id):
    def with_the_largest_seed(worker_id):
        torch.manual_seed(2**64 - 1)
        worker_init_fn(worker_id)

    draws = draws_after(worker_id, with_the_largest_seed)
    assert draws == draws_after(worker_id, with_the_largest_seed)
