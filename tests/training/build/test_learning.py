"""Tasks, heads, scores, optimizers and schedulers by name."""

import copy
import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import callbacks
from torch import nn

from penstock.errors import BatchError, ConfigError
from penstock.training.build import registries
from penstock.training.build.model import parameter_groups, parts_of
from penstock.training.build.registries import (
    EmbeddingEncoder,
    LinearEncoder,
    SequenceDecoder,
    accuracy,
    accuracy_among,
    cross_entropy,
    mse,
)
from penstock.training.config.settings import CALLBACKS
from tests.training.build.jobs import fit, job

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

CLASSES = """
    imports: [HERE]
    train: {train_chunk_size: 2}
    loader: {batch_size: 4}
    dataset:
      train: {_target_: HERE.Numbers, size: 24}
      val: {_target_: HERE.Numbers, size: 8, start: 24}
    model: {_name_: flat, d_model: 5}
    encoder: linear
    decoder: linear
    task: {loss: cross_entropy, metrics: [accuracy, accuracy@2]}
    optimizer: {_name_: sgd, lr: 0.001}
    trainer: {max_epochs: 2}
"""
TOKENS = """
    imports: [HERE]
    train: {train_chunk_size: 4}
    loader: {batch_size: 4}
    dataset: {_name_: tones}
    model: {_name_: lstm, d_model: 16}
    trainer: {max_epochs: 2}
"""


def test_a_task_joins_encoder_model_and_decoder(tmp_path):
    made = job(tmp_path, CLASSES)
    assert made.module(torch.zeros(7, 2)).shape == (7, 3)
    trainer = fit(made)
    names = {"train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/accuracy@2"}
    assert names <= set(trainer.callback_metrics)
    assert trainer.global_step == 4  # two chunks of two batches


@pytest.mark.parametrize(
    "heads",
    [
        "encoder: embedding\ndecoder: {_name_: sequence, mode: last}\ntask: {loss: cross_entropy}",
        "task: {_name_: lm, metrics: [ppl, perplexity]}",
        "task: {_name_: lm, tied: true, rescale: false}",
        "encoder: [embedding, null, id]\ndecoder: [sequence, id]\ntask: {loss: cross_entropy}",
    ],
)
def test_tokens_are_learned(heads, tmp_path):
    extra = "scheduler: {_name_: linear_warmup, num_warmup_steps: 1, num_training_steps: 99}\n"
    text = TOKENS + "    " + heads.replace("\n", "\n    ") + "\n    " + extra
    made = job(tmp_path, text, "optimizer={_name_: adam, lr: 0.05}", "trainer.max_epochs=8")
    trainer = fit(made)
    assert float(trainer.callback_metrics["val/loss"]) < 1.0 < math.log(8)
    tied = "tied: true" in heads
    assert (len(list(made.module.parameters())) == 6) is tied  # one weight, in two places


def test_the_seed_decides_the_first_weights(tmp_path):
    def weights(*overrides):
        return torch.cat(
            [p.flatten() for p in job(tmp_path, CLASSES, *overrides).module.parameters()]
        )

    assert torch.equal(weights(), weights("train.seed=0"))
    assert not torch.equal(weights(), weights("train.seed=1"))
    assert not torch.equal(weights("train.seed=null"), weights("train.seed=null"))


def test_a_lightning_module_is_used_as_it_is(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "penstock"):
        made = job(
            tmp_path,
            CLASSES,
            "model={_target_: HERE.Recorder, rate: 0.5}".replace(
                "HERE", "tests.training.build.parts_for_configs"
            ),
            "~model._name_",
            "~model.d_model",
        )
    assert type(made.module).__name__ == "Recorder" and made.module.rate == 0.5
    assert "encoder, decoder, task, optimizer have no effect" in caplog.text


def test_targets_and_names_may_be_mixed(tmp_path):
    text = """
        imports: [HERE]
        loader: {batch_size: 4}
        dataset: {train: {_target_: HERE.Numbers, size: 24}}
        model: {_target_: torch.nn.Linear, in_features: 2, out_features: 3}
        task: {_target_: penstock.training.build.registries.Task,
               loss: {_target_: torch.nn.CrossEntropyLoss}}
        optimizer: {_target_: torch.optim.SGD, lr: 0.5, _partial_: true}
        scheduler: {_target_: torch.optim.lr_scheduler.StepLR, step_size: 2, interval: step}
        callbacks:
          mine: {_target_: pytorch_lightning.callbacks.EarlyStopping, monitor: train/loss}
          early_stopping: {monitor: train/loss, patience: 9}
        logger: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: FOLDER}
        trainer: {profiler: {_target_: lightning.pytorch.profilers.SimpleProfiler}}
    """.replace("FOLDER", str(tmp_path))
    made = job(tmp_path, text)
    found = made.module.configure_optimizers()
    assert found["optimizer"].param_groups[0]["lr"] == 0.5
    assert found["lr_scheduler"]["interval"] == "step"
    assert [type(each) for each in made.callbacks] == [callbacks.EarlyStopping] * 2
    assert type(made.loggers[0]).__name__ == "CSVLogger"
    assert type(made.trainer_kwargs["profiler"]).__name__ == "SimpleProfiler"


def test_what_a_name_takes_may_be_made_by_target(tmp_path):
    made = job(tmp_path, CLASSES, "model.activation={_target_: torch.nn.Tanh}")
    assert isinstance(made.module.model.activation, nn.Tanh)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("encoder: embedding", "encoder (run.yaml, line 8): the task has an embedding of its own"),
        ("decoder: sequence", "decoder (run.yaml, line 8): the task has a projection of its own"),
    ],
)
def test_heads_that_a_task_has_already_are_refused(heads, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        job(tmp_path, f"{TOKENS}    {heads}\n    task: lm\n")
    assert message in str(refused.value) and "leave the" in str(refused.value)


def test_a_module_of_the_other_lightning_is_refused(tmp_path):
    text = "dataset: {train: {_target_: HERE.tensors, size: 4}}\n"
    text += "model: {_target_: pytorch_lightning.demos.boring_classes.BoringModel}\n"
    with pytest.raises(ConfigError, match=r"import lightning\.pytorch instead"):
        job(tmp_path, text)


def test_every_callback_of_the_settings_is_registered():
    assert set(CALLBACKS) <= set(registries.callbacks)


def test_no_logger_is_one_that_does_nothing(tmp_path):
    assert type(job(tmp_path, CLASSES, "logger=false").loggers[0]).__name__ == "DummyLogger"
    assert job(tmp_path, CLASSES, "logger=true").loggers == ()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model._name_=flatt"], "unknown model 'flatt': did you mean 'flat'?"),
        (["model._name_=unet"], "register yours in a module of imports"),
        (["model.dept=2"], "Flat has no such parameter: did you mean 'depth'?"),
        (["~model.d_model"], "Flat needs 'd_model': set model.d_model"),
        (["encoder=embedding"], "EmbeddingEncoder needs 'n_tokens': set encoder.n_tokens"),
        (["encoder=linaer"], "unknown encoder 'linaer': did you mean 'linear'?"),
        (["decoder={_name_: sequence, mode: middle}"], "command line) must be one of last"),
        (["task.loss=cross_entrpy"], "unknown loss 'cross_entrpy': did you mean 'cross_entropy'?"),
        (["task.metrics=[acuracy]"], "unknown metric 'acuracy': did you mean 'accuracy'?"),
        (["task.loss=null"], "Task needs 'loss': set task.loss"),
        (["~task"], "has no task: set task.loss"),
        (["~model"], "names no model"),
        (
            ["optimizer.lr=fast"],
            "optimizer.lr ('optimizer.lr=fast' on the command line) must be a number, got 'fast'",
        ),
        (
            ["optimizer.lr=-1"],
            "optimizer.lr ('optimizer.lr=-1' on the command line): optimizer cannot be made: "
            "Invalid learning rate: -1",
        ),
        (["optimizer.betas=3", "optimizer._name_=adam"], "line 12) cannot be made: "),
        (["model.depth=2.5"], "line 8) cannot be made: 'float' object cannot"),
        (["optimizer.lrr=1"], "did you mean 'lr'?"),
        (["optimizer._name_=adamm"], "unknown optimizer 'adamm': did you mean 'adam'?"),
        (["scheduler=cosine"], "CosineAnnealingLR needs 'T_max': set scheduler.T_max"),
        (["scheduler=plato"], "unknown scheduler 'plato'"),
        (
            ["model={_target_: builtins.dict}", "~model._name_"],
            "must be a torch or Lightning module",
        ),
        (["imports=[no_such_models]"], "there is no module 'no_such_models'"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(overrides, message, tmp_path):
    with pytest.raises(ConfigError) as refused:
        job(tmp_path, CLASSES, *overrides)
    assert message in str(refused.value) and "\n" not in str(refused.value)


# -- heads


def test_tokens_with_and_without_a_channel_are_embedded_alike():
    embed = EmbeddingEncoder(8, 4)
    tokens = torch.arange(6).reshape(2, 3)
    assert torch.equal(embed(tokens), embed(tokens.unsqueeze(-1)))
    encode = LinearEncoder(1, 4)
    assert torch.equal(encode(tokens), encode(tokens.unsqueeze(-1)))


@given(
    st.sampled_from(["last", "first", "pool", "sum"]),
    st.one_of(st.none(), st.integers(0, 5)),
    st.booleans(),
)
def test_a_sequence_is_decoded_as_step_by_step(mode, l_output, use_lengths):
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    lengths = torch.tensor([5, 5, 5])
    decoder = SequenceDecoder(2, None, l_output, use_lengths, mode)
    found = decoder(x, lengths)
    steps = 5 if l_output is None else max(1, l_output)
    for row, sequence in enumerate(x):
        if mode == "first":
            wanted = sequence[:steps]
        elif mode == "last":
            wanted = sequence[5 - steps :]
        else:
            ends = range(6 - steps, 6)
            reduce = torch.mean if mode == "pool" else torch.sum
            wanted = torch.stack([reduce(sequence[:end], 0) for end in ends])
        wanted = wanted[0] if l_output == 0 else wanted
        torch.testing.assert_close(found[row], wanted)


def test_lengths_say_where_a_sequence_ends():
    x = torch.arange(12.0).reshape(2, 6, 1)
    decoder = SequenceDecoder(1, None, 0, use_lengths=True)
    assert decoder(x, torch.tensor([2, 6])).tolist() == [[1.0], [11.0]]


# -- scores


@given(st.integers(1, 20), st.integers(2, 6), st.integers(0, 2**31))
def test_padding_counts_for_nothing(rows, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator)
    y = torch.randint(classes, (rows,), generator=generator)
    padded = torch.cat([logits, torch.randn(3, classes, generator=generator)])
    targets = torch.cat([y, torch.full((3,), -100)])
    assert torch.allclose(cross_entropy(padded, targets), cross_entropy(logits, y))
    assert torch.equal(accuracy(padded, targets), accuracy(logits, y))
    assert accuracy_among(padded, targets, count=classes + 3) == 1.0


def test_errors_of_one_output_are_not_paired_with_every_target():
    outputs, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    assert mse(outputs, y) == 2.0
    ragged = torch.tensor([[1.0, 9.0], [2.0, 3.0]])
    assert mse(ragged, torch.zeros(2, 2), lengths=torch.tensor([1, 2])) == pytest.approx(14 / 3)


def test_batches_are_taken_apart():
    assert parts_of([1, 2]) == (1, 2, {})
    for batch in (torch.zeros(2), {"a": 1}, (1, 2, 3), [1]):
        with pytest.raises(BatchError, match=r"a task needs batches \(x, y\)"):
            parts_of(batch)


# -- optimizers and schedulers


def test_parameters_with_options_of_their_own_are_apart():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].bias._optim = {"lr": 0.1, "weight_decay": 0.0}
    plain, special = parameter_groups(model.parameters())
    assert len(plain["params"]) == 3 and special["lr"] == 0.1
    assert special["params"] == [model[1].bias]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("constant", {}, [1, 1, 1, 1, 1]),
        ("constant_warmup", {"num_warmup_steps": 2}, [0, 0.5, 1, 1, 1]),
        ("linear_warmup", {"num_warmup_steps": 2, "num_training_steps": 4}, [0, 0.5, 1, 0.5, 0]),
        ("cosine_warmup", {"num_warmup_steps": 1, "num_training_steps": 3}, [0, 1, 0.5, 0, 0.5]),
        ("step", {"step_size": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5, 0.25]),
    ],
)
def test_schedules_are_golden_and_survive_a_checkpoint(name, options, expected):
    def schedule():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        return optimizer, registries.schedulers.find(name)(optimizer, **options)

    optimizer, scheduler = schedule()
    rates = []
    for _ in range(2):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    optimizer, scheduler = schedule()
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)
