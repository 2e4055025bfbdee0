"""A configuration tree as S4's codebases have them builds and trains as it is."""

import sys

import numpy as np
import pytest
import soundfile
import torch

from penstock import ChunkedDataLoader
from penstock.training.build import TaskModule, build
from penstock.training.config import read_settings
from penstock.training.run import train
from tests.training.build.jobs import fit
from tests.training.config.trees import S4

MODELS = "imports=[sashimi_of_s4]"  # beside the tree


@pytest.fixture(autouse=True)
def corpora(tmp_path, monkeypatch):
    """25 short files under both names, so that every split has some."""
    monkeypatch.setenv("DATA_PATH", str(tmp_path))
    for corpus in ("musdb18mono", "youtube-mix"):
        (tmp_path / corpus).mkdir()
        for number in range(25):
            wave = np.sin(np.arange(8192 + number) / (5 + number), dtype=np.float32)
            soundfile.write(tmp_path / corpus / f"{number}.wav", wave, 16000)
    yield
    # the audio example registers a model of the same name: each test imports its own again
    sys.modules.pop("sashimi_of_s4", None)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(
    ("file", "overrides"),
    [
        ("config", ["experiment=audio/sashimi-musdb18mono"]),
        ("experiment/audio/sashimi-musdb18mono", []),
    ],
)
def test_the_experiment_of_the_seed_builds_unchanged(file, overrides):
    made = build(read_settings(S4 / f"{file}.yaml", [*overrides, MODELS]))
    module, loader = made.module, made.data.train_dataloader()
    assert isinstance(module, TaskModule) and type(module.model).__name__ == "SmallSashimi"
    assert module.encoder.steps[0].weight.shape == (65536, 64)
    assert module.decoder.steps[0].output.weight.shape == (65536, 64)
    assert (made.data.train_chunk_size, made.data.val_chunk_size) == (2000, 200)
    assert isinstance(loader, ChunkedDataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (1, 4, True)
    x, y, _ = loader.peek()
    assert x.shape == (1, 8192) and y.shape == (1, 8192, 1) and int(y.max()) < 65536
    found = module.configure_optimizers()
    optimizer, scheduler = found["optimizer"], found["lr_scheduler"]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["lr"] for group in optimizer.param_groups] == [0.004, 0.001]  # S4's own groups
    assert scheduler["interval"] == "epoch" and scheduler["monitor"] == "val/loss"
    assert isinstance(scheduler["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau)
    made.data.close()


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_an_experiment_trains_in_chunks():
    # what a user types; no file of the tree is changed
    typed = ["experiment=audio/sashimi-youtubemix", MODELS, "train.train_chunk_size=20"]
    typed += ["train.val_chunk_size=2", "trainer.max_epochs=3", "loader.num_workers=0"]
    typed += [
        "dataset.sample_len=1024",
        "model.d_model=16",
        "model.n_layers=2",
        "callbacks.learning_rate_monitor=null",
    ]
    made = build(read_settings(S4 / "config.yaml", typed))
    trainer = fit(made)
    samples = len(made.data.dataset_train)
    assert trainer.global_step == 60 and samples == 22 * 8
    assert made.data.train_dataloader().state_dict()["position"] == 60
    scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert {"train/loss", "val/loss", "val/bpb", "val/accuracy", "val/accuracy@3"} <= set(scores)
    assert scores["val/bpb"] == pytest.approx(scores["val/loss"] / np.log(2), rel=1e-4)
    assert scores["val/accuracy"] <= scores["val/accuracy@3"]
    assert scores["val/loss"] < np.log(256)  # it learned something


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_run_of_the_tree_is_kept_and_resumed(tmp_path):
    typed = ["experiment=audio/sashimi-youtubemix", MODELS, f"run_dir={tmp_path}/run"]
    typed += ["train.train_chunk_size=4", "train.val_chunk_size=2", "loader.num_workers=0"]
    typed += ["dataset.sample_len=512", "model.d_model=8", "model.n_layers=1"]
    typed += [
        "scheduler=cosine_warmup",
        "trainer.enable_progress_bar=false",
        "trainer.log_every_n_steps=1",
    ]
    train(read_settings(S4 / "config.yaml", [*typed, "trainer.max_epochs=2"]))
    resumed = train(
        read_settings(S4 / "config.yaml", [*typed, "trainer.max_epochs=3"]), resume=True
    )
    assert (resumed.steps, resumed.chunks, resumed.samples) == (12, 3, 12)
    assert (tmp_path / "run" / "checkpoints" / "best.ckpt").is_file()
