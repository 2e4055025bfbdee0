"""Every question and error of docs/faq.md, reproduced."""

from __future__ import annotations

import json
import re
import sys
from itertools import islice
from pathlib import Path

import datasets
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from penstock import (
    ChunkedDataLoader,
    DataLoaderConfig,
    DataLoaderFactory,
    DataLoaderPerformanceMonitor,
    TaskSpec,
    TextCollator,
)
from penstock.datamodules import UniversalDataModule
from penstock.datamodules.inputs import LIGHTNING_PACKAGES
from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    create_loader,
    validate_dataset,
    validate_first_batch,
)
from penstock.errors import BatchError, ConfigError, StateError
from penstock.training import CheckpointManager

PAGE = Path(__file__).parents[2] / "docs" / "faq.md"
ANSWERED = {
    "The loader hangs, or fails to pickle, with `num_workers > 0`": "pickle",
    "The order differs between runs": "another_order_each_run",
    "The order is the same every epoch": "same_order_every_epoch",
    "Training waits for data (overhead above 5 %)": "waits_for_data",
    "After a resume the same samples are delivered again": "after_a_resume",
    "`the state belongs to ... samples, this loader has ...: the dataset changed`": "changed",
    "`checkpoint ... is corrupted`": "corrupted",
    "`custom_state cannot be in a checkpoint`": "custom_state",
    "`tokenizer required`": "tokenizer_required",
    "`... has no length, so val_split=0.2 cannot be computed`": "no_length",
    "Lightning: `Expected a parent`": "expected_a_parent",
    "`Split file not found`": "split_file",
    "`pair_index references source 500, but only 400 sources exist`": "references_a_source",
    "`NaN detected in question_emb`": "nan_detected",
    "Where do I look first?": "look_first",
}


def test_every_entry_of_the_page_has_a_test():
    asked = re.findall(r"^### (.+)$", PAGE.read_text(), re.M)
    assert asked == list(ANSWERED)
    tests = [name for name in globals() if name.startswith("test_")]
    for words in ANSWERED.values():
        assert any(words in name for name in tests), words


def test_what_cannot_be_pickled_is_named_and_read_without_workers():
    class Local(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index

    config = DataLoaderConfig(batch_size=4, num_workers=2)
    for data, collate in ((Local(), None), (list(range(8)), lambda samples: torch.tensor(samples))):
        with pytest.warns(UserWarning, match=r"cannot be sent to a worker.*num_workers=0 is used"):
            loader = DataLoaderFactory.create_dataloader(data, config, data_collator=collate)
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(8))


def order(seed, build=DataLoaderFactory.create_dataloader):
    config = DataLoaderConfig(batch_size=8, num_workers=0, seed=seed)
    return torch.cat(list(build(torch.arange(64), config))).tolist()


def test_another_order_each_run_comes_of_no_seed():
    assert order(None) != order(None)
    assert order(42) == order(42)
    stock = [torch.cat(list(DataLoader(range(64), 8, shuffle=True))).tolist() for _ in range(2)]
    assert stock[0] != stock[1]


def test_the_same_order_every_epoch_comes_of_building_the_loader_anew():
    assert order(42) == order(42)  # two loaders: each begins with its first epoch
    module = UniversalDataModule(torch.arange(64), num_workers=0)
    epochs = [torch.cat(list(module.train_dataloader())).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    another = ChunkedDataLoader(torch.arange(64), 8, shuffle=True)
    another.set_epoch(1)
    assert torch.cat(list(another)).tolist() != order(42)


class Pads:
    pad_token_id = 0


def test_whether_training_waits_for_data_is_measured_in_next():
    texts = [{"input_ids": list(range(1, 100))}] * 64
    config = DataLoaderConfig(batch_size=32, num_workers=0, collate_fn=TextCollator(Pads()))
    loader = DataLoaderFactory.create_dataloader(texts, config)
    figures = DataLoaderPerformanceMonitor().time_batch_loading(loader, num_batches=2)
    assert {"mean_batch_time", "first_batch_time"} <= set(figures)
    assert loader.state_dict()["position"] == 0  # measuring moves nothing


def test_after_a_resume_from_a_seed_the_same_samples_come_again_and_from_a_state_not():
    module = UniversalDataModule(torch.arange(64), batch_size=8, num_workers=0)
    seen = torch.cat(list(islice(module.train_dataloader(), 3)))
    from_seed, from_state = (
        UniversalDataModule(torch.arange(64), batch_size=8, num_workers=0, seed=module.seed)
        for _ in range(2)
    )
    again = torch.cat(list(islice(from_seed.train_dataloader(), 3)))
    assert torch.equal(again, seen)
    from_state.load_state_dict(module.state_dict())
    rest = torch.cat(list(from_state.train_dataloader()))
    assert not set(rest.tolist()) & set(seen.tolist())


def test_a_state_of_a_dataset_that_changed_is_refused():
    state = ChunkedDataLoader(torch.arange(1000), 8, shuffle=True).state_dict()
    with pytest.raises(StateError, match=r"1,000 samples, this loader has 1,200.*changed"):
        ChunkedDataLoader(torch.arange(1200), 8, shuffle=True).load_state_dict(state)


def saved(directory, **options):
    model = torch.nn.Linear(1, 1)
    return CheckpointManager(directory).save(model, None, None, 1, {"val_loss": 1}, **options)


def test_a_corrupted_checkpoint_names_a_whole_one(tmp_path):
    good, bad = saved(tmp_path), saved(tmp_path)
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(RuntimeError, match=r"is corrupted .*recovery: load\(") as error:
        CheckpointManager(tmp_path).load(bad)
    assert good.name in str(error.value)


def test_custom_state_is_what_loads_again(tmp_path):
    array = np.ones(2)
    with pytest.raises(ConfigError, match="custom_state cannot be in a checkpoint"):
        saved(tmp_path, custom_state={"loss": np.float32(1), "mean": array, "path": Path("x")})
    kept = {"loss": float(np.float32(1)), "mean": torch.from_numpy(array), "path": str(Path("x"))}
    path = saved(tmp_path, custom_state=kept)
    assert CheckpointManager(tmp_path).load(path)["custom_state"]["loss"] == 1.0


def test_tokenizer_required_for_text():
    module = UniversalDataModule([{"input_ids": [1]}] * 4, task_spec=TaskSpec.lm_tiny())
    with pytest.raises(ConfigError, match="tokenizer required"):
        module.train_dataloader()
    given = UniversalDataModule(
        [{"input_ids": [1]}] * 4, task_spec=TaskSpec.lm_tiny(), tokenizer=Pads(), num_workers=0
    )
    assert len(list(given.train_dataloader())) == 1


def test_what_has_no_length_is_split_by_hand():
    stream = datasets.Dataset.from_dict({"i": list(range(10))}).to_iterable_dataset()
    with pytest.raises(ConfigError, match=r"has no length, so val_split=0.2 cannot be computed"):
        UniversalDataModule(stream)
    module = UniversalDataModule(stream.skip(2), val_data=stream.take(2), num_workers=0)
    assert sum(len(batch["i"]) for batch in module.train_dataloader()) == 8


def test_expected_a_parent_comes_of_importing_lightning_too_late():
    with pytest.MonkeyPatch.context() as before_the_import:
        for name in LIGHTNING_PACKAGES:
            before_the_import.delitem(sys.modules, name, raising=False)
        early = UniversalDataModule(torch.arange(10), num_workers=0)
    late = UniversalDataModule(torch.arange(10), num_workers=0)
    assert not isinstance(early, pl.LightningDataModule)
    assert isinstance(late, pl.LightningDataModule)


# -- steering datasets


@pytest.fixture
def directory(tmp_path) -> Path:
    return build_steering_directory(tmp_path / "data", pairs=60, embedding_dim=8)


def change(directory: Path, name: str, place: tuple[int, ...], value: float) -> None:
    tensor = torch.load(directory / f"{name}.pt", weights_only=True)
    tensor[place] = value
    torch.save(tensor, directory / f"{name}.pt")


def test_a_split_file_that_is_missing_is_named(directory):
    (directory / "val_idx.pt").unlink()
    with pytest.raises((OSError, ValueError), match=r"Split file not found.*val_idx"):
        create_loader(directory, "val", batch_size=32)
    with pytest.raises(ValueError, match="split must be one of"):
        create_loader(directory, "valid", batch_size=32)


def test_a_pair_that_references_a_source_that_does_not_exist_is_named(directory):
    change(directory, "pair_index", (3, 1), 500)
    with pytest.raises(ValueError, match=r"pair_index references source 500, but only \d+ sources"):
        create_loader(directory, "train", batch_size=8)
    report = validate_dataset(directory)
    assert any("pair_index references source 500" in str(each) for each in report.findings)


def test_nan_detected_in_an_embedding_names_field_and_row(directory):
    questions = torch.load(directory / "question_embs.pt", weights_only=True)
    change(directory, "question_embs", (slice(None),), questions / 0 * 0)
    with pytest.raises(AssertionError, match="NaN detected in question_emb") as error:
        validate_first_batch(create_loader(directory, "train", batch_size=8))
    assert isinstance(error.value, BatchError)
    assert any(
        "NaN detected in question_emb" in str(each) for each in validate_dataset(directory).findings
    )


def test_where_to_look_first(directory):
    assert validate_first_batch(create_loader(directory, "train", batch_size=8))
    sample = JASPERSteeringDataset(directory, split="train")[0]
    assert sample["question_emb"].shape == (8,)
    assert json.loads((directory / "config.json").read_text())["embedding_dim"] == 8
    batch = next(iter(create_loader(directory, "train", batch_size=2, num_workers=0)))
    assert len(batch["question_emb"]) == 2
