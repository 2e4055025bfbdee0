"""Code of a guide to data modules runs, block after block as a reader would paste it.

Programs of our own make the guide's calls; its blocks run where the document is available, with
only their imports changed. Those on task specs and collators are run in tests/collate.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest
import torch
from torch.utils.data import TensorDataset

from penstock.collate import CollatorRegistry, TaskSpec
from penstock.datamodules import UniversalDataModule
from penstock.loaders import Loader
from tests.datamodules.guide_programs import PROGRAMS
from tests.seeds import run_block, seed_blocks

COLLATOR_BLOCKS = range(1, 5)  # of document 003; run in tests/collate
CHANGES = {
    "from utils.training.engine.data import DataModuleProtocol": (
        "from penstock.datamodules import DataModuleProtocol"
    ),
    "from utils.training.engine.data import DataLoaderFactory, DataLoaderConfig": (
        "from penstock import DataLoaderFactory, DataLoaderConfig"
    ),
    "from utils.training.engine.data import UniversalDataModule": (
        "from penstock.datamodules import UniversalDataModule"
    ),
    "from utils.training.task_spec import TaskSpec": "from penstock import TaskSpec",
    "from utils.training.training_config import TrainingConfig": (
        "from penstock.training import TrainingConfig"
    ),
    "from utils.training.engine.checkpoint import CheckpointManager": (
        "from penstock.training import CheckpointManager"
    ),
    # what would be downloaded is made here; what the guide leaves out of its module is added
    "from datasets import load_dataset": "from tests.datamodules.hub import load_dataset",
    "import pytorch_lightning as pl": "import tests.datamodules.guide_lightning as pl",
}
FROM_OTHERS = [
    "ignore:.*LeafSpec.*:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:This DataLoader will create",  # more workers than some machines have cores
]
pytestmark = [pytest.mark.filterwarnings(each) for each in FROM_OTHERS]


def blocks_of_document() -> list[str]:
    found = seed_blocks("003", CHANGES)
    return [block for index, block in enumerate(found) if index not in COLLATOR_BLOCKS]


class Guide:
    """What a reader has after some of the blocks: a module that worker processes can import."""

    def __init__(self, blocks: list[str], monkeypatch) -> None:
        self.blocks, self.module = blocks, ModuleType("the_guide")
        monkeypatch.setitem(sys.modules, "the_guide", self.module)
        self.names, self.opened = self.module.__dict__, []

    def run(self, *numbers: int) -> dict:
        for number in numbers:
            run_block(self.blocks[number - 1], self.names, f"block {number}")
            closable = (Loader, UniversalDataModule)
            self.opened += [each for each in self.names.values() if isinstance(each, closable)]
        return self.names


@pytest.fixture(params=["our programs", "the document"])
def guide(request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    CollatorRegistry.reset()
    ours = [*PROGRAMS.values()]
    made = Guide(ours if request.param == "our programs" else blocks_of_document(), monkeypatch)
    made.names.update(torch=torch, TaskSpec=TaskSpec)
    yield made
    for each in made.opened:
        each.close()


def test_every_block_of_the_guide_has_a_program_of_our_own():
    assert len(blocks_of_document()) == len(PROGRAMS)


def test_only_import_lines_are_changed():
    for before, after in CHANGES.items():
        assert before.split()[0] == after.split()[0] in ("from", "import")


def test_a_class_with_the_two_methods_is_a_data_module(guide):
    names = guide.run(1)
    assert isinstance(names["dm"], names["DataModuleProtocol"])


def test_loaders_are_made_with_and_without_workers_and_agree(guide):
    names = guide.run(2)
    assert len(names["loader"]) == 4 and names["batch"][0].shape == (4, 32)
    guide.run(3, 4)
    assert torch.equal(names["batch1"][0], names["batch2"][0])


def test_a_corpus_of_raw_lines_and_images_of_the_hub_are_loaded(guide):
    from tests.datamodules.hub import trained_tokenizer

    guide.names["tokenizer"] = trained_tokenizer()
    names = guide.run(5)
    assert names["input_ids"].shape == names["labels"].shape
    assert len(names["data_module"].train_data) + len(names["data_module"].val_data) == 24
    guide.run(6)
    batch = next(iter(names["train_loader"]))
    assert batch["pixel_values"].shape == (32, 3, 224, 224)
    guide.run(7)
    images = names["data_module"]
    assert (len(images.train_data), len(images.val_data)) == (40, 20)
    batch = next(iter(images.train_dataloader()))
    assert batch["pixel_values"].shape == (40, 3, 32, 32) and batch["labels"].max() == 9
    guide.run(8)
    (batch,) = next(iter(names["data_module"].train_dataloader()))
    assert batch.shape == (32, 128) and len(names["data_module"].val_data) == 100


def test_every_configuration_of_the_guide_makes_a_loader(guide):
    """Defect: persistent workers without workers, as the guide has them, could not be."""
    names = guide.run(2)
    names["my_custom_collator"] = len
    names.update(task_spec=None, tokenizer=None, UniversalDataModule=UniversalDataModule)
    for number in (9, 10, 11, 15, 16, 17, 19):
        guide.run(number)
        loader = names["factory"].create_dataloader(names["dataset"], names["config"])
        assert len(loader) == 4


def test_checkpoints_and_configurations_go_with_a_data_module(guide):
    names = guide.run(2)
    names.update(task_spec=None, tokenizer=None, epoch=5, step=2, train_loader=names["loader"])
    guide.run(12)
    assert (names["data_module"].batch_size, names["data_module"].seed) == (32, 42)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    names.update(model=model, optimizer=optimizer, scheduler=scheduler)
    guide.run(13)
    assert names["state"]["custom_state"] == {"data_module_seed": 42, "epoch_step": 5 * 4 + 2}
    assert names["data_module"].seed == 42 and names["path"].exists()


def test_lightning_trains_a_module_that_returns_our_loaders(guide):
    names = guide.run(1, 2)
    guide.names.update(TaskSpec=TaskSpec)
    labels = torch.arange(200)
    names["data_module"] = UniversalDataModule(
        [{"labels": each} for each in labels], num_workers=0, batch_size=8
    )
    guide.run(14)
    seen = names["module"].seen
    assert len(seen) == 4 and len({tuple(batch) for batch in seen}) == 4


def test_profiling_and_troubleshooting(guide, capsys):
    names = guide.run(2)
    dataset = TensorDataset(torch.randn(320, 8))
    names["train_loader"] = names["factory"].create_dataloader(
        dataset, names["DataLoaderConfig"](num_workers=0)
    )
    guide.run(18)
    assert re.search(r"DataLoader overhead: \d+\.\d%", capsys.readouterr().out)
    from torch.utils.data import DataLoader, Dataset

    names.update(Dataset=Dataset, DataLoader=DataLoader, collator=torch.utils.data.default_collate)
    guide.run(20, 21, 22, 23)
    shown = capsys.readouterr().out
    assert "Collator time" in shown and "Help on class UniversalDataModule" in shown
