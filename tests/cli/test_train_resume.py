"""Runs that are killed, stopped, or moved, and go on as if nothing had happened."""

import csv
import os
import shutil
import signal

import pytest
import torch

from penstock.report import Run
from penstock.training.run.directory import RunPaths, locked
from tests.attempts import VERDICT
from tests.cli.projects import final_state, new_project

SAMPLES, PASSES = 46, 2
ON_TWO_RANKS = ["trainer.devices=2", "trainer.strategy=ddp", "loader.batch_size=2"]


def assert_same(one, other, path=""):
    """Raise for the first difference of two checkpoints."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{path}[{number}]")
    else:
        assert one == other, path


def assert_each_sample_once_an_epoch(state):
    seen = [sample for step in state["seen"] for sample in step]
    assert len(seen) == SAMPLES * PASSES
    for epoch in range(PASSES):
        assert sorted(seen[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def assert_whole(run):
    """Every checkpoint there is can be read, and nothing unfinished lies about."""
    paths = RunPaths(run)
    assert 1 <= len(paths.saved()) <= 2
    for path in [*paths.saved(), paths.best]:
        torch.load(path, weights_only=True)
    assert not [path for path in paths.checkpoints.iterdir() if path.suffix != ".ckpt"]


def metrics(run):
    """What was logged, without the figures that a clock decides."""
    timed = {"penstock/waiting_share", "penstock/samples_per_second"}
    with (run / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert timed <= rows[0].keys()
    return [{name: row[name] for name in row.keys() - timed} for row in rows]


def resumed(commands, project, *overrides, **env):
    done = commands(project, "train", "tiny.yaml", *overrides, "--resume", **env)
    assert done.code == 0, done.err
    assert_whole(project / "run")
    return final_state(project / "run")


def test_an_uninterrupted_run_sees_every_sample_once_an_epoch(uninterrupted):
    project, state, _ = uninterrupted
    assert_each_sample_once_an_epoch(state)
    assert_whole(project / "run")


# -- killed

MOMENTS = ["train-7", "validate-10-1", "writing-12"]  # the campaign has more


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_if_nothing_had_happened(commands, uninterrupted, project, moment):
    whole, state, moments = uninterrupted
    assert moment in moments
    done = commands(project, "train", "tiny.yaml", AT=f"{moment}:SIGKILL")
    assert done.code == -signal.SIGKILL
    assert_same(resumed(commands, project), state)
    assert metrics(project / "run") == metrics(whole / "run")


@pytest.mark.parametrize(("step", "chunks"), [(1, []), (7, [5]), (18, [5, 10, 12, 17])])
def test_the_report_of_a_killed_run_has_every_chunk_that_ended(commands, project, step, chunks):
    commands(project, "train", "tiny.yaml", AT=f"train-{step}:SIGKILL")
    assert commands(project, "report", "run").code == 0
    killed = Run.read(project / "run").last
    assert killed.state == "running" and [each["step"] for each in killed.chunks] == chunks
    assert all(each["loss"] is not None and each["scores"] for each in killed.chunks)
    resumed(commands, project)
    after = [each["step"] for each in Run.read(project / "run").last.chunks]
    assert after == [end for end in (5, 10, 12, 17, 22, 24) if end > RESUMED[step]]
    assert not (project / "run" / "metrics" / "session-1-rank-0.chunks").exists()


RESUMED = {1: 0, 7: 6, 18: 18}  # the last checkpoint before the step: every third


def test_a_run_killed_before_its_first_checkpoint_begins_anew(commands, uninterrupted, project):
    commands(project, "train", "tiny.yaml", AT="writing-0:SIGKILL")
    assert not RunPaths(project / "run").saved()
    assert_same(resumed(commands, project), uninterrupted[1])


def test_a_run_killed_again_and_again_gets_there(commands, uninterrupted, project):
    commands(project, "train", "tiny.yaml", AT="train-4:SIGKILL")
    for moment in ("train-4", "writing-8", "validate-12-0"):
        done = commands(project, "train", "tiny.yaml", "--resume", AT=f"{moment}:SIGKILL")
        assert done.code == -signal.SIGKILL
    assert_same(resumed(commands, project), uninterrupted[1])


def test_a_checkpoint_that_cannot_be_read_is_reported_and_the_one_before_taken(
    commands, uninterrupted, project
):
    commands(project, "train", "tiny.yaml", AT="train-9:SIGKILL")
    last, before = RunPaths(project / "run").saved()
    last.write_bytes(last.read_bytes()[:-100])
    done = commands(project, "train", "tiny.yaml", "--resume")
    assert done.code == 0
    assert f"{last.name!r} is corrupted" in done.err and f"resuming from run/{before.name}" in (
        done.err.replace("checkpoints/", "")
    )
    assert_same(final_state(project / "run"), uninterrupted[1])


OTHERS = {
    "batches": ["loader.batch_size=3"],
    "chunks": ["train.train_chunk_size=4", "train.val_chunk_size=1", "loader.num_workers=2"],
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_batch_size_chunk_size_or_number_of_workers_may_resume(commands, project, other):
    commands(project, "train", "tiny.yaml", AT="train-9:SIGKILL")
    assert_each_sample_once_an_epoch(resumed(commands, project, *OTHERS[other]))


# -- stopped

STOPS = {"SIGTERM": "train-7", "SIGINT": "validate-10-0", "SIGUSR1": "ended-10"}


@pytest.mark.parametrize("name", STOPS)
def test_a_signal_saves_and_leaves_and_the_run_goes_on_exactly(
    commands, uninterrupted, project, name
):
    whole, state, _ = uninterrupted
    done = commands(project, "train", "tiny.yaml", AT=f"{STOPS[name]}:{name}")
    assert done.code == 128 + getattr(signal, name)
    assert f"{name}: saving after this batch, then exiting" in done.err
    assert done.out.startswith(f"stopped by {name}") and "--resume" in done.out
    assert "Traceback" not in done.err
    if name == "SIGTERM":  # nothing of the step it came in is lost
        assert RunPaths(project / "run").saved()[0].name == "step-00000008.ckpt"
    assert_same(resumed(commands, project), state)
    assert metrics(project / "run") == metrics(whole / "run")


def test_ctrl_c_reaches_workers_too_and_they_go_on_until_it_is_saved(
    commands, uninterrupted, project
):
    workers = ["loader.num_workers=2"]
    done = commands(project, "train", "tiny.yaml", *workers, AT="train-7:CTRL_C")
    assert done.code == 130, done.err
    assert RunPaths(project / "run").saved()[0].name == "step-00000008.ckpt"
    assert_same(resumed(commands, project, *workers), uninterrupted[1])


def test_a_failure_of_the_users_own_is_told_and_nothing_is_lost(commands, uninterrupted, project):
    whole, state, _ = uninterrupted
    done = commands(project, "train", "tiny.yaml", AT="train-9:raise")
    assert done.code == 1
    told = done.err.splitlines()[-1]
    assert told.startswith("penstock: ValueError: the user's own model fails here")
    assert "'run'" in told and "--resume" in told and "Traceback" not in done.err
    assert_same(resumed(commands, project), state)
    assert metrics(project / "run") == metrics(whole / "run")
    done = commands(new_project(project / "b"), "train", "tiny.yaml", "--debug", AT="train-2:raise")
    assert done.code == 1 and "Traceback" in done.err and 'raise ValueError("the user' in done.err


def test_a_run_directory_in_use_by_another_process_is_refused_not_overwritten(commands, project):
    commands(project, "train", "tiny.yaml", AT="train-4:SIGKILL")
    before = {path: path.stat().st_mtime_ns for path in (project / "run").rglob("*.*")}
    with locked(project / "run"):
        for flag in ([], ["--resume"]):
            done = commands(project, "train", "tiny.yaml", *flag)
            assert done.code == 2
            assert f"'run' is in use by process {os.getpid()} on" in done.err
    after = {path: path.stat().st_mtime_ns for path in (project / "run").rglob("*.*")}
    changed = {path.name for path in before if after[path] != before[path]}
    assert before.keys() == after.keys() and changed <= {".lock"}
    done = commands(project, "train", "tiny.yaml")
    assert done.code == 2 and "already holds a run: continue it with --resume" in done.err


def test_a_signal_before_the_first_step_ends_it_and_leaves_nothing_to_resume(commands, project):
    assert commands(project, "train", "tiny.yaml", AT="sanity:SIGTERM").code == -signal.SIGTERM
    done = commands(project, "train", "tiny.yaml", AT="sanity:SIGINT")
    assert done.code == 130 and "Traceback" not in done.err
    assert not RunPaths(project / "run").saved()


def test_batches_that_are_not_in_the_weights_come_again(commands, project):
    together = ["trainer.accumulate_grad_batches=3"]
    done = commands(project, "train", "tiny.yaml", *together, "run_dir=whole")
    assert done.code == 0, done.err
    done = commands(project, "train", "tiny.yaml", *together, AT="batch-6:SIGTERM")
    assert done.code == 143 and "stopped by SIGTERM after 2 steps" in done.out
    ended, whole = resumed(commands, project, *together), final_state(project / "whole")
    assert ended.pop("loops") != whole.pop(
        "loops"
    )  # Lightning counts how often it zeroed gradients
    assert_same(ended, whole)
    assert metrics(project / "run") == metrics(project / "whole")


INSIDE = ["trainer.val_check_interval=3"]  # does not divide the chunk of 5


@pytest.mark.parametrize("together", [1, 2])
def test_the_best_of_validations_inside_a_chunk_is_kept(commands, project, together):
    options = [*INSIDE, f"trainer.accumulate_grad_batches={together}"]
    done = commands(project, "train", "tiny.yaml", *options)
    assert done.code == 0, done.err
    rows = [row for row in metrics(project / "run") if row["val/loss"]]
    best = min(rows, key=lambda row: float(row["val/loss"]))
    kept = torch.load(RunPaths(project / "run").best, weights_only=True)
    step = int(best["step"]) + (together == 1)  # validated in the midst of a step, or after it
    assert len(rows) == 6 and kept["global_step"] == step
    assert f"best   val/loss {float(best['val/loss']):.6g} after step {step}:" in done.out
    assert f"val/loss {float(best['val/loss']):.6g} after step {step}, the best so far" in done.err


def test_a_validation_among_accumulated_batches_comes_again_with_them(commands, project):
    options = [*INSIDE, "trainer.accumulate_grad_batches=2"]
    assert commands(project, "train", "tiny.yaml", *options, "run_dir=whole").code == 0
    done = commands(project, "train", "tiny.yaml", *options, AT="validate-1-1:SIGTERM")
    assert done.code == 143 and "stopped by SIGTERM after 1 step," in done.out, done.err
    ended, whole = resumed(commands, project, *options), final_state(project / "whole")
    del ended["loops"], whole["loops"]  # as above
    assert_same(ended, whole)
    assert metrics(project / "run") == metrics(project / "whole")


def test_a_run_that_is_done_stays_done(commands, uninterrupted, project):
    whole, state, _ = uninterrupted
    shutil.copytree(whole / "run", project / "run")
    done = commands(project, "train", "tiny.yaml", "--resume")
    printed = (whole / ".out").read_text().splitlines()
    # without the verdict: a run that is done measures no batch
    assert done.code == 0
    assert done.out.splitlines() == [line for line in printed if not VERDICT.search(line)]
    assert_same(final_state(project / "run"), state)
    assert metrics(project / "run") == metrics(whole / "run")
    longer = commands(project, "train", "tiny.yaml", "--resume", "train.max_passes=3")
    assert longer.code == 0 and "138 samples, 3 passes" in longer.out


# -- several ranks


def test_a_run_moves_to_two_ranks_and_back_and_all_stop_at_the_same_step(
    commands, uninterrupted, project
):
    _, state, _ = uninterrupted
    commands(project, "train", "tiny.yaml", AT="train-4:SIGKILL")
    done = commands(project, "train", "tiny.yaml", *ON_TWO_RANKS, "--resume", AT="train-14:CTRL_C")
    assert done.code == 130, done.err
    assert RunPaths(project / "run").saved()[0].name == "step-00000015.ckpt"
    moved = resumed(commands, project)
    assert moved["seen"] == state["seen"]
    close = torch.allclose(moved["state_dict"]["weight"], state["state_dict"]["weight"])
    assert close  # the mean over ranks rounds otherwise than the mean over a batch


def test_a_drawn_seed_is_one_seed_on_two_ranks(commands, tmp_path):
    project = new_project(tmp_path / "drawn")
    done = commands(project, "train", "tiny.yaml", *ON_TWO_RANKS, "train.chunk_seed=null")
    assert done.code == 0, done.err
    assert_each_sample_once_an_epoch(final_state(project / "run"))
