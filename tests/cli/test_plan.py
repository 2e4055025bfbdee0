"""`penstock plan`: what will be read, and when."""

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from penstock.training.config import read_settings
from penstock.training.run.plan import plan_text, sample_text, skip_text, step_text
from tests.cli.projects import final_state


def test_the_plan_is_a_table_of_chunks_with_sizes_coverage_and_memory(commands, project):
    done = commands(project, "plan", "tiny.yaml")
    assert done.code == 0, done.err
    rows = re.findall(r"^ +(\d+) +(\d+) to (\d+) +(\d+) +(\d+)$", done.out, re.M)
    assert [tuple(map(int, row)) for row in rows] == [
        (1, 0, 4, 5, 20),
        (2, 5, 9, 5, 20),
        (3, 10, 11, 2, 6),
    ]
    assert "validation after each chunk: 2 batches" in done.out
    assert "training: 6 chunks = 2 passes, 100.0% of 46 samples seen" in done.out
    assert "a batch: int64 4, 32 B" in done.out
    assert "memory: up to 1 batch at once" in done.out
    assert not (project / "run").exists()


@pytest.mark.parametrize("step", [0, 7, 23])
def test_the_samples_of_a_step_are_those_that_are_trained_on(
    commands, project, uninterrupted, step
):
    done = commands(project, "plan", "tiny.yaml", "--step", step)
    assert done.code == 0, done.err
    samples = [int(sample) for sample in re.findall(r"sample (\d+)", done.out)]
    assert samples == uninterrupted[1]["seen"][step]
    assert [f"number {sample}" for sample in samples] == re.findall(r"number \d+", done.out)
    epoch, within = divmod(step, 12)
    assert done.out.startswith(f"step {step}: epoch {epoch}, step {within} of 12, chunk ")


def test_the_samples_of_a_step_are_planned_for_every_rank(commands, project, uninterrupted):
    ranks = ["trainer.devices=2", "trainer.strategy=ddp", "loader.batch_size=2"]
    done = commands(project, "plan", "tiny.yaml", *ranks, "--step", 4)
    found = re.findall(r"rank (\d)  sample (\d+)", done.out)
    assert [int(rank) for rank, _ in found] == [0, 0, 1, 1]
    assert [int(sample) for _, sample in found] == uninterrupted[1]["seen"][4]


def test_a_step_of_several_batches_is_told_by_the_number_it_has_in_a_run(commands, project):
    together = "trainer.accumulate_grad_batches=2"  # a pass is 3 + 3 + 1 optimizer steps
    assert commands(project, "train", "tiny.yaml", together).code == 0
    seen = final_state(project / "run")["seen"]
    for batch, step in ((4, 2), (5, 3), (11, 6), (12, 7), (13, 7)):
        done = commands(project, "plan", "tiny.yaml", together, "--step", batch)
        assert (
            f"optimizer steps, and this batch is in optimizer step {step}, counted from 0"
            in done.out
        )
        assert {int(sample) for sample in re.findall(r"sample (\d+)", done.out)} <= {*seen[step]}


def test_partial_coverage_is_told(commands, project):
    limited = ["train.max_passes=null", "trainer.max_epochs=1"]
    done = commands(project, "plan", "tiny.yaml", *limited)
    assert f"{20 / 46:.1%} of 46 samples seen" in done.out
    endless = commands(project, "plan", "tiny.yaml", "train.max_passes=null")
    assert "training has no end" in endless.out


def test_standard_training_is_planned_with_its_limits(commands, project):
    plain = ["train.train_chunk_size=null", "train.val_chunk_size=null", "train.max_passes=null"]
    plain += ["trainer.max_epochs=2", "trainer.limit_train_batches=7"]
    done = commands(project, "plan", "tiny.yaml", *plain)
    assert done.code == 0, done.err
    assert re.findall(r"^ +(\d+) +(\d+) to (\d+) +(\d+) +(\d+)$", done.out, re.M) == [
        ("1", "0", "6", "7", "28")
    ]
    assert "training: 2 epochs of 7 batches, the first ones of a new shuffle" in done.out


def test_a_stream_is_planned_without_being_read(commands, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100, 32), np.float32))
    (tmp_path / "stream.yaml").write_text(
        "train: {train_chunk_size: 3}\n"
        "loader: {batch_size: 8}\n"
        "trainer: {max_epochs: 5}\n"
        "dataset: {train: x.npy}\n"
        "model: {_target_: lightning.pytorch.demos.boring_classes.BoringModel}\n"
    )
    done = commands(tmp_path, "plan", "stream.yaml")
    assert done.code == 0, done.err
    assert "of buffers, of a budget of" in done.out and "validation: none" in done.out
    assert "training: 5 chunks = 1.25 passes, 98.0% of 100 samples seen" in done.out  # drop_last
    samples = re.findall(r"sample (\d+)", commands(tmp_path, "plan", "stream.yaml", "--step=5").out)
    assert len(set(samples)) == 8


def test_audio_is_told_by_file_and_frames(commands, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for number in range(3):
        tone = np.sin(np.arange(250) / (3 + number)).astype(np.float32)
        soundfile.write(tmp_path / f"tone-{number}.wav", tone, 8000)
    (tmp_path / "audio.yaml").write_text(
        "train: {train_chunk_size: 2}\n"
        "loader: {batch_size: 2}\n"
        "model: {_target_: lightning.pytorch.demos.boring_classes.BoringModel}\n"
        "dataset:\n"
        "  train:\n"
        "    _target_: penstock.domains.audio.QuantizedAudioDataset\n"
        f"    path: {tmp_path}\n"
        "    sample_len: 100\n"
    )
    done = commands(tmp_path, "plan", "audio.yaml", "--step", "1")
    assert done.code == 0, done.err
    places = re.findall(r"sample (\d+)  tone-(\d).wav frames (\d+) to (\d+)", done.out)
    assert len(places) == 2
    for sample, file, first, last in (map(int, place) for place in places):
        assert (file, first) == (sample // 3, sample % 3 * 100) and last == min(first + 100, 250)


def test_a_step_before_the_first_is_refused(commands, project):
    done = commands(project, "plan", "tiny.yaml", "--step=-1")
    assert done.code == 2 and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["train.max_passes=10000000"], "training: 30,000,000 chunks = 1e+07 passes, 100.0% of 46"),
        (["train.max_passes=4611686018427387904"], "100.0% of 46 samples seen"),
        (["train.train_chunk_size=4611686018427387904"], "training: 2 chunks = 2 passes"),
        (["loader.batch_size=4611686018427387904"], "a batch: int64 46"),
        (["train.train_chunk_size=1", "dataset.train.size=10000000"], "2,499,999 to"),
        (["--step", "10000000"], "step 10,000,000: epoch 833333, step 4 of 12"),
    ],
)
def test_large_numbers_cost_no_more_than_small_ones(commands, project, changed, said):
    done = commands(project, "plan", "tiny.yaml", *changed)
    assert done.code == 0 and said in done.out, done


@pytest.mark.parametrize(
    "changed",
    [
        ["train.max_passes=1000000000000000000000000000000"],
        ["train.train_chunk_size=1000000000000000000000000000000"],
        ["train.val_chunk_size=1000000000000000000000000000000"],
        ["loader.batch_size=1000000000000000000000000000000"],
        ["trainer.max_epochs=1000000000000000000000000000000"],
        ["trainer.max_steps=1000000000000000000000000000000"],
        ["trainer.accumulate_grad_batches=1000000000000000000000000000000"],
        ["trainer.num_nodes=1000000000000000000000000000000"],
        ["trainer.devices=1000000000000000000000000000000"],
        ["--step", "1000000000000000000000000000000"],
        ["trainer.devices=4611686018427387904"],
        [f"model.x={'[' * 300}{']' * 300}"],
    ],
)
def test_numbers_that_no_run_can_have_are_refused_in_a_sentence(commands, project, changed):
    done = commands(project, "plan", "tiny.yaml", *changed)
    assert done.code == 2 and done.err.count("\n") == 1, done
    assert done.err.startswith("penstock: ") and "Error" not in done.err and len(done.err) < 700


def test_a_sample_is_found_in_the_run_and_after_it(commands, project, uninterrupted):
    seen = uninterrupted[1]["seen"]  # 12 steps an epoch
    before = commands(project, "plan", "tiny.yaml", "--sample", 7)
    assert before.code == 0, before.err
    first = next(step for step, samples in enumerate(seen) if 7 in samples)
    row = seen[first].index(7)
    assert f"not seen yet; next in epoch 0, step {first}, rank 0, row {row}" in before.out
    assert commands(project, "train", "tiny.yaml").code == 0  # two passes
    after = commands(project, "plan", "tiny.yaml", "--sample", 7)
    found = re.findall(r"seen in epoch (\d), step (\d+), rank 0, row (\d)", after.out)
    assert [(int(e), seen[12 * int(e) + int(s)][int(r)]) for e, s, r in found] == [(0, 7), (1, 7)]
    assert "; next in epoch 2, step " in after.out
    assert commands(project, "plan", "tiny.yaml", "--sample", 46).code == 2
    other = commands(project, "plan", "tiny.yaml", "train.chunk_seed=1", "--sample", 7)
    assert other.code == 2 and "run_dir=run holds a run of other data or settings" in other.err


def test_steps_are_converted_to_positions_that_a_run_leaves_out(commands, project, uninterrupted):
    done = commands(project, "plan", "tiny.yaml", "--skip-steps", "3:5")
    assert done.code == 0, done.err
    (override,) = re.findall(r"'(train\.skip=\S+)'", done.out)
    assert override == "train.skip=[[0,12,20]]"
    assert "loader.skip(0, 12, 20)" in done.out
    again = commands(project, "plan", "tiny.yaml", override, "--skip-steps", "3:4")
    assert "'train.skip=[[0,12,24]]'" in again.out  # what is step 3 now was step 5
    assert commands(project, "train", "tiny.yaml", override).code == 0
    expected = [
        step for number, step in enumerate(uninterrupted[1]["seen"]) if number not in (3, 4)
    ]
    assert final_state(project / "run")["seen"] == expected
    for wrong in ("5:3", "7", "a:b"):
        assert commands(project, "plan", "tiny.yaml", "--skip-steps", wrong).code == 2


ORDERS = """
import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.demos.boring_classes import BoringModel

from penstock import ChunkedDataLoader, StreamLoader, open_source

LENGTHS = np.arange(60) % 7 + 1


class Module(LightningDataModule):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def train_dataloader(self):
        rows, weights = torch.zeros(60, 32), np.arange(60) % 5 + 1
        if self.kind == "weights":
            return ChunkedDataLoader(rows, 6, 3, weights=weights, epoch_samples=50)
        if self.kind == "stored weights":
            return StreamLoader(rows, 6, chunk_size=3, weights=weights, epoch_samples=50)
        return ChunkedDataLoader(rows, chunk_size=3, lengths=LENGTHS, max_tokens=28, group=2)

    def val_dataloader(self):
        return []
"""
MEMBERS = "mixture: {a: x.npy, b: {path: y.npy}}, weights: {a: 2, b: 1}"
KINDS = {
    "mixture": "{train: {" + MEMBERS + "}}",
    "nested": "{train: {mixture: {in: {" + MEMBERS + "}, c: x.npy}, weights: {in: 2, c: 1}}}",
    "priority": "{train: x.npy}",
    "packed": "{train: {_target_: penstock.pack, data: tokens.npy, length: 32}}",
    "weights": "{_target_: orders.Module, kind: weights}",
    "stored weights": "{_target_: orders.Module, kind: stored weights}",
    "lengths": "{_target_: orders.Module, kind: lengths}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_found_and_steps_are_skipped_in_every_order(monkeypatch, tmp_path, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    np.save("x.npy", np.zeros((90, 32), np.float32))
    np.save("y.npy", np.zeros((40, 32), np.float32))
    np.save("tokens.npy", np.arange(2000))
    Path("orders.py").write_text(ORDERS)
    chosen = ", priority: {parts: {hard: [0, 30], rest: null}, weights: {hard: 1, rest: 1}}"
    Path("orders.yaml").write_text(
        f"train: {{train_chunk_size: 3{chosen if kind == 'priority' else ''}}}\n"
        "loader: {batch_size: 6}\ntrainer: {max_epochs: 5}\n"
        f"dataset: {KINDS[kind]}\nmodel: {{_target_: orders.BoringModel}}\n"
    )

    @cache  # composing a configuration takes longer than anything else here
    def settings(*overrides):
        return read_settings(tmp_path / "orders.yaml", list(overrides))

    def samples_of(step, *overrides):
        text = step_text(settings(*overrides), step)
        return [int(number) for number in re.findall(r"sample (\d+)", text)]

    assert "training: 5 chunks" in plan_text(settings())
    first, second, third = (samples_of(step) for step in (1, 2, 3))
    for row in (0, len(first) - 1):
        found = re.findall(
            r"epoch 0, step (\d+), rank 0, row (\d+)", sample_text(settings(), first[row])
        )
        assert found[0] == ("1", str(row)) or found[0][0] == "0"  # it may come before, too
    (override,) = re.findall(r"'(train\.skip=\S+)'", skip_text(settings(), "2:3"))
    assert samples_of(1, override) == first and samples_of(2, override) == third != second
