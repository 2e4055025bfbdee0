"""`penstock train`: what it says, what it leaves behind, what it refuses."""

import os
import re
import subprocess
import sys

import pytest
import torch
import yaml

from penstock.training.run.directory import RunPaths
from tests.cli.projects import final_state


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -- what it says and keeps


def test_the_end_says_what_was_seen_the_best_score_and_where_it_is(uninterrupted):
    project, state, _ = uninterrupted
    run = project / "run"
    out = (project / ".out").read_text()
    assert out.startswith("done after 24 steps, 6 chunks\n")
    assert "92 samples, 2 passes, 100.00% of the dataset" in out
    score, step, path = re.search(r"best +val/loss (\S+) after step (\d+): (\S+)", out).groups()
    best = torch.load(project / path, weights_only=True)
    assert best["global_step"] == int(step) and path == "run/checkpoints/best.ckpt"
    lines = (run / "csv" / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("val/loss")
    scores = [float(line.split(",")[column]) for line in lines[1:] if line.split(",")[column]]
    assert len(scores) == 6 and float(score) == pytest.approx(min(scores), rel=1e-5)
    assert state["callbacks"]["Saving"]["best"]["value"] == pytest.approx(min(scores))


def test_the_run_directory_holds_the_configuration_checkpoints_and_logs(uninterrupted):
    project, _, _ = uninterrupted
    paths = RunPaths(project / "run")
    resolved = yaml.safe_load(paths.config.read_text())
    assert resolved["train"]["train_chunk_size"] == 5
    assert [path.name for path in paths.saved()] == ["step-00000024.ckpt", "step-00000022.ckpt"]
    assert list((project / "run" / "tensorboard").glob("events.*"))


def test_one_readable_block_says_what_a_chunk_is(uninterrupted):
    err = (uninterrupted[0] / ".err").read_text()
    assert "chunked: 5 batches of 4 = 20 samples a chunk, 3 chunks an epoch" in err
    assert "Lightning" not in err and "Warning" not in err and "weights_only" not in err


def test_it_starts_at_a_chosen_chunk(commands, project, uninterrupted):
    done = commands(project, "train", "tiny.yaml", "--chunk", "4", "train.max_passes=1")
    assert done.code == 0, done.err
    whole, seen = uninterrupted[1]["seen"], final_state(project / "run")["seen"]
    assert seen[: 24 - 17] == whole[17:]  # chunks of 5, 5 and 2 steps: chunk 4 begins at step 17
    done = commands(project, "train", "tiny.yaml", "--chunk", "0", "--resume", "train.max_passes=1")
    assert done.code == 0 and "resuming from" in done.err
    assert final_state(project / "run")["seen"][len(seen) :][:5] == whole[:5]


def test_what_ended_it_early_is_told_and_what_could_be_monitored(commands, project):
    done = commands(project, "train", "tiny.yaml", "trainer.max_steps=6", "train.monitor=nope")
    assert done.code == 0 and "done after 6 steps, 1 chunk\n  ended  by max_steps=6\n" in done.out
    assert "no best checkpoint is kept: validation logs 'val/loss', not 'nope'" in done.err
    stop = "callbacks={early_stopping:{monitor:val/loss,patience:1,min_delta:100}}"
    done = commands(project, "train", "tiny.yaml", stop, "run_dir=other")
    assert done.code == 0, done.err
    assert "done after 10 steps, 2 chunks\n  ended  by early stopping: Monitored metric" in done.out


def test_loggers_are_the_users_to_choose_and_a_run_is_named_by_its_configuration(commands, project):
    config = (project / "tiny.yaml").read_text().replace("run_dir: run\n", "")
    (project / "piano.yaml").write_text(config)
    logger = "logger={_target_:lightning.pytorch.loggers.CSVLogger,save_dir:mine}"
    done = commands(project, "train", "piano.yaml", "train.max_passes=1", logger)
    assert done.code == 0, done.err
    assert list((project / "mine").rglob("metrics.csv"))
    run = project / "runs" / "piano"
    assert (run / "checkpoints").is_dir() and not (run / "csv").exists()


def test_standard_training_without_chunk_sizes_is_resumed_as_exactly(commands, project, tmp_path):
    plain = ["train.train_chunk_size=null", "train.val_chunk_size=null", "train.max_passes=null"]
    plain += ["trainer.max_epochs=2", "trainer.limit_train_batches=7"]
    assert commands(project, "train", "tiny.yaml", *plain, "run_dir=whole").code == 0
    assert commands(project, "train", "tiny.yaml", *plain, AT="train-9:SIGKILL").code == -9
    assert commands(project, "train", "tiny.yaml", *plain, "--resume").code == 0
    whole, resumed = final_state(project / "whole"), final_state(project / "run")
    assert whole["seen"] == resumed["seen"]
    assert torch.equal(whole["state_dict"]["weight"], resumed["state_dict"]["weight"])


# -- a dry run


def test_a_dry_run_measures_and_leaves_nothing_behind(commands, project):
    before = tree(project)
    done = commands(project, "train", "tiny.yaml", "--dry-run")
    assert done.code == 0, done.err
    assert set(tree(project)) - set(before) <= {".out", ".err", "__pycache__"} | {
        path for path in tree(project) if "__pycache__" in path
    }
    out = done.out
    assert out.startswith("dry run: nothing was trained, nothing is kept")
    assert re.search(r"a batch +int64 4, 32 B", out)
    assert re.search(r"a chunk +5 steps and 2 batches of validation", out)
    assert re.search(r"the run +6 chunks, \S+ s", out)
    assert "max_epochs" not in done.err and "max_passes=2: 6 chunks" in done.err
    assert re.search(r"a checkpoint +\S+ kB; all that are kept \S+ kB, \S+ \S+ are free", out)
    assert commands(project, "train", "tiny.yaml", "--dry-run", "loader.batch_size=20").code == 0


def test_a_dry_run_refuses_what_a_run_would(commands, project):
    done = commands(project, "train", "tiny.yaml", "--dry-run", "dataset.train.size=0")
    assert done.code == 2 and not (project / "run").exists()
    done = commands(project, "train", "tiny.yaml", "--dry-run", "trainer.limit_train_batches=0")
    assert done.code == 2 and "no batch to train" in done.err, done.err


# -- refusals: one sentence, exit code 2


REFUSED = {
    "no file": (["nowhere.yaml"], "nowhere.yaml"),
    "unknown key": (["tiny.yaml", "train.train_chunk_sze=3"], "train_chunk_size"),
    "wrong type": (["tiny.yaml", "loader.batch_size=many"], "batch_size"),
    "chunk size 0": (["tiny.yaml", "train.train_chunk_size=0"], "at least 1 batch"),
    "no data": (["tiny.yaml", "dataset.train.size=0"], "sample"),
    "no dataset": (["tiny.yaml", "dataset=null"], "dataset"),
    "no model": (["tiny.yaml", "model._target_=recording.Nobody"], "Nobody"),
    "unsaveable": (["tiny.yaml", "model.unsaveable=true"], "cannot be in a checkpoint"),
    "no key": (["tiny.yaml", "=3"], "invalid override '=3': expected key=value"),
    "no devices": (["tiny.yaml", "trainer.accelerator=none_such"], "none_such"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(commands, project, case):
    args, told = REFUSED[case]
    done = commands(project, "train", *args)
    assert done.code == 2, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("penstock: ") and told in last and len(last) < 500
    assert "Traceback" not in done.err and done.out == ""


def test_bad_yaml_is_refused_with_its_line(commands, project):
    config = project / "tiny.yaml"
    config.write_text(config.read_text() + "train: [\n")
    lines = len(config.read_text().splitlines())
    done = commands(project, "train", "tiny.yaml")
    assert done.code == 2
    assert re.search(rf"tiny.yaml, line ({lines}|{lines + 1})\b", done.err)


MISFITS = {
    "dataset.train.size=47": ("46 samples", "47 samples"),
    "model.width=5": ("size mismatch for weight: copying a param with shape torch.Size([4])",),
    "model.names=[weight,more]": ("the model has 'more', the checkpoint does not",),
    "model.optimizer=SGD": ("SGD needs 'dampening', which the checkpoint lacks",),
}


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_reason(commands, project):
    assert commands(project, "train", "tiny.yaml", AT="train-4:SIGKILL").code == -9
    run = project / "run"
    before = {name: (run / name).read_bytes() for name in tree(run) if (run / name).is_file()}
    for override, told in MISFITS.items():
        done = commands(project, "train", "tiny.yaml", "--resume", override)
        last = done.err.splitlines()[-1]
        assert done.code == 2 and last.startswith("penstock: ") and len(last) < 500, done.err
        assert all(words in last for words in told), last
        after = {name: (run / name).read_bytes() for name in tree(run) if (run / name).is_file()}
        assert after.keys() == before.keys()
        assert {name for name in before if after[name] != before[name]} == {".lock"}
    assert commands(project, "train", "tiny.yaml", "--resume").code == 0


def test_a_place_that_cannot_hold_a_run_is_refused(commands, project):
    for place in ("tiny.yaml", "tiny.yaml/x", "/proc/x"):
        done = commands(project, "train", "tiny.yaml", f"run_dir={place}")
        assert done.code == 2 and "choose another run_dir" in done.err, done.err


@pytest.mark.parametrize("module", ["typer", "lightning"])
def test_ctrl_c_as_it_is_imported_ends_it_without_a_traceback(module):
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['penstock', 'train', 'x.yaml']\n"
        "from penstock.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "penstock: interrupted\n")


@pytest.mark.steady
def test_nobody_who_reads_on_is_no_failure():
    reader, writer = os.pipe()
    os.close(reader)
    program = "from penstock.cli.output import print_result as p; p('a plan'); p('more')"
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.steady
def test_without_its_libraries_the_command_names_the_extra(tmp_path):
    program = (
        "import sys; sys.modules['lightning'] = None; "
        "from penstock.cli.commands import app; app(['train', 'x.yaml'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(r"penstock: lightning\S* is not installed: pip install 'penst", done.stderr)
