"""What is said: the log block, the lines, the bars, the summary; and when training ends."""

from __future__ import annotations

import csv
import logging
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import Checkpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.errors import ConfigError, StateError
from penstock.integrations.lightning import ChunkedTraining
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.chunk_report import coverage_of, describe_position, samples_between
from penstock.order import Cursor, Plan, ShuffledOrder, Skips, Steps
from tests.attempts import VERDICT
from tests.integrations.lightning.fits import fit, ids, stock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="penstock")

    def messages() -> list[str]:
        said = (each.getMessage() for each in caplog.records if each.name == "penstock")
        # the verdict at the end depends on the machine: tests/metrics
        return [line for line in said if not VERDICT.search(line)]

    return messages


# -- the log


def test_one_block_says_what_a_chunk_is_and_what_is_ignored(said):
    fit(ChunkedTraining(4, 3), max_epochs=6, limit_train_batches=2, limit_val_batches=1)
    assert said()[0].splitlines() == [
        "chunked: 4 batches of 2 = 8 samples a chunk, 3 chunks an epoch; "
        "limit_train_batches=2 is ignored",
        "order: shuffled, seed 42",
        "validation: 3 of 5 batches, the same ones each time; limit_val_batches=1 is ignored",
        "max_epochs=6: 6 chunks = 2 passes",
    ]
    assert sum("ignored" in message for message in said()) == 1


@pytest.mark.filterwarnings("ignore:.*across ranks is zero")
def test_the_length_is_told_as_it_is_summed_up_and_sizes_are_what_there_is(said):
    callback = ChunkedTraining(4, 1000)
    fit(callback, max_epochs=2)
    assert said()[0].splitlines()[2:] == [
        "validation: the whole partition, 5 batches",
        "max_epochs=2: 2 chunks = 0.7273 passes",
    ]
    assert f"2 chunks = {callback.summary().passes:.4g} passes" in said()[0]
    fit(ChunkedTraining(11, max_passes=1), val=[], max_epochs=-1)
    block = said()[3].splitlines()
    assert block[2:] == ["validation: none", "max_passes=1: 1 chunk, training ends then"]


def test_every_chunk_is_logged_with_its_place_and_its_waiting(said):
    fit(ChunkedTraining(4), max_epochs=4)
    places = [message.split(":")[0] for message in said()[1:]]
    assert places == [
        "epoch 0, chunk 1/3",
        "epoch 0, chunk 2/3",
        "epoch 0, chunk 3/3",
        "epoch 1, chunk 1/3",
    ]
    assert said()[3].startswith("epoch 0, chunk 3/3: 3 batches, waited 0.0")


def test_without_sizes_only_a_position_that_is_not_saved_is_said(said):
    fit(ChunkedTraining(), ChunkedDataLoader(ids(22), 2, shuffle=True))
    assert said() == []
    fit(ChunkedTraining(), limit_train_batches=2)
    (warning,) = said()
    assert warning.startswith("cannot save the data position: the trainer's train_dataloader")


# -- bars


@pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])
def test_a_bar_shows_epoch_chunk_batch_loss_and_waiting(kind, capsys):
    bar = kind()
    fit(ChunkedTraining(4), callbacks=[bar], enable_progress_bar=True, max_epochs=3)
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "Epoch 0, chunk 3/3" in shown and "3/3" in shown
    assert "loss" in shown and "waiting" in shown
    assert "get_metrics" not in vars(bar)


@pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])
def test_a_bar_goes_on_in_the_middle_of_a_chunk(kind, capsys, tmp_path):
    first = fit(ChunkedTraining(4), max_steps=6, max_epochs=-1)
    first.trainer.save_checkpoint(tmp_path / "six.ckpt")
    capsys.readouterr()
    options = {"callbacks": [kind()], "enable_progress_bar": True, "max_epochs": 3}
    run = fit(ChunkedTraining(4), ckpt_path=tmp_path / "six.ckpt", **options)
    assert sorted(first.seen + run.seen) == [*range(22)]
    shown = "".join(capsys.readouterr())
    assert "Epoch 0, chunk 3/3" in shown
    if kind is TQDMProgressBar:  # where nobody watches, the other one draws the last chunk only
        assert "Epoch 0, chunk 2/3" in shown and "4/4" in shown


def test_a_bar_leaves_out_a_version_that_is_a_name(capsys, tmp_path):
    logger = CSVLogger(tmp_path, version="tensorboard")
    options = {"callbacks": [TQDMProgressBar()], "enable_progress_bar": True, "logger": logger}
    fit(ChunkedTraining(4), max_epochs=1, log_every_n_steps=1, **options)
    assert "waiting" in (shown := "".join(capsys.readouterr())) and "v_num" not in shown


def test_a_bar_without_sizes_is_lightnings(capsys):
    bar = TQDMProgressBar()
    fit(ChunkedTraining(), callbacks=[bar], enable_progress_bar=True)
    assert "waiting" not in capsys.readouterr().out


# -- the summary


def test_the_summary_counts_what_is_in_the_weights():
    callback = ChunkedTraining(4)
    with pytest.raises(StateError, match="there is no data position"):
        callback.summary()
    fit(callback, max_epochs=2)
    summary = callback.summary()
    assert (summary.samples, summary.chunks, summary.coverage) == (16, 2, 16 / 22)
    assert summary.passes == 16 / 22 and summary.waiting_seconds > 0
    assert str(summary).startswith(
        "seen: 16 samples in 2 chunks = 0.7273 passes, 72.73% of the dataset; waited 0.0"
    )
    longer = ChunkedTraining(4)
    fit(longer, max_epochs=4)
    assert (longer.summary().coverage, longer.summary().samples) == (1.0, 30)


def test_the_summary_counts_what_a_limit_left_of_each_pass():
    callback = ChunkedTraining()
    run = fit(
        callback, ChunkedDataLoader(ids(22), 2, shuffle=True), limit_train_batches=3, max_epochs=2
    )
    summary = callback.summary()
    assert (summary.samples, summary.passes) == (12, 12 / 22) and len(run.seen) == 12
    assert summary.coverage == len({*run.seen}) / 22


def test_the_summary_spans_the_sessions_of_a_run(tmp_path):
    first = fit(ChunkedTraining(4), max_epochs=2)
    first.trainer.save_checkpoint(tmp_path / "two.ckpt")
    second = ChunkedTraining(4)
    run = fit(second, max_epochs=3, ckpt_path=tmp_path / "two.ckpt")
    assert sorted(first.seen + run.seen) == [*range(22)]
    assert (second.summary().samples, second.summary().chunks) == (22, 3)


@given(
    st.integers(1, 60),
    st.integers(1, 7),
    st.booleans(),
    st.integers(0, 30),
    st.integers(0, 30),
    st.sampled_from([(), [(0, 3, 5), (1, 0, 20)], [(1, 0, 60)]]),
)
def test_samples_and_coverage_are_those_of_a_walk(size, batch, drop_last, skipped, walked, holes):
    steps = Steps(size, batch, drop_last=drop_last and size >= batch)
    plan = Plan(ShuffledOrder(size, 42), steps, 0).skipping(Skips(holes))
    steps, seen = plan.steps, []
    cursor = Cursor().normal(steps)
    for _ in range(skipped):
        cursor = cursor.advance(steps)
    begin = cursor
    for _ in range(walked):
        seen += plan.samples(cursor).tolist()
        cursor = cursor.advance(steps)
    begin, cursor = plan.skips.to_order(begin), plan.skips.to_order(cursor)
    assert samples_between(plan, begin, cursor) == len(seen)
    assert coverage_of(plan, [(begin, cursor)]) == len(set(seen)) / size


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 9), st.integers(1, 40))
def test_the_place_is_that_of_the_batch_delivered_last(size, batch, chunk, count):
    loader = ChunkedDataLoader(torch.arange(size), batch, chunk)
    places = []
    while len(places) < count:
        before = loader.state_dict()["epoch"], loader.current_chunk, loader.total_chunks
        for _ in loader:
            course = loader.position
            words = describe_position(course.plan.steps, course.cursor)
            places.append(words)
            assert words == f"epoch {before[0]}, chunk {before[1] + 1}/{before[2]}"


# -- loggers


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_any_logger_gets_waiting_throughput_and_position(kind, tmp_path):
    logger = kind(tmp_path)
    run = fit(ChunkedTraining(4), max_epochs=4, logger=logger, log_every_n_steps=2)
    found = list(logged(logger, "penstock/chunk"))
    # two steps to a line, 11 batches an epoch: after 2, 4, ... 14 of chunks 4, 4, 3 and 4
    assert found == [(1, 0), (3, 0), (5, 1), (7, 1), (9, 2), (11, 0), (13, 0)]
    assert [epoch for _, epoch in logged(logger, "penstock/epoch")] == [0] * 5 + [1] * 2
    shares = [share for _, share in logged(logger, "penstock/waiting_share")]
    assert len(shares) == 7 and all(0 <= share <= 1 for share in shares)
    rates = [rate for _, rate in logged(logger, "penstock/samples_per_second")]
    assert all(rate > 0 for rate in rates) and run.trainer.global_step == 15


def logged(logger, name):
    """Yield the steps and values of a figure that a logger wrote."""
    if isinstance(logger, TensorBoardLogger):
        events = EventAccumulator(logger.log_dir).Reload()
        yield from ((each.step, each.value) for each in events.Scalars(name))
        return
    for row in csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text().splitlines()):
        if row[name]:
            yield int(row["step"]), float(row[name])


# -- the end, and the beginning


def test_training_ends_after_so_many_passes():
    run = fit(ChunkedTraining(4, max_passes=2), max_epochs=-1)
    assert sorted(run.seen) == sorted([*range(22)] * 2) and len(run.scored) == 6
    once = fit(ChunkedTraining(4, cycle=False), max_epochs=-1)
    assert sorted(once.seen) == [*range(22)] and len(once.scored) == 3
    assert fit(ChunkedTraining(4, max_passes=2), max_epochs=1).train_batches == [4]


def test_a_finished_run_that_is_resumed_trains_nothing(tmp_path):
    done = fit(ChunkedTraining(4, cycle=False), max_epochs=-1)
    done.trainer.save_checkpoint(tmp_path / "done.ckpt")
    again = fit(ChunkedTraining(4, cycle=False), max_epochs=-1, ckpt_path=tmp_path / "done.ckpt")
    assert again.seen == []
    more = fit(ChunkedTraining(4, max_passes=2), max_epochs=-1, ckpt_path=tmp_path / "done.ckpt")
    assert sorted(more.seen) == [*range(22)]


def test_training_begins_with_the_chunk_asked_for():
    whole = fit(ChunkedTraining(4), max_epochs=6)
    later = fit(ChunkedTraining(4, start_chunk=4), max_epochs=2)
    assert later.model.chunks == whole.model.chunks[4:]
    rest = fit(ChunkedTraining(4, start_chunk=1, cycle=False), max_epochs=-1)
    assert rest.model.chunks == whole.model.chunks[1:3]
    assert rest.callback.summary().samples == 14


def test_a_checkpoint_goes_on_with_the_chunk_asked_for(tmp_path):
    class Saver(Checkpoint):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 6:  # in the midst of the second chunk
                trainer.save_checkpoint(tmp_path / "six.ckpt")

    saved = {"callbacks": [Saver()], "enable_checkpointing": True}
    whole = fit(ChunkedTraining(4), max_epochs=6, **saved)
    run = fit(ChunkedTraining(4, start_chunk=3), max_epochs=4, ckpt_path=tmp_path / "six.ckpt")
    assert run.model.chunks == whole.model.chunks[3:5] and len(run.scored) == 2
    seen = whole.seen[:12] + run.seen
    summary = run.callback.summary()
    assert (summary.samples, summary.coverage) == (len(seen), len({*seen}) / 22)
    run.trainer.save_checkpoint(tmp_path / "more.ckpt")
    more = fit(ChunkedTraining(4), max_epochs=5, ckpt_path=tmp_path / "more.ckpt")
    assert more.callback.summary().samples == len(seen) + len(more.seen)


def test_a_second_fit_goes_on_and_does_not_begin_there_again():
    train, callback = ChunkedDataLoader(ids(22), 2, 4), ChunkedTraining(start_chunk=1)
    run = fit(callback, train, max_epochs=1)
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit(run.model, train, stock(9))
    assert [x for chunk in run.model.chunks for batch in chunk for x in batch] == run.seen
    assert run.model.chunks == fit(ChunkedTraining(4, start_chunk=1), max_epochs=2).model.chunks


def test_a_chunk_to_begin_with_needs_chunks():
    with pytest.raises(ConfigError, match="start_chunk=2 needs a training loader of Penstock"):
        fit(ChunkedTraining(start_chunk=2))


# -- rotating validation


def test_a_rotation_scores_every_sample_once_and_logs_their_mean(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    run = fit(
        ChunkedTraining(2, 2, val_cycle=True), max_epochs=7, logger=logger, log_every_n_steps=1
    )
    assert [len(scored) for scored in run.scored] == [4, 4, 1, 4, 4, 1, 4]
    for at in (0, 3):
        assert sorted(chain(*run.scored[at : at + 3])) == [*range(1000, 1009)]
    assert run.trainer.callback_metrics["val/loss_rotation"] == pytest.approx(1004)
    text = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    column = text[0].split(",").index("val/loss_rotation")
    logged = [float(line.split(",")[column]) for line in text[1:] if line.split(",")[column]]
    assert logged == [1004.0, 1004.0]  # once a rotation


def test_a_rotation_inside_one_chunk_leaves_no_sample_out():
    """Lightning reads the length of a validation once an epoch; here it differs within one."""
    callback = ChunkedTraining(val_chunk_size=2, val_cycle=True)
    val = stock(7, 1000, batch=3)  # validations of 6 samples and of 1
    run = fit(callback, stock(4, batch=1), val, max_epochs=2, val_check_interval=1)
    assert [len(scored) for scored in run.scored] == [6, 1] * 4
    assert sorted(run.scored[2] + run.scored[3]) == [*range(1000, 1007)]


def test_a_rotation_goes_on_after_a_resume(tmp_path):
    options = {"max_epochs": 2}
    first = fit(ChunkedTraining(2, 2, val_cycle=True), **options)
    first.trainer.save_checkpoint(tmp_path / "two.ckpt")
    path = tmp_path / "two.ckpt"
    run = fit(ChunkedTraining(2, 2, val_cycle=True), max_epochs=3, ckpt_path=path)
    assert sorted(chain(*first.scored, *run.scored)) == [*range(1000, 1009)]
    assert run.trainer.callback_metrics["val/loss_rotation"] == pytest.approx(1004)
    assert "val/loss_rotation" not in first.trainer.callback_metrics
