"""The data of a configuration: whose loaders they are, and what arrives from them."""

import logging

import lightning.pytorch as L
import numpy as np
import pytest
import torch

from penstock import ChunkedDataLoader, StreamLoader
from penstock.errors import ConfigError, PlanError, SourceError
from penstock.integrations.lightning.fit_loaders import whole_batches
from tests.training.build.jobs import fit, job

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

TENSORS = """
    imports: [HERE]
    loader: {batch_size: 4}
    dataset:
      train: {_target_: HERE.tensors, size: 40}
      val: {_target_: HERE.tensors, size: 20}
    model: {_target_: HERE.Recorder}
    trainer: {max_epochs: 4, num_sanity_val_steps: 2}
"""
FIRST = [float(i) for i in range(20)]


def flat(batches):
    return [value for batch in batches for value in batch]


@pytest.mark.parametrize(
    ("sizes", "trained", "validated"),
    [
        ({}, 40, 20),
        ({"train_chunk_size": 3}, 12, 20),
        ({"val_chunk_size": 2}, 40, 8),
        ({"train_chunk_size": 3, "val_chunk_size": 2}, 12, 8),
    ],
)
def test_given_keys_and_what_happens(sizes, trained, validated, tmp_path):
    made = job(tmp_path, TENSORS, *(f"train.{name}={size}" for name, size in sizes.items()))
    train, val = made.data.train_dataloader(), made.data.val_dataloader()
    assert isinstance(train, ChunkedDataLoader) and isinstance(val, ChunkedDataLoader)
    assert (len(train), len(val)) == (trained // 4, validated // 4)
    assert train.use_chunked is bool(sizes)
    fit(made)
    seen = flat(made.module.trained)
    assert sorted(seen[:40]) == [float(i) for i in range(40)]  # all of it before any comes again
    assert len(seen) == (40 if trained == 12 else 4 * 40)  # chunks of 3, 3, 3 and 1 batches
    a_turn, scored = validated // 4, made.module.validated
    turns = [scored[i : i + a_turn] for i in range(0, len(scored), a_turn)]
    assert len(turns) == 4 and all(turn == turns[0] for turn in turns)
    assert len(set(flat(turns[0]))) == validated


def test_without_chunks_every_epoch_is_a_shuffle_and_limits_hold(tmp_path):
    made = job(tmp_path, TENSORS, "train.limit_train_batches=2", "trainer.max_epochs=2")
    fit(made)
    first, second = made.module.trained[:2], made.module.trained[2:]
    assert len(second) == 2 and first != second
    assert made.module.validated[:5] == [FIRST[i : i + 4] for i in range(0, 20, 4)]


def test_loaders_are_made_once(tmp_path):
    data = job(tmp_path, TENSORS).data
    assert data.train_dataloader() is data.train_dataloader()
    assert data.test_dataloader() == [] and not data.has("test")


def test_orders_and_seeds_are_those_of_the_section_train(tmp_path):
    def first(*overrides):
        data = job(tmp_path, TENSORS, "train.train_chunk_size=2", *overrides).data
        return flat(batch[0].tolist() for batch in data.train_dataloader())

    assert first("train.chunk_order=sequential") == FIRST[:8]
    assert first("train.chunk_shuffle=false") == FIRST[:8]
    assert first() == first("train.chunk_seed=42") != first("train.chunk_seed=7")
    assert len(set(first("train.chunk_order=block"))) == 8


def test_validation_may_cycle_through_its_partition(tmp_path):
    data = job(tmp_path, TENSORS, "train.val_chunk_size=2", "train.val_cycle=true").data
    loader = data.val_dataloader()
    turns = [flat(batch[0].tolist() for batch in loader) for _ in range(3)]
    assert sorted(flat(turns)) == FIRST


def test_a_path_is_a_stream(tmp_path, caplog):
    np.save(tmp_path / "data.npy", np.arange(64, dtype=np.float32))
    with caplog.at_level(logging.INFO, "penstock"):
        made = job(
            tmp_path,
            f"""
            train: {{train_chunk_size: 3, val_chunk_size: 1}}
            loader: {{batch_size: 4, num_workers: 4, drop_last: false, memory_budget: 1MB}}
            dataset: {{train: {{path: {tmp_path}/data.npy}}, val: {tmp_path}/data.npy}}
            model: {{_target_: HERE.Recorder}}
            """,
        )
    assert "loader.num_workers have no effect" in caplog.text
    train, val = made.data.train_dataloader(), made.data.val_dataloader()
    assert isinstance(train, StreamLoader) and isinstance(val, StreamLoader)
    with train, val:
        chunks = [flat(batch.tolist() for batch in train) for _ in range(6)]
        assert [len(chunk) for chunk in chunks] == [12, 12, 12, 12, 12, 4]
        assert sorted(flat(chunks)) == [float(i) for i in range(64)]
        scored = [flat(batch.tolist() for batch in val) for _ in range(2)]
        assert scored[0] == scored[1] and len(set(scored[0])) == 4


def test_one_path_may_be_split(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(64, dtype=np.float32))
    text = f"""
        loader: {{batch_size: 4, drop_last: false}}
        dataset: {{path: {tmp_path}/data.npy, val_split: 0.25}}
        model: {{_target_: HERE.Recorder}}
    """
    data = job(tmp_path, text).data
    with data.train_dataloader() as train, data.val_dataloader() as val:
        sides = [flat(batch.tolist() for batch in loader) for loader in (train, val)]
    assert [len(side) for side in sides] == [48, 16] and len(set(flat(sides))) == 64


ROLLOUTS = """
    loader: {{batch_size: 4, steps: 3, drop_last: false}}
    dataset: {dataset}
    model: {{_target_: HERE.Recorder}}
"""


@pytest.mark.parametrize(
    "dataset", ["{{path: {path}, val_split: 0.25}}", "{{train: {path}, val: {path}}}"]
)
@pytest.mark.parametrize("chunk", [(), ("train.val_chunk_size=2",)])
def test_no_rollout_jumps_in_time(dataset, chunk, tmp_path):
    np.save(tmp_path / "data.npy", np.arange(64))
    dataset = dataset.format(path=f"{tmp_path}/data.npy")
    data = job(tmp_path, ROLLOUTS.format(dataset=dataset), *chunk).data
    with data.train_dataloader() as train, data.val_dataloader() as val:
        found = [torch.cat(list(loader)) for loader in (train, val)]
    for windows in found:
        assert bool((windows[:, 1:] - windows[:, :-1] == 1).all())
        assert len(windows.unique(dim=0)) == len(windows)
    rows = [set(windows.flatten().tolist()) for windows in found]
    if "val_split" in dataset:
        assert not rows[0] & rows[1] and rows[0] == set(range(48))
    whole = 14 if "val_split" in dataset else 62
    assert len(found[1]) == (8 if chunk else whole)
    assert whole_batches(val) == -(-whole // 4)  # what the log of a run compares with


def test_data_modules_are_used_as_they_are(tmp_path, caplog):
    base = "model: {_target_: HERE.Recorder}\nloader: {batch_size: 2}\n"
    ours = """dataset:
        _target_: penstock.UniversalDataModule
        train_data: {_target_: HERE.tensors, size: 10}
        num_workers: 0
    """
    with caplog.at_level(logging.INFO, "penstock"):
        universal = job(tmp_path, base + "    ".join(ours.splitlines(True))).data
    assert "section 'loader' has no effect" in caplog.text
    assert isinstance(universal, L.LightningDataModule) and len(universal.train_data) == 8
    plain = job(tmp_path, base + "dataset: {_target_: HERE.PlainModule}\n").data
    assert isinstance(plain, L.LightningDataModule)
    assert len(plain.train_dataloader()) == 2 and plain.val_dataloader() == []


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`")
def test_a_module_may_bring_its_own_data(tmp_path):
    made = job(tmp_path, "model: {_target_: HERE.WithData}\ntrainer: {max_epochs: 1}\n")
    assert made.data is None
    fit(made)
    assert len(made.module.trained) == 2


def test_a_sequence_dataset_gets_loader_and_chunks(tmp_path):
    text = """
        imports: [HERE]
        train: {train_chunk_size: 3, val_chunk_size: 1, chunk_seed: 7}
        loader: {batch_size: 4, drop_last: true}
        dataset: {%s, size: 50, train_chunk_size: 5}
        model: {_target_: HERE.Recorder}
    """
    for named in ("_name_: tones", "_target_: HERE.Tones"):
        data = job(tmp_path, text % named).data
        assert (data.train_chunk_size, data.val_chunk_size, data.chunk_seed) == (3, 1, 7)
        assert len(data.train_dataloader()) == 3 and data.train_dataloader().batch_size == 4
        assert data.size == 50 and isinstance(data, L.LightningDataModule)
        x, y, extras = next(iter(data.train_dataloader()))
        assert torch.equal((x + 1) % 8, y) and extras == {}


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ("null", ConfigError, "has no training data"),
        ("{size: 3}", ConfigError, "must have a _name_"),
        ("{val: {_target_: HERE.tensors, size: 3}}", ConfigError, "there is no training data"),
        ("{train: {size: 3}}", ConfigError, "dataset.train (run.yaml, line 2): has no _target_"),
        ("{train: {_target_: HERE.tensors, sise: 3}}", ConfigError, "did you mean 'size'?"),
        ("{train: {_target_: HERE.tensors}}", ConfigError, "tensors needs 'size': set dataset.tr"),
        ("{train: {_target_: HERE.no}}", ConfigError, "cannot be imported"),
        ("{train: {_target_: a file.py}}", ConfigError, "cannot be imported"),
        ("{train: {_target_: no_such.thing}}", ConfigError, "No module named 'no_such'"),
        ("{train: {_target_: HERE.tensors, size: 4}, teste: 1}", ConfigError, "dataset.teste"),
        ("{_name_: tonse}", ConfigError, "unknown dataset 'tonse': did you mean 'tones'?"),
        ("{_name_: tones, train_chunk_sise: 3}", ConfigError, "train_chunk_size"),
        ("{_name_: tones, sise: 3}", ConfigError, "dataset.sise (run.yaml, line 2): unknown key"),
        ("{_name_: tones, sise: 3}", ConfigError, "did you mean 'size'?"),
        (
            "{_name_: qautoaudio, sample_len: abc}",
            ConfigError,
            "dataset.sample_len (run.yaml, line 2) must be an integer, got 'abc' (str)",
        ),
        (
            "{_name_: qautoaudio, path: nowhere}",
            SourceError,
            "dataset.path (run.yaml, line 2): path='nowhere' is not a folder: looked for",
        ),
        (
            "{train: {_target_: HERE.tensors, size: 4}, val: [{_target_: HERE.tensors, size: 4}]}",
            ConfigError,
            "dataset.val (run.yaml, line 2): must be one path or section, got list",
        ),
        ("nowhere.zarr", SourceError, "there is nothing at nowhere.zarr"),
        ("{train: {_target_: HERE.refuses, size: 3}}", FileNotFoundError, "the corpus is not here"),
        ("{_target_: HERE.tensors, size: 4, val_split: 1.5}", ConfigError, "val_split"),
    ],
)
def test_data_that_cannot_be_had_are_refused(dataset, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"imports: [HERE]\ndataset: {dataset}\nmodel: {{_target_: HERE.Recorder}}\n"
    with pytest.raises(error) as refused:
        job(tmp_path, text)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_stream_without_a_length_is_not_cut_into_chunks(tmp_path):
    text = """
        dataset: {train: {_target_: HERE.Stream}}
        loader: {batch_size: 2}
        model: {_target_: HERE.Recorder}
    """
    assert len(list(job(tmp_path, text).data.train_dataloader())) == 5
    with pytest.raises(PlanError, match="IterableDataset"):
        job(tmp_path, text, "train.train_chunk_size=2").data.train_dataloader()


def test_without_validation_data_a_size_of_it_is_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for typed in (
        ["train.val_chunk_size=3"],
        ["train.val_chunk_size=3", "train.train_chunk_size=2"],
    ):
        with pytest.raises(ConfigError) as refused:
            job(tmp_path, TENSORS, "~dataset.val", *typed)
        assert "train.val_chunk_size ('train.val_chunk_size=3' on" in str(refused.value)
        assert "there is no validation data for val_chunk_size=3" in str(refused.value)
    assert job(tmp_path, TENSORS, "~dataset.val", "train.train_chunk_size=2").data


def test_a_loader_section_without_effect_is_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        job(tmp_path, "model: {_target_: HERE.WithData}\nloader: {batch_size: 3}\n")
    assert caplog.messages == ["section 'loader' has no effect: WithData makes its own loaders"]
