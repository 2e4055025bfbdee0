"""Every trainer with every kind of loader: a resumed run is exact, or is refused in a sentence."""

from __future__ import annotations

import gc
import logging
from contextlib import ExitStack
from functools import partial
from itertools import islice

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, skip_first_batches
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from penstock import (
    ChunkedDataLoader,
    ConfigError,
    DataLoaderFactory,
    StateError,
    StreamLoader,
    build_steering_directory,
    create_loader,
)
from penstock.datamodules import UniversalDataModule
from penstock.integrations.huggingface import TrainerLoader
from penstock.integrations.lightning import ChunkedTraining
from tests.left_running import our_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of the trainers
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SAMPLES, BATCH, EPOCH = 44, 4, 11  # batches an epoch
SAVED, MORE = 15, 9  # batches: in the second epoch, and over its end


@pytest.fixture(autouse=True)
def trainers_are_collected():
    """A trainer refers to itself: its loader, which the tests do not close, ends with it."""
    yield
    if our_threads():
        gc.collect()


class Numbers(IterableDataset):
    """Another order in every epoch, which it has to be told."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(SAMPLES)
        return (torch.tensor(float(i)) for i in order)


def numbers():
    return torch.arange(float(SAMPLES))


def module(data):
    return UniversalDataModule(data, batch_size=BATCH, num_workers=0, val_split=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    build_steering_directory(folder, pairs=SAMPLES, embedding_dim=4)
    return folder


@pytest.fixture
def kinds(folder):
    """Name -> what makes a new loader of that kind, which ends with the test."""
    with ExitStack() as ends:

        def closed(make):
            loader = make()
            ends.callback(loader.close)
            return loader

        yield {name: partial(closed, make) for name, make in makers(folder).items()}


def makers(folder):
    chunked = partial(ChunkedDataLoader, batch_size=BATCH, shuffle=True)
    stream = partial(StreamLoader, batch_size=BATCH, block_samples=4, window_blocks=3)
    training = DataLoaderFactory.create_training_loader
    return {
        "chunked": lambda: chunked(numbers()),
        "chunked, chunk_size": lambda: chunked(numbers(), chunk_size=4),
        "stream": lambda: stream(numbers().numpy()),
        "stream, chunk_size": lambda: stream(numbers().numpy(), chunk_size=4),
        "factory": lambda: training(numbers(), BATCH, num_workers=0),
        "steering": lambda: create_loader(folder, "train", BATCH),
        "module": lambda: module(list(numbers())).train_dataloader(),
        "replay": lambda: module(Numbers()).train_dataloader(),
        "sampler=": lambda: ChunkedDataLoader(numbers(), BATCH, sampler=RandomSampler(range(44))),
    }


STATEFUL = [
    "chunked",
    "chunked, chunk_size",
    "stream",
    "stream, chunk_size",
    "factory",
    "steering",
    "module",
    "replay",
]


def ids(batch):
    if isinstance(batch, dict):
        return batch["relevance"].tolist()
    return (batch[0] if isinstance(batch, list | tuple) else batch).tolist()


def forever(loader):
    while True:
        yield from loader


def expected(make):
    """What an undisturbed run delivers after `SAVED` batches."""
    loader = make()
    return [ids(batch) for batch in islice(forever(loader), SAVED, SAVED + MORE)]


def warnings_in(caplog):
    """What Penstock warned of."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock"]


# -- loops that ask the loader for its state


def plain(make, folder):
    loader = make()
    list(islice(forever(loader), SAVED))
    state, resumed = loader.state_dict(), make()
    resumed.load_state_dict(state)
    return resumed


def accelerated(make, folder):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make())
    list(islice(forever(loader), SAVED))
    accelerator.save_state(str(folder))
    accelerator = Accelerator(cpu=True)
    resumed = accelerator.prepare(make())
    accelerator.load_state(str(folder))
    return resumed


def distributed_checkpoint(make, folder):
    loader = make()
    list(islice(forever(loader), SAVED))
    dcp.save({"loader": loader}, checkpoint_id=folder)
    resumed = make()
    dcp.load({"loader": resumed}, checkpoint_id=folder)
    return resumed


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("loop", [plain, accelerated, distributed_checkpoint])
def test_a_loop_that_saves_the_loader_resumes_exactly(kinds, tmp_path, loop, name):
    resumed = loop(kinds[name], tmp_path)
    found = [ids(batch) for batch in islice(forever(resumed), MORE)]
    assert found == expected(kinds[name])


@pytest.mark.parametrize("loop", [plain, distributed_checkpoint])
def test_a_loop_that_saves_a_loader_without_state_is_refused(kinds, tmp_path, loop):
    with pytest.raises(
        Exception, match="this loader has no state: with sampler, torch decides the order"
    ):
        loop(kinds["sampler="], tmp_path)


# -- Lightning


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []

    def training_step(self, batch, index):
        self.seen.append(ids(batch))
        return self.weight.square().sum()

    def predict_step(self, batch, index):
        self.seen.append(ids(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(loader, callbacks, checkpoint=None, *, at=SAVED, folder=None, model=None, **options):
    saving = [ModelCheckpoint(folder, "{step}", every_n_train_steps=at)] if folder else []
    steps = {"max_steps": at} if folder else {"max_steps": SAVED + MORE}
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, *saving],
        **({"max_epochs": 100, "enable_checkpointing": bool(folder)} | steps | options),
    )
    model = Model() if model is None else model
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen


@pytest.mark.parametrize("name", [name for name in STATEFUL if name != "replay"])
@pytest.mark.parametrize("ours", [True, False], ids=["ChunkedTraining", "alone"])
def test_lightning_resumes_exactly(kinds, tmp_path, name, ours):
    make = kinds[name]
    lightning(make(), [ChunkedTraining()] * ours, folder=tmp_path)
    found = lightning(make(), [ChunkedTraining()] * ours, tmp_path / f"step={SAVED}.ckpt")
    assert found == expected(make)


def test_lightning_alone_would_leave_out_a_batch_of_a_stream_and_is_refused(
    kinds, tmp_path, caplog
):
    lightning(kinds["replay"](), [], folder=tmp_path)
    with pytest.raises(StateError, match=r"reads it one batch ahead, .* in a loop of your own"):
        lightning(kinds["replay"](), [], tmp_path / f"step={SAVED}.ckpt")
    with pytest.raises(StateError, match="reads it one batch ahead"):  # by the state it loads
        lightning(CombinedLoader(kinds["replay"]()), [], tmp_path / f"step={SAVED}.ckpt")
    assert caplog.text.count("and such a resume is refused: use a dataset with an index") == 1


@pytest.mark.parametrize("name", ["chunked", "chunked, chunk_size", "stream", "replay"])
def test_lightning_alone_at_the_end_of_an_epoch_is_refused_before_the_first_batch(
    kinds, tmp_path, name, caplog
):
    """It saves the loader's state there, and does not load it."""
    make, ends, model = kinds[name], {"max_epochs": 2, "max_steps": -1}, Model()
    saving = ModelCheckpoint(tmp_path, "end", save_on_train_epoch_end=True)
    lightning(make(), [saving], enable_checkpointing=True, **(ends | {"max_epochs": 1}))
    advice = "use a dataset" if name == "replay" else r"add callbacks=\[ChunkedTraining"
    with pytest.raises(StateError, match=f"cannot resume this .*Loader exactly: .*; {advice}"):
        lightning(make(), [], tmp_path / "end.ckpt", model=model, **ends)
    assert not model.seen
    used = make()  # in the same process, at another epoch
    lightning(used, [], **(ends | {"max_epochs": 3}))
    with pytest.raises(StateError, match="cannot resume this"):
        lightning(used, [], tmp_path / "end.ckpt", **ends)
    if name != "replay":  # as advised: the same checkpoint, exactly
        caplog.clear()
        found = lightning(make(), [ChunkedTraining()], tmp_path / "end.ckpt", **ends)
        first = len(make())
        assert found == [ids(batch) for batch in islice(forever(make()), first, 2 * first)]
        assert "written without ChunkedTraining" in caplog.text


@pytest.mark.parametrize("name", ["chunked", "stream", "replay"])
def test_lightning_alone_warns_once_at_the_start_of_a_run_that_saves(kinds, tmp_path, name, caplog):
    saves = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    sentence = "does not restore the position of a "
    lightning(kinds[name](), [], max_epochs=3, max_steps=-1, **saves)
    assert [sentence in warning for warning in warnings_in(caplog)] == [True]
    caplog.clear()
    lightning(kinds[name](), [], max_epochs=3, max_steps=-1)  # saves nothing
    if name != "replay":
        lightning(kinds[name](), [ChunkedTraining()], max_epochs=3, max_steps=-1, **saves)
    assert not warnings_in(caplog)


def test_a_new_loader_in_every_epoch_of_lightning_is_warned_of(kinds, caplog):
    class Asked(Model):
        def train_dataloader(self):
            return kinds["chunked"]()

    options = {"max_epochs": 2, "max_steps": -1, "reload_dataloaders_every_n_epochs": 1}
    seen = lightning(None, [], model=Asked(), **options)
    assert "epoch 1 begins with a new ChunkedDataLoader at its start" in caplog.text
    caplog.clear()
    kept = kinds["chunked"]()  # as advised
    Asked.train_dataloader = lambda self: kept
    found = lightning(None, [], model=Asked(), **options)
    assert seen[:EPOCH] == found[:EPOCH] == seen[EPOCH:] != found[EPOCH:]
    assert not warnings_in(caplog)


def test_a_loop_that_sets_the_epoch_of_the_sampler_moves_nothing_and_is_warned(kinds, caplog):
    loader, new = kinds["chunked"](), kinds["chunked"]()
    loader.sampler.set_epoch(2)
    assert loader.state_dict() == new.state_dict()
    assert "call load_state_dict, or loader.set_epoch(2), which moves the loader" in caplog.text
    caplog.clear()
    loader.set_epoch(2)  # as advised
    for epoch in range(2, 4):
        loader.sampler.set_epoch(epoch)
        assert ids(next(iter(loader))) == loader.samples_at(0, epoch).tolist()
    assert not caplog.text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("replay", "is a ReplayLoader, which cannot seek; use a dataset with an index"),
        ("sampler=", "is a ChunkedDataLoader with sampler, whose order torch decides"),
    ],
)
@pytest.mark.parametrize("how", [lambda x: x, lambda x: [x, x], CombinedLoader])
def test_chunked_training_refuses_at_start_what_it_cannot_resume(kinds, name, sentence, how):
    with pytest.raises(ConfigError, match=f"cannot save the data position: .* {sentence}"):
        lightning(how(kinds[name]()), [ChunkedTraining()])
    assert len(lightning(kinds[name](), [])) == SAVED + MORE  # removed from callbacks, as advised


def test_chunked_training_warns_of_a_loader_of_torchs_own(kinds, caplog):
    caplog.set_level(logging.WARNING, "penstock")
    assert len(lightning(DataLoader(numbers(), BATCH), [ChunkedTraining()])) == SAVED + MORE
    assert "train_dataloader is a torch DataLoader, not a Penstock loader; wrap" in caplog.text
    caplog.clear()
    lightning(ChunkedDataLoader(numbers(), BATCH), [ChunkedTraining()])  # as advised
    lightning(DataLoader(numbers(), BATCH), [ChunkedTraining(4)])  # which replaces it
    assert not caplog.text


@pytest.mark.parametrize("name", STATEFUL)
def test_lightning_predicts_with_the_loader_as_it_is(kinds, name):
    model = Model()
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    trainer.predict(model, kinds[name](), return_predictions=False)
    assert model.seen == [ids(batch) for batch in kinds[name]()]


@pytest.mark.parametrize("name", ["chunked", "stream"])
def test_overfitting_is_refused_and_has_another_way(kinds, name):
    with pytest.raises(ValueError, match="pass limit_train_batches=n, and a loader with evaluatio"):
        lightning(kinds[name](), [], overfit_batches=2)
    kind = ChunkedDataLoader if name == "chunked" else StreamLoader
    with kind(numbers().numpy(), BATCH, evaluation=True) as loader:
        seen = lightning(loader, [], limit_train_batches=2, max_epochs=3)
    assert seen == seen[:2] * 3


# -- Hugging Face


class Fed(Trainer):
    """The natural thing to do: a Trainer that is given a loader."""

    def get_train_dataloader(self):
        return self.fed


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []

    def forward(self, **batch):
        self.seen.append(batch["relevance"].tolist())
        return {"loss": self.weight.square().sum()}


class Stop(TrainerCallback):
    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.at


def as_fields(loader):
    """Its batches as Hugging Face's Trainer wants them: by the names of the model's arguments."""
    return {"relevance": loader} if isinstance(loader, torch.Tensor) else loader


def hugging_face(loader, folder, *, resume, at=SAVED, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=SAVED + MORE,
        save_steps=at,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **options,
    )
    model = Network()
    trainer = Fed(model, arguments, callbacks=[] if resume else [Stop(at)])
    trainer.fed = loader
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}") if resume else None)
    return model.seen


def named(name, folder):
    """A loader of that kind whose batches have the name of the model's argument."""
    if name == "stream":
        return StreamLoader({"relevance": numbers().numpy()}, BATCH, block_samples=4)
    if name == "replay":
        return module(Named()).train_dataloader()
    rows = [{"relevance": float(i)} for i in range(SAMPLES)]
    return ChunkedDataLoader(rows, BATCH, shuffle=True)


class Named(Numbers):
    def __iter__(self):
        return ({"relevance": each} for each in super().__iter__())


@pytest.mark.parametrize("at", [SAVED, EPOCH], ids=["mid-epoch", "epoch's end"])
@pytest.mark.parametrize("name", ["chunked", "stream", "replay"])
def test_a_trainer_given_a_loader_as_it_is_trains_warned_and_refuses_to_resume(
    tmp_path, name, at, caplog
):
    make = partial(named, name, tmp_path)
    seen = hugging_face(make(), tmp_path, resume=False, at=at)
    assert seen == [ids(batch) for batch in islice(forever(make()), at)]
    assert caplog.text.count("does not save the position of a ") == 1
    with pytest.raises(StateError, match=r"TrainerLoader\(loader, self\) from the Trainer's get_"):
        hugging_face(make(), tmp_path, resume=True, at=at)
    if name != "replay":  # as advised: the same checkpoint, exactly
        found = hugging_face(TrainerLoader(make()), tmp_path, resume=True, at=at)
        assert found[SAVED - at :][:MORE] == expected(make) and len(warnings_in(caplog)) == 1


def test_a_trainer_that_saves_nothing_is_not_warned_of_a_loader_as_it_is(tmp_path, caplog):
    hugging_face(named("chunked", tmp_path), tmp_path, resume=False, save_strategy="no")
    assert not caplog.text


def test_a_trainer_given_a_loader_in_chunks_as_it_is_is_refused_at_start(tmp_path):
    rows = [{"relevance": float(i)} for i in range(SAMPLES)]
    with pytest.raises(ConfigError, match="chunk_size=4: give a Penstock loader without"):
        hugging_face(ChunkedDataLoader(rows, BATCH, 4), tmp_path, resume=False)


class Checked(Fed):
    """A Trainer whose checkpoints say what its steps are made of."""

    def get_train_dataloader(self):
        return TrainerLoader(self.fed, self)


class Found(Fed):
    """As `Checked`, but it does not say who it is."""

    def get_train_dataloader(self):
        return TrainerLoader(self.fed)


@pytest.mark.parametrize("kind", [Checked, Found])
def test_a_trainer_that_counts_other_steps_is_refused_at_start(tmp_path, caplog, monkeypatch, kind):
    monkeypatch.setitem(globals(), "Fed", kind)
    rows = [{"relevance": float(i)} for i in range(SAMPLES)]
    make = partial(ChunkedDataLoader, rows, shuffle=True)
    hugging_face(make(batch_size=BATCH), tmp_path, resume=False)
    for loader, what in [
        (make(batch_size=2), r"batch_size \* world_size 4, this run 2: its 15 steps would contain"),
        (make(batch_size=BATCH, seed=1), "has seed 42, this run 1"),
    ]:
        with pytest.raises(StateError, match=what):
            hugging_face(loader, tmp_path, resume=True)
    found = hugging_face(make(batch_size=BATCH), tmp_path, resume=True)
    assert found == expected(partial(make, batch_size=BATCH)) and not caplog.text


def test_a_trainer_that_does_not_say_in_which_epoch_it_skips_is_refused(caplog):
    loader = ChunkedDataLoader(numbers(), BATCH, shuffle=True)
    given = TrainerLoader(loader)
    with pytest.raises(StateError, match="3 steps are skipped, but of an unknown epoch"):
        next(iter(skip_first_batches(given, 3)))
    given.set_epoch(1)  # as advised
    assert ids(next(iter(skip_first_batches(given, 3)))) == loader.samples_at(3, 1).tolist()
    assert "does not say of which batches" in caplog.text  # there is no Trainer to ask


def test_what_a_loader_skips_is_not_lost_in_a_distributed_checkpoint(kinds, tmp_path):
    loader = kinds["chunked"]()
    loader.skip(0, 20, 28)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path)
    resumed = kinds["chunked"]()
    with pytest.raises(Exception, match=r"call loader\.skip as before, then load"):
        dcp.load({"loader": resumed}, checkpoint_id=tmp_path)
    resumed.skip(0, 20, 28)  # as advised
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path)
    assert resumed.state_dict() == loader.state_dict()


@pytest.mark.parametrize("name", ["replay", "chunked, chunk_size", "sampler="])
def test_trainer_loader_refuses_what_has_no_steps_to_seek(kinds, name):
    with pytest.raises((ConfigError, StateError), match=r"give a Penstock loader|has no state"):
        TrainerLoader(kinds[name]())


def test_skipping_batches_after_load_state_is_refused_instead_of_skipping_twice(kinds, tmp_path):
    loader = accelerated(kinds["chunked"], tmp_path)
    skipped = Accelerator(cpu=True).skip_first_batches(loader, SAVED % EPOCH)
    with pytest.raises(StateError, match="iterate the loader itself after load_state"):
        next(iter(skipped))
    assert [ids(batch) for batch in islice(forever(loader), MORE)] == expected(kinds["chunked"])


@pytest.mark.parametrize("name", ["chunked, chunk_size", "stream, chunk_size"])
def test_an_epoch_that_is_taken_for_one_iteration_is_warned_of(kinds, name, caplog):
    """As Hugging Face's Trainer does with a loader in chunks, given as it is."""
    loader = kinds[name]()
    for epoch in range(2):
        loader.set_epoch(epoch)
        list(loader)
    assert "set_epoch(1) leaves out the rest of epoch 0" in caplog.text
    caplog.clear()
    loader.seek(0)
    for epoch in range(2):  # as advised
        loader.set_epoch(epoch)
        for _ in range(3):
            list(loader)
    assert not caplog.text
