"""Eight persistent workers, epoch after epoch: none dies, nothing grows."""

import multiprocessing

import pytest
import torch
from torch.utils.data import Dataset

from penstock.datasets import AugmentedDataset, StandardizedDataset
from penstock.metrics import tree_bytes
from penstock.tuning import DataLoaderFactory


class Recordings(Dataset):
    """Spectrograms that are made one by one."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((1, 32, 40), float(index)), index % 7


def recordings():
    standardized = StandardizedDataset(Recordings(), range(256), 100.0, 50.0)
    return AugmentedDataset(standardized, {"time_mask_param": 8, "freq_mask_param": 4, "p": 1.0})


def pids():
    return sorted(process.pid for process in multiprocessing.active_children())


@pytest.mark.filterwarnings("ignore:This DataLoader will create 8")
def test_eight_workers_serve_three_epochs_without_a_death_or_a_leak():
    with DataLoaderFactory.create_training_loader(
        recordings(), 16, has_augmentation=True, has_standardization=True, num_workers=8
    ) as loader:
        batches = [len(list(loader))]
        workers, memory = pids(), tree_bytes()
        for _ in range(2):
            batches.append(len(list(loader)))
        assert batches == [16, 16, 16]
        assert pids() == workers and len(workers) == 8
        assert tree_bytes() < 1.15 * memory
    assert pids() == []


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:This DataLoader will create 8")
def test_memory_is_the_same_after_two_hundred_epochs():
    with DataLoaderFactory.create_training_loader(recordings(), 16, num_workers=8) as loader:
        for _ in range(50):  # a forked worker comes to own each page it ever counts references in
            list(loader)
        memory = tree_bytes()
        for _ in range(150):
            list(loader)
        assert tree_bytes() < 1.05 * memory
