"""Files that the training side reads, damaged in any way: read, or refused with the file's name."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.atomic_files import write_cache
from penstock.domains.audio.files import AudioFile, load_index
from penstock.domains.folds.engine import RunDirectory
from penstock.domains.folds.fold import CURVES
from penstock.errors import PenstockError
from penstock.training import CheckpointManager, TrainingConfig
from penstock.training.checkpoint_files import git_commit, write_checkpoint
from penstock.training.run.directory import read_lines
from penstock.tuning import DataLoaderConfig
from penstock.tuning.trials import TuneCache


class Settings:
    """What `TrainingConfig.save` writes."""

    name = "settings.json"

    def write(self, folder):
        TrainingConfig().save(folder / self.name)

    def read(self, folder):
        TrainingConfig.load(folder / self.name).validate()


class Registry:
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


class Run:
    """What a run by folds says of itself."""

    name = "run.json"

    def write(self, folder):
        RunDirectory(folder, {"seed": 1, "k_folds": 4})

    def read(self, folder):
        RunDirectory(folder, {"seed": 1, "k_folds": 4})


class Log:
    """The CSV log of a run."""

    name = "metrics.csv"

    def write(self, folder):
        (folder / self.name).write_text("epoch,loss,step\n0,0.5,1\n0,,2\n1,0.25,3\n")

    def read(self, folder):
        assert all(int(line["step"]) < 3 for line in read_lines(folder / self.name, below=3))
        read_lines(folder / self.name)


class Metadata:
    """The table of a folder of spectrograms."""

    name = "metadata.csv"

    def write(self, folder):
        for name in "ab":
            np.save(folder / f"{name}.npy", np.zeros((2, 3), np.float32))
        text = "filename,class_id,author,original_audio\na.npy,0,me,x\nb.npy,1,you,y\n"
        (folder / self.name).write_text(text)

    def read(self, folder):
        dataset = penstock.SpectrogramFolder(folder)
        assert 0 <= dataset.labels.min() and len(dataset.authors) == len(dataset)


class Pixels:
    """A table of pixels."""

    name = "pixels.csv"

    def write(self, folder):
        (folder / self.name).write_text("label,author,p0,p1\n0,me,1,255\n1,you,0,2\n")

    def read(self, folder):
        table = penstock.read_pixel_table(folder / self.name, (1, 2))
        assert (table.features >= 0).all() and (table.features <= 1).all()


class Steering:
    """The config.json of a steering dataset."""

    name = "config.json"

    def write(self, folder):
        penstock.build_steering_directory(
            folder, pairs=6, embedding_dim=4, config={"curriculum": {"mode": "linear"}}
        )

    def read(self, folder):
        with penstock.JASPERSteeringDataset(folder, "train") as dataset:
            dataset.set_epoch(3)
            assert abs(sum(dataset.steering_probs.values()) - 1) < 1e-6
            dataset[0]
        penstock.validate_dataset(folder)


class Index:
    """What is remembered of audio files: looked at again where it is damaged."""

    name = "index.json"

    def write(self, folder):
        write_cache(folder / self.name, [asdict(AudioFile("a.wav", 10, 8000, 1, 20, 5))])

    def read(self, folder):
        for file in load_index(folder / self.name).values():
            assert file.frames >= 1 and isinstance(file.name, str)


class Tuned:
    """What was tuned before: measured again where it is damaged."""

    name = "tuned.json"

    def write(self, folder):
        TuneCache(folder / self.name).save(DataLoaderConfig(batch_size=4, num_workers=2))

    def read(self, folder):
        TuneCache(folder / self.name).load()


class Quarantine:
    """The samples that were replaced."""

    name = "replaced.jsonl"

    def write(self, folder):
        (folder / self.name).write_text('{"sample": 3, "replaced_by": 4}\n{"sample": 5}\n')

    def read(self, folder):
        dataset = penstock.ReplacingDataset([1, 2], quarantine=folder / self.name)
        assert all(isinstance(line, dict) for line in dataset.replaced)


class Head:
    """A repository's HEAD, whose commit goes into checkpoints."""

    name = ".git/HEAD"

    def write(self, folder):
        (folder / ".git").mkdir()
        (folder / self.name).write_text("a" * 40 + "\n")

    def read(self, folder):
        assert git_commit(folder) is None or len(git_commit(folder)) >= 40


FILES = [Settings, Registry, Run, Log, Metadata, Pixels, Steering, Index, Tuned, Quarantine, Head]
JUNK = [b"", b"\x00", b"\xff", b"\n", b",", b'"', b"{", b"[", b"}", b"]", b"-", b"9" * 40, b"1e999",
        b"nan", b"null", b"true", b"[" * 3000, b"\xc3", b":", b"a", b"9" * 5000]  # fmt: skip
VALUES = [None, True, "x", "", -1, 1.5, 10**30, float("nan"), float("inf"), [], [1], {}, {"a": 1}]


def read_or_refused(kind, folder):
    try:
        kind.read(folder)
    except PenstockError as error:
        said = str(error)
        assert kind.name.rpartition("/")[2] in said or str(folder.name) in said, said
        assert "\n" not in said and len(said) < 1500, said
        return False
    return True


@pytest.fixture(scope="module", params=FILES, ids=lambda kind: kind.__name__)
def written(request, tmp_path_factory):
    """A kind of file, the folder it is in, and its bytes."""
    kind, folder = request.param(), tmp_path_factory.mktemp("files")
    kind.write(folder)
    assert read_or_refused(kind, folder)
    return kind, folder, (folder / kind.name).read_bytes()


@given(data=st.data())
@settings(max_examples=20)
def test_changed_bytes_are_read_or_refused_with_the_files_name(written, data):
    kind, folder, content = written
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 9))
        content = content[:at] + data.draw(st.sampled_from(JUNK)) + content[at + cut :]
    (folder / kind.name).write_bytes(content)
    read_or_refused(kind, folder)


@given(data=st.data())
@settings(max_examples=20)
def test_values_of_another_type_are_read_or_refused_with_the_files_name(written, data):
    kind, folder, content = written
    if not kind.name.endswith(".json"):
        return
    tree = json.loads(content)
    for _ in range(data.draw(st.integers(1, 2))):
        tree = changed(tree, data)
    (folder / kind.name).write_text(json.dumps(tree))
    read_or_refused(kind, folder)


def changed(tree, data):
    """The same JSON with one value of it replaced, removed or renamed."""
    if isinstance(tree, dict | list) and tree and data.draw(st.integers(0, 3)):
        key = data.draw(st.sampled_from([*tree] if isinstance(tree, dict) else [*range(len(tree))]))
        copy = tree.copy()
        how = data.draw(st.sampled_from(["change", "remove", "rename"]))
        if how == "change":
            copy[key] = changed(tree[key], data)
        elif how == "remove":
            del copy[key]
        elif isinstance(copy, dict):
            copy[f"{key}x"] = copy.pop(key)
        return copy
    return data.draw(st.sampled_from(VALUES))


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "not text"])
def test_a_file_that_cannot_be_read_at_all_is_refused_with_its_name(written, what, tmp_path):
    kind, _, _ = written
    kind.write(tmp_path)
    file = tmp_path / kind.name
    file.unlink()
    if what == "a folder":
        file.mkdir()
    elif what == "a link to nothing":
        file.symlink_to(tmp_path / "nothing")
    else:
        file.write_bytes(b"\xff\xfe\x00")
    read_or_refused(kind, tmp_path)


# -- checkpoints of folds, whose bytes are right and whose content is not


class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(3, num_classes)

    def forward(self, x):
        return self.layer(x)


def engine(folder, epochs=2):
    config = {"num_epochs": epochs, "batch_size": 4, "early_stopping": 0}
    return penstock.TrainingEngine(Net, 2, config, run_directory=folder, progress=False)


DATA = torch.utils.data.TensorDataset(torch.rand(12, 3), torch.arange(12) % 2)
PARTS = ([*range(8)], [*range(8, 12)])


@pytest.fixture(scope="module")
def fold_states(tmp_path_factory):
    """What a fold saves after an epoch, and what when it is done."""
    folder = tmp_path_factory.mktemp("fold")
    states, save = [], RunDirectory.save

    def kept(self, fold, state):
        save(self, fold, state)
        states.append(torch.load(self.file_of(fold), weights_only=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", kept)
        engine(folder).run_single_fold(DATA, *PARTS)
    return folder, states[0], states[-1]


@given(data=st.data(), done=st.booleans())
@settings(max_examples=20)
def test_a_fold_with_other_content_is_trained_or_refused_with_its_name(fold_states, data, done):
    folder, unfinished, finished = fold_states
    state = changed(finished if done else unfinished, data)
    if not isinstance(state, dict):
        state = {"x": state}
    write_checkpoint(folder / "fold_1.pt", state)
    try:
        result = engine(folder).run_single_fold(DATA, *PARTS)
        assert len(result["history"]["val_losses"]) >= 1
        assert all(f"val_{curve}" in result["history"] for curve in CURVES)
    except PenstockError as error:
        assert "fold_1.pt" in str(error) and "delete it to train fold 1 again" in str(error)
        (folder / "fold_1.pt").unlink()  # what the message advises
        assert engine(folder).run_single_fold(DATA, *PARTS)["history"]["total_epochs"] == 2
