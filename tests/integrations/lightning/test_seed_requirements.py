"""The seed's testing requirements, one test each; all run a Trainer and look at what arrived."""

from __future__ import annotations

import logging
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from omegaconf import OmegaConf

from penstock.integrations.lightning import ChunkedTraining
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.partition import validation_loader
from tests.integrations.lightning.fits import Recorder, fit, ids, make_trainer, stock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


# -- regression: what worked without chunk sizes works


def test_regression_a_hook_is_called_as_often_as_lightning_would():
    class Data(pl.LightningDataModule):
        calls = 0

        def train_dataloader(self):
            Data.calls += 1
            return stock(6)

        def val_dataloader(self):
            return stock(2)

    def calls(callback):
        Data.calls = 0
        fit(callback, data=Data(), max_epochs=4, reload_dataloaders_every_n_epochs=2)
        return Data.calls

    assert calls(ChunkedTraining()) == calls(None) == 2


def test_regression_testing_and_predicting_are_never_chunked(caplog):
    callback = ChunkedTraining(4, 3)
    model, trainer = Recorder(), make_trainer([callback])
    with caplog.at_level(logging.INFO, logger="penstock"):
        trainer.test(model, stock(22), verbose=False)
        assert [len(batch) for batch in model.tested] == [2] * 11 and not caplog.records
    trainer.fit(model, stock(22), stock(9))
    train = trainer.train_dataloader
    place = train.state_dict()
    trainer.test(model, stock(22), verbose=False)
    trainer.validate(model, stock(9), verbose=False)
    assert len(model.tested) == 22 and len(model.validations[-1]) == 5
    assert train.state_dict() == place
    model.predict_step = lambda batch, batch_idx: batch[0]
    assert len(trainer.predict(model, stock(22))) == 11


# -- precedence


@pytest.mark.parametrize("limit", [1, 3, 0.5, 9])
def test_precedence_train_chunk_size_beats_limit_train_batches(limit, caplog):
    with caplog.at_level(logging.INFO, logger="penstock"):
        run = fit(ChunkedTraining(4), limit_train_batches=limit, max_epochs=3)
    assert run.train_batches == [4, 4, 3] and sorted(run.seen) == [*range(22)]
    assert caplog.text.count(f"limit_train_batches={limit} is ignored") == 1


@pytest.mark.parametrize("limit", [1, 0.5, 7])
def test_precedence_val_chunk_size_beats_limit_val_batches(limit, caplog):
    with caplog.at_level(logging.INFO, logger="penstock"):
        run = fit(ChunkedTraining(val_chunk_size=3), limit_val_batches=limit)
    assert run.val_batches == [3, 3] and run.scored[0] == run.scored[1]
    assert caplog.text.count(f"limit_val_batches={limit} is ignored") == 1


def test_precedence_a_debugging_run_stays_as_short_as_it_was_asked_to_be():
    run = fit(ChunkedTraining(4, 3), fast_dev_run=2)
    assert (run.train_batches, run.val_batches) == ([2], [2])


# -- automatic detection


class Sized(pl.LightningDataModule):
    """A data module whose loaders have the sizes."""

    def train_dataloader(self):
        return ChunkedDataLoader(ids(22), 2, 4)

    def val_dataloader(self):
        return validation_loader(ids(9, 1000), 2, 3)


def test_detection_of_sizes_given_to_the_callback_the_loaders_or_a_data_module():
    given = fit(ChunkedTraining(4, 3))
    loaders = fit(ChunkedTraining(), Sized().train_dataloader(), Sized().val_dataloader())
    module = fit(ChunkedTraining(), data=Sized())
    both = fit(ChunkedTraining(4, 3), data=Sized())
    for run in (given, loaders, module, both):
        assert run.callback.chunked_training_enabled
        assert run.callback.explicit_train_chunk_size == run.callback.train_chunk_size == 4
        assert run.callback.explicit_val_chunk_size == run.callback.val_chunk_size == 3
        assert (run.model.chunks, run.scored) == (given.model.chunks, given.scored)
    assert not fit(ChunkedTraining()).callback.chunked_training_enabled


@pytest.mark.parametrize("kind", ["dict", "namespace", "omegaconf"])
def test_detection_of_sizes_in_the_seeds_configuration(kind):
    train = {"train_chunk_size": 4, "chunk_seed": 7, "lr": 0.1}
    config = {
        "dict": {"train": train},
        "namespace": SimpleNamespace(train=train),
        "omegaconf": OmegaConf.create({"train": train}),
    }[kind]
    callback = ChunkedTraining(config)
    assert callback.chunked_training_enabled and callback.explicit_train_chunk_size == 4
    assert callback.settings == ChunkSettings(4, seed=7)
    assert fit(callback, max_epochs=3).seen == fit(ChunkedTraining(4, seed=7), max_epochs=3).seen
    assert not ChunkedTraining({"train": {"lr": 0.1}}).chunked_training_enabled


def test_detection_a_loader_without_a_size_is_given_that_of_the_callback():
    train = ChunkedDataLoader(ids(22), 2, shuffle=True)
    val = ChunkedDataLoader(ids(9, 1000), 2, evaluation=True)
    run, other = fit(ChunkedTraining(4, 3), train, val), fit(ChunkedTraining(4, 3))
    assert run.trainer.train_dataloader is train and run.trainer.val_dataloaders is val
    assert (run.model.chunks, run.scored) == (other.model.chunks, other.scored)


# -- inference


@pytest.mark.parametrize(("samples", "batches"), [(9, 5), (8, 4), (1, 1)])
def test_inference_of_the_validation_size_when_only_training_has_one(samples, batches):
    callback = ChunkedTraining(4)
    assert callback.val_chunk_size is None  # nobody knows before the loaders are there
    run = fit(callback, val=stock(samples, 1000))
    assert (callback.train_chunk_size, callback.val_chunk_size) == (4, batches)
    assert callback.explicit_val_chunk_size is None
    assert run.val_batches == [batches] * 2
    assert run.scored == [[*range(1000, 1000 + samples)]] * 2


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 8), (True, 7)])
def test_inference_of_the_training_size_when_only_validation_has_one(drop_last, batches):
    callback = ChunkedTraining(val_chunk_size=3)
    run = fit(callback, train=stock(23, batch=3, drop_last=drop_last), max_epochs=3)
    assert (callback.train_chunk_size, callback.val_chunk_size) == (8, 3)
    assert callback.explicit_train_chunk_size is None
    assert run.train_batches == [batches] * 3 and run.val_batches == [3] * 3


def test_inference_is_not_needed_when_both_are_given():
    callback = fit(ChunkedTraining(4, 100)).callback
    assert (callback.train_chunk_size, callback.val_chunk_size) == (4, 100)


# -- performance: figures are benchmarks/bench_chunked_training.py's; here, what they rest on


def test_performance_workers_are_started_once_for_all_chunks_and_validations(tmp_path):
    starts = Started(tmp_path)
    train = stock(22, num_workers=2, worker_init_fn=starts)
    fit(ChunkedTraining(4, 3), train, max_epochs=6)
    assert len(list(tmp_path.iterdir())) == 2


def test_performance_without_sizes_lightning_iterates_the_very_loader_it_was_given():
    callback = ChunkedTraining()
    run = fit(callback)
    assert run.trainer.train_dataloader is run.loaders[0]
    assert run.trainer.val_dataloaders is run.loaders[1]


class Started:
    """Leaves a file for every worker process that was started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, worker: int) -> None:
        (self.directory / f"{worker}-{os.getpid()}").touch()


# -- backward compatibility


def test_backward_compatibility_the_limits_of_an_old_configuration_count():
    old = {"limit_train_batches": 5, "limit_val_batches": 2}
    config = {"trainer": old, "train": {}}
    run = fit(ChunkedTraining(config), max_epochs=3, **config["trainer"])
    plain = fit(None, max_epochs=3, **old)
    assert run.train_batches == [5] * 3 and run.val_batches == [2] * 3
    assert run.model.chunks == plain.model.chunks  # the first five, as ever: what chunks are for


def test_backward_compatibility_an_old_checkpoint_goes_on(tmp_path):
    old = fit(None, ChunkedDataLoader(ids(22), 2, 4), max_epochs=1)
    old.trainer.save_checkpoint(tmp_path / "old.ckpt")
    path = tmp_path / "old.ckpt"
    run = fit(ChunkedTraining(4), ChunkedDataLoader(ids(22), 2, 4), max_epochs=3, ckpt_path=path)
    assert sorted(old.seen + run.seen) == [*range(22)]


# -- functionality


def test_chunks_cycle_through_the_whole_dataset_pass_after_pass():
    run = fit(ChunkedTraining(4, 3), max_epochs=9)
    assert Counter(run.seen) == dict.fromkeys(range(22), 3)
    passes = [run.seen[at : at + 22] for at in (0, 22, 44)]
    assert len({tuple(each) for each in passes}) == 3  # every pass is another shuffle
    assert run.model.rates == [0.5**k for k in range(1, 10)]  # epoch schedulers step per chunk


def test_the_sanity_check_and_validations_inside_chunks_move_nothing():
    plain = fit(ChunkedTraining(4, 3), max_epochs=3)
    checked = fit(ChunkedTraining(4, 3), max_epochs=3, num_sanity_val_steps=0)
    inside = fit(ChunkedTraining(4, 3), max_epochs=3, val_check_interval=0.5)
    assert plain.model.sanity and not checked.model.sanity
    assert plain.model.chunks == checked.model.chunks == inside.model.chunks
    assert plain.scored == checked.scored == inside.scored[:3]
    assert len(inside.scored) == 2 + 2 + 3  # every other batch of 4, and each of 3


def test_a_chunk_shorter_than_the_validation_interval_is_validated_at_its_end():
    """Lightning refuses an interval longer than an epoch, in the midst of a run."""
    run = fit(ChunkedTraining(4), max_epochs=6, val_check_interval=4)
    assert run.train_batches == [4, 4, 3] * 2 and len(run.scored) == 6
    assert run.trainer.val_check_interval == 4


def test_torch_stays_seeded_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    fit(ChunkedTraining(4, 3), num_sanity_val_steps=0)
    assert torch.equal(torch.rand(4), expected)
