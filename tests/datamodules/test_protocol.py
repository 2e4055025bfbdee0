"""What counts as a data module."""

from __future__ import annotations

import subprocess
import sys

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from torch.utils.data import DataLoader

from penstock import DataLoaderConfig
from penstock.datamodules import DataModuleProtocol, UniversalDataModule


class Mine:
    def train_dataloader(self) -> DataLoader:
        return DataLoader(range(4))

    def val_dataloader(self) -> DataLoader:
        return DataLoader(range(4))


class OnlyTrains:
    def train_dataloader(self) -> DataLoader:
        return DataLoader(range(4))


class Lightnings(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        return DataLoader(range(4))

    def val_dataloader(self) -> DataLoader:
        return DataLoader(range(4))


def test_any_class_with_the_two_methods_is_a_data_module():
    assert isinstance(Mine(), DataModuleProtocol)
    assert isinstance(UniversalDataModule(torch.arange(10)), DataModuleProtocol)
    assert not isinstance(OnlyTrains(), DataModuleProtocol)
    assert not isinstance(DataLoaderConfig(), DataModuleProtocol)


def test_lightnings_own_data_module_is_one():
    assert isinstance(pl.LightningDataModule(), DataModuleProtocol)
    assert isinstance(Lightnings(), DataModuleProtocol)


def test_ours_is_lightnings_under_both_of_its_names():
    module = UniversalDataModule(torch.arange(10))
    assert isinstance(module, pl.LightningDataModule)
    assert isinstance(module, pytorch_lightning.LightningDataModule)
    assert isinstance(module, UniversalDataModule)
    assert type(module) is type(UniversalDataModule(torch.arange(10)))
    assert type(module).__qualname__ == "UniversalDataModule"  # checkpoints know it by this


def test_a_subclass_of_ones_own_is_lightnings_too():
    class Own(UniversalDataModule):
        pass

    module = Own(torch.arange(10), num_workers=0)
    assert isinstance(module, Own) and isinstance(module, pl.LightningDataModule)
    assert len(list(module.train_dataloader())) == 1


@pytest.mark.steady
def test_a_data_module_needs_neither_lightning_nor_hugging_face():
    """They are optional: nothing of them is imported by using one."""
    program = """
import sys, torch
from penstock.datamodules import UniversalDataModule
module = UniversalDataModule([torch.arange(3)] * 10, num_workers=0)
assert len(list(module.train_dataloader())) == 1
assert type(module) is UniversalDataModule
heavy = {"lightning", "pytorch_lightning", "datasets", "transformers", "pyarrow"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
