"""The universal data module: any data, a task, and loaders that are right."""

from __future__ import annotations

import json
import logging
import random

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from penstock.collate import CollatorRegistry, TaskSpec
from penstock.datamodules import UniversalDataModule
from penstock.errors import ConfigError, StateError
from penstock.loaders import StreamLoader
from penstock.training import TrainingConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*")


class Letters:
    """A tokenizer of letters."""

    pad_token_id, mask_token_id, vocab_size, all_special_ids = 0, 1, 128, (0, 1)

    def __call__(self, text):
        return [ord(letter) for letter in text]


class Images(Dataset):
    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return {"pixel_values": torch.full((3, 224, 224), index / 100), "labels": index % 10}


LINES = ["", " = Title = \n", "first line\n", " \n", "the second line\n", ""]


def wikitext(times=5):
    """As the hub's: raw strings, a third of them empty or blank."""
    return datasets.Dataset.from_dict({"text": LINES * times})


def cifar10(samples=30):
    """As the hub's: PIL images under ``img``, classes under ``label``."""
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship"]
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=[*names, "truck"])}
    )
    pictures = [Image.new("RGB", (32, 32), (8 * i, 0, 255)) for i in range(samples)]
    labels = [i % 10 for i in range(samples)]
    return datasets.Dataset.from_dict({"img": pictures, "label": labels}, features=features)


def numbers(module, side="train"):
    loader = getattr(module, f"{side}_dataloader")()
    return [int(i) for batch in loader for i in (batch[0] if isinstance(batch, list) else batch)]


def module_of(data, **options):
    return UniversalDataModule(data, **({"batch_size": 4, "num_workers": 0} | options))


# -- what it gives


def test_a_split_keeps_all_samples_and_every_argument_can_be_read():
    data, registry = TensorDataset(torch.arange(100)), CollatorRegistry()
    module = UniversalDataModule(data, batch_size=16, collator_registry=registry, num_workers=0)
    assert (len(module.train_data), len(module.val_data)) == (80, 20)
    assert (len(module.train_dataloader()), len(module.val_dataloader())) == (5, 2)
    assert sorted(numbers(module) + numbers(module, "val")) == list(range(100))
    assert (module.seed, module.batch_size, module.val_split) == (42, 16, 0.2)
    assert (module.num_workers, module.collator_registry) == (0, registry)
    assert module.task_spec is module.tokenizer is module.data_collator is module.test_data is None


def test_a_validation_set_of_its_own_leaves_the_training_data_whole():
    data, held_out = TensorDataset(torch.arange(100)), TensorDataset(torch.arange(20))
    module = module_of(data, val_data=held_out, test_data=[7, 8, 9])
    assert module.train_data is data and module.val_data is held_out
    assert len(module.train_dataloader().dataset) == 100
    assert len(module.val_dataloader().dataset) == 20
    assert numbers(module, "test") == [7, 8, 9]


def test_without_a_split_there_is_no_validation():
    module = module_of(torch.arange(10), val_split=0)
    assert module.val_dataloader() is None and module.val_data is None
    assert module.test_dataloader() is None
    assert sorted(numbers(module)) == list(range(10))


def test_asking_for_the_loader_every_epoch_still_gives_every_epoch_its_own_order():
    """Defect: a loader built again each time had the same order each time."""
    module = module_of(torch.arange(50), val_split=0)
    epochs = [numbers(module) for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert module.train_dataloader() is module.train_dataloader()


def test_validation_is_the_same_each_time():
    module = module_of(torch.arange(50))
    next(iter(module.val_dataloader()))
    assert numbers(module, "val") == numbers(module, "val")


def test_equal_seeds_give_equal_modules_and_others_give_others():
    one, same, other = (module_of(torch.arange(60), seed=seed) for seed in (1, 1, 2))
    assert numbers(one) == numbers(same) != numbers(other)
    assert numbers(one, "val") == numbers(same, "val") != numbers(other, "val")


def test_worker_processes_change_nothing():
    alone, helped = module_of(Images(12)), module_of(Images(12), num_workers=2)
    with helped:
        for ours, theirs in zip(alone.train_dataloader(), helped.train_dataloader(), strict=True):
            assert torch.equal(ours["labels"], theirs["labels"])


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_executor_may_be_asked_for_and_changes_nothing(executor):
    with UniversalDataModule(torch.arange(50), batch_size=4, executor=executor) as module:
        assert module.train_dataloader().executor == executor
        assert numbers(module) == numbers(module_of(torch.arange(50)))


def test_making_and_reading_loaders_never_touches_the_global_generators():
    """Defect: workers of a validation loader drew their seeds from torch's default generator."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with module_of(Images(12), num_workers=1) as module:
        for loader in (module.train_dataloader(), module.val_dataloader()):
            list(loader)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


# -- kinds of data


@pytest.mark.parametrize(
    "data",
    [
        torch.arange(20),
        np.arange(20),
        TensorDataset(torch.arange(20)),
        list(range(20)),
        [torch.tensor(i) for i in range(20)],
    ],
    ids=["tensor", "array", "dataset", "list of numbers", "list of tensors"],
)
def test_any_rows_are_loaded(data):
    module = module_of(data)
    assert sorted(numbers(module) + numbers(module, "val")) == list(range(20))


def test_equal_tensors_are_one_batch_and_unequal_ones_are_padded_with_their_lengths():
    """Defect: tensors of unequal length could not be loaded at all."""
    equal = module_of([torch.arange(128) for _ in range(50)], batch_size=8)
    (batch,) = next(iter(equal.train_dataloader()))
    assert batch.shape == (8, 128)
    ragged = module_of([torch.arange(1, n + 1) for n in range(1, 11)], val_split=0.5)
    for loader in (ragged.train_dataloader(), ragged.val_dataloader()):
        for padded, lengths in loader:
            assert padded.shape == (len(lengths), lengths.max())
            assert ((padded > 0).sum(1) == lengths).all()


def test_tensors_go_to_the_collator_of_a_task():
    """Defect: what a list of tensors became, the text collator could not take."""
    data = [torch.arange(1, n + 1) for n in range(1, 11)]
    module = module_of(data, task_spec=TaskSpec.lm_tiny(), tokenizer=Letters())
    batch = next(iter(module.train_dataloader()))
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]
    assert (batch["attention_mask"].sum(1) == batch["input_ids"].max(1).values).all()


def test_a_source_streams_from_its_storage(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(3000, dtype=np.float32))
    with module_of(tmp_path / "rows.npy", batch_size=100) as module:
        assert isinstance(module.train_dataloader(), StreamLoader)
        assert sorted(numbers(module) + numbers(module, "val")) == list(range(3000))
        assert numbers(module, "val") == numbers(module, "val")


def test_a_source_and_a_collator_work_together():
    arrays = {"pixel_values": np.zeros((20, 3, 8, 8), np.uint8), "labels": np.arange(20)}
    with module_of(arrays, task_spec=TaskSpec.vision_tiny()) as module:
        batch = next(iter(module.train_dataloader()))
    assert batch["pixel_values"].dtype == torch.float32
    assert batch["pixel_values"].shape == (4, 3, 8, 8) and batch["labels"].dtype == torch.int64


def test_a_hugging_face_dataset_in_torch_format_is_batched_as_it_is():
    data = datasets.Dataset.from_dict({"x": [[i, i] for i in range(10)]}).with_format("torch")
    batch = next(iter(module_of(data).train_dataloader()))
    assert batch["x"].shape == (4, 2)


def test_presets_of_other_sizes_refuse_nothing():
    module = module_of(Images(20), task_spec=TaskSpec.vision_tiny(), val_split=0.1)
    batch = next(iter(module.train_dataloader()))
    assert batch["pixel_values"].shape == (4, 3, 224, 224)
    assert set(batch["labels"].tolist()) <= set(range(10))


def test_images_of_the_hub_become_pixel_values_and_labels():
    module = module_of(cifar10(), val_data=cifar10(8), task_spec=TaskSpec.vision_tiny())
    batch = next(iter(module.train_dataloader()))
    assert sorted(batch) == ["labels", "pixel_values"]
    assert batch["pixel_values"].shape == (4, 3, 32, 32)
    assert batch["pixel_values"].dtype == torch.float32 and batch["pixel_values"].isfinite().all()


# -- raw text


def test_raw_lines_are_tokenised_and_empty_ones_left_out_and_counted(caplog):
    caplog.set_level(logging.INFO, "penstock")
    module = module_of(wikitext(), task_spec=TaskSpec.lm_tiny(), tokenizer=Letters(), val_split=0.2)
    assert "dropping 15 of 30 rows without text" in caplog.text
    assert (len(module.train_data), len(module.val_data)) == (12, 3)
    for loader in (module.train_dataloader(), module.val_dataloader()):
        for batch in loader:
            assert (batch["attention_mask"].sum(1) > 0).all()
            assert torch.equal(batch["labels"] == -100, batch["attention_mask"] == 0)


def test_empty_lines_may_be_kept():
    task = {"task_spec": TaskSpec.lm_tiny(), "tokenizer": Letters()}
    module = module_of(wikitext(), **task, keep_empty_text=True, val_split=0)
    assert len(module.train_data) == 30
    assert sum(len(batch["input_ids"]) for batch in module.train_dataloader()) == 30


@pytest.mark.parametrize("field", ["text", "review"])
def test_the_field_of_the_text_is_found_or_named(field):
    rows = [{field: line, "stars": i} for i, line in enumerate(LINES)]
    spec = TaskSpec("reviews", "text_classification", target_field="stars")
    named = {} if field == "text" else {"text_field": field}
    for data in (rows, datasets.Dataset.from_list(rows)):
        module = module_of(data, task_spec=spec, tokenizer=Letters(), val_split=0, **named)
        batch = next(iter(module.train_dataloader()))
        assert sorted(batch["labels"].tolist()) == [1, 2, 4]
    by_task = TaskSpec("r", "text_classification", input_fields=[field], target_field="stars")
    module = module_of(rows, task_spec=by_task, tokenizer=Letters(), val_split=0)
    assert len(module.train_data) == 3


def test_a_tokenizer_alone_means_text():
    module = module_of(["one", "", "three"], tokenizer=Letters(), val_split=0)
    (batch,) = module.train_dataloader()
    assert sorted(batch["attention_mask"].sum(1).tolist()) == [3, 5]


def test_masks_differ_by_epoch_and_are_the_same_with_workers():
    spec = TaskSpec("masked", "masked_lm")
    alone = module_of(["abcdefghij" * 8] * 8, task_spec=spec, tokenizer=Letters(), val_split=0)
    epochs = [torch.cat([b["input_ids"] for b in alone.train_dataloader()]) for _ in range(2)]
    assert not torch.equal(*epochs)
    helped = module_of(alone.train_data, task_spec=spec, tokenizer=Letters(), val_split=0)
    helped.num_workers = 1
    with helped:
        assert torch.equal(
            epochs[0], torch.cat([b["input_ids"] for b in helped.train_dataloader()])
        )


# -- which collator


def test_the_collator_given_wins_and_a_registry_of_ones_own_is_asked():
    registry = CollatorRegistry()
    registry.register("mine", modality="vision")(lambda: lambda samples: ("mine", len(samples)))
    task = TaskSpec.vision_tiny()
    own = module_of(Images(8), task_spec=task, collator_registry=registry, val_split=0)
    assert next(iter(own.train_dataloader())) == ("mine", 4)
    given = module_of(Images(8), task_spec=task, data_collator=len, val_split=0)
    assert list(given.train_dataloader()) == [4, 4]


def test_a_text_task_without_a_tokenizer_says_so_when_a_loader_is_asked_for():
    module = module_of(TensorDataset(torch.arange(10)), task_spec=TaskSpec.lm_tiny())
    with pytest.raises(ConfigError, match="tokenizer required"):
        module.train_dataloader()


def test_a_collator_that_cannot_go_to_a_worker_stays_here_with_a_warning():
    """The guide's own collators are closures, used with its default of two workers."""
    module = module_of(Images(8), data_collator=lambda samples: len(samples), num_workers=2)
    with pytest.warns(UserWarning, match=r"collate_fn.*num_workers=0 is used"):
        loader = module.train_dataloader()
    assert sum(loader) == 6


# -- state


def test_a_state_resumes_anywhere_in_another_module():
    """Defect: a saved seed began the first epoch again."""
    whole = module_of(torch.arange(30))
    stream = [batch.tolist() for _ in range(3) for batch in whole.train_dataloader()]
    for done in range(len(stream)):
        module, seen = module_of(torch.arange(30)), []
        while len(seen) < done:
            for batch in module.train_dataloader():
                seen.append(batch.tolist())
                if len(seen) == done:
                    break
        state = json.loads(json.dumps(module.state_dict()))
        resumed = module_of(torch.arange(30))
        resumed.load_state_dict(state)
        while len(seen) < len(stream):
            seen += [batch.tolist() for batch in resumed.train_dataloader()]
        assert seen == stream


def test_a_drawn_seed_is_logged_kept_in_the_state_and_taken_over(caplog):
    caplog.set_level(logging.INFO, "penstock")
    module = module_of(torch.arange(30), seed=None)
    assert f"seed={module.seed}" in caplog.text
    first = next(iter(module.train_dataloader())).tolist()
    other = module_of(torch.arange(30), seed=None)
    other.load_state_dict(module.state_dict())
    assert other.seed == module.seed
    assert numbers(other, "val") == numbers(module, "val")
    assert first + numbers(other) == numbers(module_of(torch.arange(30), seed=module.seed))


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"seed": 1}, "seed 42, this module 1"),
        ({"val_split": 0.3}, "val_split 0.2, this module 0.3"),
        ({"train_data": torch.arange(1, 31)}, "data"),
    ],
)
def test_a_state_of_another_module_is_refused_saying_what_differs(options, difference):
    state = module_of(torch.arange(30)).state_dict()
    other = module_of(
        **({"data": torch.arange(30)} | {k.replace("train_", ""): v for k, v in options.items()})
    )
    with pytest.raises(StateError, match=difference):
        other.load_state_dict(state)


def test_a_loaders_state_is_not_a_modules():
    module = module_of(torch.arange(30))
    with pytest.raises(StateError, match="must have the format 'penstock-module/1'"):
        module.load_state_dict(module.train_dataloader().state_dict())


def test_a_drawn_seed_cannot_change_under_a_loader_that_was_given_out():
    state = module_of(torch.arange(30), seed=5).state_dict()
    module = module_of(torch.arange(30), seed=None)
    module.train_dataloader()
    with pytest.raises(StateError, match="load the state before you ask for a loader"):
        module.load_state_dict(state)


# -- from a configuration


def test_a_training_configuration_gives_batch_size_seed_and_split():
    config = TrainingConfig(batch_size=5, random_seed=9, validation_split=0.5)
    module = UniversalDataModule.from_config(config, torch.arange(20), num_workers=0)
    assert (module.batch_size, module.seed, module.val_split) == (5, 9, 0.5)
    assert UniversalDataModule.from_config(config, torch.arange(20), batch_size=2).batch_size == 2


# -- refusals


def test_what_holds_no_samples_is_refused_with_what_does():
    with pytest.raises(ConfigError, match="train_data: cannot load samples from int; pass a Hug"):
        UniversalDataModule(7)


def test_several_datasets_at_once_are_refused():
    both = datasets.DatasetDict({"train": wikitext(), "test": wikitext()})
    with pytest.raises(ConfigError, match=r"several datasets, \['test', 'train'\]"):
        UniversalDataModule(both)


def test_tensors_that_padding_cannot_make_equal_are_refused_naming_two():
    module = module_of([torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(1, 3)], val_split=0)
    with pytest.raises(
        ConfigError, match=r"only in their first axis: sample 1 is \(2, 4\).*sample 2 is \(1, 3\)"
    ):
        module.train_dataloader()


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"num_workers": -1}, {"val_split": 1.0}])
def test_impossible_settings_are_refused_at_once(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        UniversalDataModule(torch.arange(10), **options)
