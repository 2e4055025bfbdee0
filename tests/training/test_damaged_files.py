"""Files that the training side reads, damaged in any way: read, or refused with the file's name."""

import torch

import penstock
from penstock.training import CheckpointManager, TrainingConfig
from penstock.training.checkpoint_files import git_commit
from penstock.training.run.directory import read_lines
from penstock.tuning import DataLoaderConfig
from penstock.tuning.trials import load_result, save_result
from tests.damage import DamagedFile


class TestSettings(DamagedFile):
    """What `TrainingConfig.save` writes."""

    name = "settings.json"

    def write(self, folder):
        TrainingConfig().save(folder / self.name)

    def read(self, folder):
        TrainingConfig.load(folder / self.name).validate()


class TestRegistry(DamagedFile):
    """The registry of a `CheckpointManager`: made again from the checkpoints."""

    name = "checkpoint_registry.json"

    def write(self, folder):
        manager, model = CheckpointManager(folder), torch.nn.Linear(1, 1)
        for epoch in (1, 2):
            manager.save(model, None, None, epoch, {"val_loss": 1.0 / epoch})

    def read(self, folder):
        manager = CheckpointManager(folder)
        assert manager.load(manager.get_latest(), restore_rng=False)["epoch"] in (1, 2)
        assert manager.get_best() is not None and len(manager.list_checkpoints()) == 2


class TestLog(DamagedFile):
    """The CSV log of a run."""

    name = "metrics.csv"

    def write(self, folder):
        (folder / self.name).write_text("epoch,loss,step\n0,0.5,1\n0,,2\n1,0.25,3\n")

    def read(self, folder):
        assert all(int(line["step"]) < 3 for line in read_lines(folder / self.name, below=3))
        read_lines(folder / self.name)


class TestTuned(DamagedFile):
    """What was tuned before: measured again where it is damaged."""

    name = "tuned.json"

    def write(self, folder):
        save_result(folder / self.name, DataLoaderConfig(batch_size=4, num_workers=2))

    def read(self, folder):
        load_result(folder / self.name)


class TestQuarantine(DamagedFile):
    """The samples that were replaced."""

    name = "replaced.jsonl"

    def write(self, folder):
        (folder / self.name).write_text('{"sample": 3, "replaced_by": 4}\n{"sample": 5}\n')

    def read(self, folder):
        dataset = penstock.ReplacingDataset([1, 2], quarantine=folder / self.name)
        assert all(isinstance(line, dict) for line in dataset.replaced)


class TestHead(DamagedFile):
    """A repository's HEAD, whose commit goes into checkpoints."""

    name = ".git/HEAD"

    def write(self, folder):
        (folder / ".git").mkdir()
        (folder / self.name).write_text("a" * 40 + "\n")

    def read(self, folder):
        assert git_commit(folder) is None or len(git_commit(folder)) >= 40
