"""Streams without an index: what resuming them can promise."""

from __future__ import annotations

import multiprocessing

import datasets
import pytest
import torch
from torch.utils.data import IterableDataset

from penstock.collate import TaskSpec
from penstock.datamodules import UniversalDataModule
from penstock.errors import ConfigError, StateError
from penstock.loaders import ReplayLoader


class Counting(IterableDataset):
    """Says how often it was read; its order changes with the epoch."""

    def __init__(self, samples=10):
        self.samples, self.epoch, self.reads = samples, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.reads += 1
        return iter([(i + 3 * self.epoch) % self.samples for i in range(self.samples)])


class Letters:
    pad_token_id, mask_token_id, vocab_size, all_special_ids = 0, 1, 128, (0, 1)

    def __call__(self, text):
        return [ord(letter) for letter in text]


def hugging_face(samples=24, shards=3):
    """A stream with a shuffle buffer, whose content its own state does not hold."""
    data = datasets.Dataset.from_dict({"i": list(range(samples))})
    return data.to_iterable_dataset(num_shards=shards).shuffle(seed=3, buffer_size=7)


def loader_of(data, **options):
    return ReplayLoader(
        data, **({"batch_size": 4, "num_workers": 0, "collate_fn": None, "seed": 1} | options)
    )


def stream(loader, epochs=1):
    return [
        (batch["i"] if isinstance(batch, dict) else batch).tolist()
        for _ in range(epochs)
        for batch in loader
    ]


@pytest.mark.parametrize(
    ("make", "workers", "every"),
    [
        *((Counting, 0, 1), (hugging_face, 0, 3), (hugging_face, 2, 7)),  # workers are started
        pytest.param(hugging_face, 2, 1, marks=pytest.mark.proof),
    ],
)
def test_a_stream_resumes_exactly_from_every_batch(make, workers, every):
    whole = stream(loader_of(make(), num_workers=workers), epochs=3)
    assert whole[: len(whole) // 3] != whole[len(whole) // 3 : 2 * len(whole) // 3]
    for done in range(0, len(whole), every):
        first, seen = loader_of(make(), num_workers=workers), []
        while len(seen) < done:
            for batch in first:
                seen.append((batch["i"] if isinstance(batch, dict) else batch).tolist())
                if len(seen) == done:
                    break
        state = first.state_dict()
        first.close()
        second = loader_of(make(), num_workers=workers)
        second.load_state_dict(state)
        while len(seen) < len(whole):
            seen += stream(second)
        assert seen == whole


def test_the_streams_own_state_loses_some_of_what_its_shuffle_buffer_holds():
    """Why it is read again instead: this is what Hugging Face's own resume does."""
    data = hugging_face(shards=1)
    rows = iter(data)
    seen = [next(rows)["i"] for _ in range(10)]
    resumed = hugging_face(shards=1)
    resumed.load_state_dict(data.state_dict())
    both = seen + [row["i"] for row in resumed]
    assert len(set(both)) < 24  # some never come


def test_an_epoch_that_was_left_is_over_and_evaluation_begins_anew():
    loader, fixed = loader_of(Counting()), loader_of(Counting(), evaluation=True)
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    assert next(iter(loader)).tolist() == [3, 4, 5, 6]
    for _ in range(2):
        assert next(iter(fixed)).tolist() == [0, 1, 2, 3]


def test_setting_the_epoch_one_is_in_moves_nothing():
    loader = loader_of(Counting())
    state = {**loader.state_dict(), "epoch": 1, "batches": 1}
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert stream(loader)[0] == [7, 8, 9, 0]
    loader.set_epoch(5)
    assert loader.state_dict()["epoch"] == 5


def test_masks_differ_from_batch_to_batch():
    lines = datasets.Dataset.from_dict({"text": ["abcdefghij" * 5] * 8}).to_iterable_dataset()
    spec = TaskSpec("masked", "masked_lm")
    module = UniversalDataModule(
        lines, task_spec=spec, tokenizer=Letters(), batch_size=4, val_split=0
    )
    first, second = (batch["input_ids"] for batch in module.train_dataloader())
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])


def test_a_module_trains_on_a_stream_and_validates_on_another():
    data = hugging_face()
    module = UniversalDataModule(data.skip(4), val_data=data.take(4), batch_size=4, num_workers=0)
    assert sum(len(batch["i"]) for batch in module.train_dataloader()) == 20
    state = module.state_dict()
    assert state["train"]["epoch"] == 1
    assert len(stream(module.val_dataloader())) == 1
    module.load_state_dict(state)


def test_a_share_of_what_has_no_length_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"has no length.*pass val_data=.*or val_split=0"):
        UniversalDataModule(hugging_face())


@pytest.mark.parametrize("changed", [{"batch_size": 2}, {"seed": 2}])
def test_a_state_of_another_reading_is_refused(changed):
    state = loader_of(Counting()).state_dict()
    with pytest.raises(StateError, match="can only resume with the same settings"):
        loader_of(Counting(), **changed).load_state_dict(state)


def test_an_iterator_ends_when_its_loader_is_moved():
    loader = loader_of(Counting())
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="iterated again"):
        next(batches)


def test_closing_ends_the_workers_of_an_iterator_that_somebody_still_holds():
    loader = loader_of(hugging_face(), num_workers=2)
    batches = iter(loader)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert multiprocessing.active_children() == []
    with pytest.raises(StateError, match="iterated again"):
        next(batches)
    assert len(stream(loader)) == 6
