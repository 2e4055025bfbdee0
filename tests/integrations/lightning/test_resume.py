"""Lightning's own Trainer, one and two ranks, resumed in new processes from real checkpoints."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from penstock.errors import ConfigError, MissingExtraError, StateError
from penstock.loaders import ChunkedDataLoader

PROGRAM = Path(__file__).with_name("resume_program.py")
spec = importlib.util.spec_from_file_location("resume_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

pytestmark = [  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

SAVED = {"max_epochs": 4, "accumulate_grad_batches": 3}  # chunks, of which the third is short
WHOLE = {**SAVED, "max_epochs": 6}
POINTS = {"delivered", "batch", "validating", "scored", "validated", "ended"}
ONE = {"samples": 46, "batch": 4, "chunk": 5}
TWO = {"samples": 46, "batch": 2, "chunk": 5, "devices": 2}


def start(commands, directory: Path, name: str, jobs: list[dict]) -> list[dict]:
    """The results of a program run in a process (or two) of its own."""
    jobs_file = directory / f"{name}.json"
    jobs_file.write_text(json.dumps(jobs))
    ranks = jobs[0].get("devices", 1)
    run = commands.program if ranks == 1 else partial(commands.ranks, ranks)
    done = run(directory, PROGRAM, jobs_file)
    assert done.code == 0, done.err[-3000:]
    return json.loads(jobs_file.with_suffix(".results").read_text())


def samples(run: dict) -> list[int]:
    return [sample for event in run["events"] if event[0] == "train" for sample in event[3]]


def validations(run: dict) -> list[int]:
    return [event[1] for event in run["events"] if event[0] == "validate"]


def without(run: dict, *names: str) -> dict:
    return {name: value for name, value in run.items() if name not in names}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def uninterrupted(commands, directory) -> dict:
    """Whole runs on one and two ranks; beside them, runs that save everywhere and stop early."""
    for ranks in ("one", "two"):
        (directory / ranks).mkdir()
    one = program.fit({**ONE, "trainer": WHOLE})
    program.fit({**ONE, "trainer": SAVED}, save_to=directory / "one")
    saving = {**TWO, "trainer": SAVED, "save_to": str(directory / "two")}
    _, two = start(commands, directory, "saving", [saving, {**TWO, "trainer": WHOLE}])
    return {"one": one, "two": two["fresh"]}


@pytest.fixture(scope="module", params=[(2, 1), pytest.param((6, 2), marks=pytest.mark.proof)])
def on_one(request, commands, directory, uninterrupted) -> dict:
    """What became on one rank, in a new process, of the checkpoints of one and two."""
    whole, ckpts = {**ONE, "trainer": WHOLE}, {n: str(directory / n) for n in ("one", "two")}
    jobs = [{**whole, "resume_from": ckpts["one"], "of_each": request.param[0]}]
    jobs += [{**whole, "resume_from": ckpts["two"], "of_each": request.param[1]}]
    return dict(zip(("one", "two"), start(commands, directory, "on_one", jobs), strict=True))


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.proof)])
def on_two(request, commands, directory, uninterrupted) -> dict:
    """What became on two ranks, in new processes, of the checkpoints of one and two."""
    whole, ckpts = {**TWO, "trainer": WHOLE}, {n: str(directory / n) for n in ("one", "two")}
    jobs = [{**whole, "resume_from": ckpts["one"], "of_each": 1}]
    jobs += [{**whole, "resume_from": ckpts["two"], "of_each": request.param}]
    return dict(zip(("one", "two"), start(commands, directory, "on_two", jobs), strict=True))


# -- whole runs


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_training_cycles_the_dataset_and_validates_after_every_chunk(uninterrupted, ranks):
    run = uninterrupted[ranks]
    assert run["world"] == {"one": 1, "two": 2}[ranks] and run["kept"]
    seen = Counter(samples(run))
    assert sorted(seen) == list(range(46)) and set(seen.values()) == {2}
    kinds = [event[0] for event in run["events"]]
    chunk = ["chunk", *["train"] * 5, "validate", "chunk ended"]
    short = ["chunk", *["train"] * 2, "validate", "chunk ended"]
    assert kinds == [*chunk, *chunk, *short] * 2
    scored = [event[2] for event in run["events"] if event[0] == "validate"]
    assert scored == [[*range(1000, 1005)]] * 6


def test_two_ranks_train_on_the_samples_of_one(uninterrupted):
    assert samples(uninterrupted["one"]) == samples(uninterrupted["two"])


# -- resuming: samples, hooks, validations, weights, learning rates, logged steps


def test_every_checkpoint_of_one_rank_resumes_as_if_nothing_had_happened(uninterrupted, on_one):
    assert {name.split("-")[1] for name in on_one["one"]} >= POINTS
    for name, run in on_one["one"].items():
        assert run == uninterrupted["one"], name


def test_every_checkpoint_of_two_ranks_resumes_as_if_nothing_had_happened(uninterrupted, on_two):
    assert {name.split("-")[1] for name in on_two["two"]} >= POINTS
    for name, run in on_two["two"].items():
        assert run == uninterrupted["two"], name


def test_a_run_moves_from_two_ranks_to_one(uninterrupted, on_one):
    assert_moved(on_one["two"], uninterrupted["one"], world=1)


def test_a_run_moves_from_one_rank_to_two(uninterrupted, on_two):
    assert_moved(on_two["one"], uninterrupted["one"], world=2)


def assert_moved(runs: dict, uninterrupted: dict, world: int) -> None:
    assert {name.split("-")[1] for name in runs} >= POINTS
    for name, run in runs.items():
        assert run["world"] == world
        assert samples(run) == samples(uninterrupted), name
        assert validations(run) == validations(uninterrupted), name


@pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")
def test_a_killed_run_goes_on_at_the_first_sample_that_is_not_in_its_checkpoint(commands, tmp_path):
    job = {**ONE, "trainer": WHOLE, "diary": str(tmp_path / "diary"), "last": str(tmp_path)}
    killed = tmp_path / "killed.json"
    killed.write_text(json.dumps([{**job, "kill_at_step": 9}]))
    assert commands.program(tmp_path, PROGRAM, killed).code == -9
    saved_steps = torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"]
    before = [json.loads(line) for line in (tmp_path / "diary").read_text().splitlines()]
    assert saved_steps == before[-1][0] - 1
    (tmp_path / "diary").unlink()
    result = program.fit(without(job, "last"), ckpt_path=str(tmp_path / "last.ckpt"))
    after = [json.loads(line) for line in (tmp_path / "diary").read_text().splitlines()]
    joined = [line for line in before if line[0] <= saved_steps] + after
    uninterrupted = program.fit({**ONE, "trainer": WHOLE})
    assert [sample for _, part in joined for sample in part] == samples(uninterrupted)
    assert result == uninterrupted


SITUATIONS = {
    "steps": ({}, {"max_steps": 9, "max_epochs": -1}, {"max_steps": 13}),
    "validation inside chunks": ({}, {"val_check_interval": 0.5, "accumulate_grad_batches": 2}, {}),
    "validation of every other chunk": (
        {"plateau": False},
        {"check_val_every_n_epoch": 2, "accumulate_grad_batches": 2},
        {},
    ),
    "validation by batches": (
        {},
        {"val_check_interval": 3, "check_val_every_n_epoch": None, "accumulate_grad_batches": 2},
        {},
    ),
    "no validation": ({"plateau": False}, {"limit_val_batches": 0}, {}),
    "no chunks": ({"chunk": None, "samples": 9}, {"accumulate_grad_batches": 2}, {}),
    "epochs cut short": ({"chunk": None}, {"limit_train_batches": 3}, {}),
    "chunks of one batch": ({"chunk": 1}, {"accumulate_grad_batches": 2}, {}),
    "a limit that chunks override": ({}, {"limit_train_batches": 3}, {}),
    "validation chunks that rotate": ({"val_chunk": 1}, {"accumulate_grad_batches": 2}, {}),
}


@pytest.mark.parametrize("of_each", [1, pytest.param(None, marks=pytest.mark.proof)])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_checkpoint_resumes_exactly_in_any_situation(tmp_path, situation, of_each):
    loading, training, further = SITUATIONS[situation]
    job = {"samples": 22, "batch": 2, "chunk": 4, **loading}
    saved = {**job, "trainer": {"max_epochs": 3, **training}}
    whole = {**job, "trainer": {**saved["trainer"], **(further or {"max_epochs": 5})}}
    if situation == "steps":  # where training stops inside a chunk, hooks of its end are run
        saved["points"] = ["delivered", "batch", "validated"]
    uninterrupted = program.fit(whole)
    assert program.fit(saved, save_to=tmp_path) == program.fit(without(saved, "points"))
    resume = {**whole, "resume_from": str(tmp_path), "of_each": of_each}
    for name, run in program.run(resume).items():
        assert run == uninterrupted, name


@pytest.mark.parametrize("of_each", [1, pytest.param(2, marks=pytest.mark.proof)])
def test_another_batch_size_and_chunk_size_may_resume(tmp_path, of_each):
    saved = {"samples": 46, "batch": 4, "chunk": 5, "trainer": SAVED}
    program.fit(saved, save_to=tmp_path)
    other = {"samples": 46, "batch": 3, "chunk": 4, "trainer": {"max_epochs": 12}}
    for name, run in program.run(
        {**other, "resume_from": str(tmp_path), "of_each": of_each}
    ).items():
        seen = samples(run)
        for epoch in range(len(seen) // 46):
            assert sorted(seen[epoch * 46 : epoch * 46 + 46]) == [*range(46)], name
        ends = [event[1] for event in run["events"] if event[0] == "chunk ended"]
        assert ends == validations(run) == [*range(12)], name


def test_a_checkpoint_written_without_the_callback_goes_on_after_what_was_delivered(tmp_path):
    job = {**ONE, "trainer": {"max_epochs": 2}}
    program.fit(job, save_to=tmp_path, callback=None)
    whole = {**ONE, "trainer": {"max_epochs": 4}}
    points = {path.stem.split("-")[1]: path for path in tmp_path.glob("*.ckpt")}
    for point in ("batch", "validated", "ended"):
        resumed = program.fit(whole, ckpt_path=str(points[point]))
        assert samples(resumed) == samples(program.fit(whole)), point


# -- validation, lengths, and what moves nothing


@settings(max_examples=15)
@given(
    st.integers(1, 30), st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.integers(1, 6)
)
def test_validation_runs_exactly_once_per_chunk_whatever_the_sizes(size, batch, chunk, acc, chunks):
    """Lightning #19624: a length that was off, and validation never ran."""
    job = {"samples": size, "batch": batch, "chunk": chunk}
    run = program.fit({**job, "trainer": {"max_epochs": chunks, "accumulate_grad_batches": acc}})
    assert validations(run) == [*range(chunks)]
    expected, _ = program.loaders(job)
    lengths = [len(list(expected)) for _ in range(chunks)]
    assert Counter(e[1] for e in run["events"] if e[0] == "train") == dict(enumerate(lengths))


@pytest.mark.parametrize("limit", [1, 3, 0.5])
def test_the_chunk_size_beats_the_limit_of_the_trainer(limit):
    job = {**ONE, "trainer": {"max_epochs": 3}}
    limited = {**ONE, "trainer": {"max_epochs": 3, "limit_train_batches": limit}}
    assert program.fit(limited) == program.fit(job)


class Watcher(pl.Callback):
    """Reads all that can be read of the loaders, and notes where they were as training began."""

    def __init__(self, *loaders):
        self.loaders, self.places = loaders, []

    def on_train_start(self, trainer, pl_module):
        self.places = [loader.state_dict() for loader in self.loaders]

    def on_train_batch_end(self, *_):
        for loader in self.loaders:
            len(loader), loader.remaining, loader.describe(), loader.samples_at(0)


def test_the_sanity_check_progress_bars_and_reading_move_nothing(capsys):
    job = {**ONE, "val_chunk": 2, "val_samples": 11, "trainer": {"max_epochs": 3}}
    model, (train, val) = program.Recorder(job), program.loaders(job)
    begin = [train.state_dict(), val.state_dict()]
    watcher = Watcher(train, val)
    shown = {**job, "trainer": {**job["trainer"], "enable_progress_bar": True}}
    program.make_trainer(shown, [watcher]).fit(model, train, val)
    assert watcher.places == begin
    quiet = program.fit({**job, "trainer": {**job["trainer"], "num_sanity_val_steps": 0}})
    assert model.events == quiet["events"]
    assert "Epoch" in "".join(capsys.readouterr())


def test_validating_and_testing_move_nothing(tmp_path):
    job = {**ONE, "trainer": {"max_epochs": 1}}
    model, (train, val) = program.Recorder(job), program.loaders(job)
    model.test_step = model.validation_step
    trainer = program.make_trainer(job)
    trainer.fit(model, train, val)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    place = train.state_dict()
    trainer.validate(model, val, verbose=False)
    trainer.test(model, val, verbose=False, ckpt_path=tmp_path / "one.ckpt")
    assert train.state_dict() == place
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    states = [torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in ("one", "two")]
    assert states[0]["penstock"] == states[1]["penstock"]


def test_a_loader_that_is_inside_a_chunk_gives_its_rest_and_is_validated():
    job = {**ONE, "trainer": {"max_epochs": 3}}
    model, (train, val) = program.Recorder(job), program.loaders(job)
    next(iter(train)), next(iter(train))
    program.make_trainer(job).fit(model, train, val)
    kinds = Counter((event[0], event[1]) for event in model.events)
    assert [kinds["train", chunk] for chunk in range(3)] == [3, 5, 2]
    assert [kinds["validate", chunk] for chunk in range(3)] == [1, 1, 1]


def test_a_second_fit_goes_on_where_the_first_one_ended():
    job = {**ONE, "trainer": {"max_epochs": 2}}
    model, (train, val) = program.Recorder(job), program.loaders(job)
    trainer = program.make_trainer(job)
    trainer.fit(model, train, val)
    trainer.fit_loop.max_epochs = 6
    trainer.fit(model, train, val)
    assert model.events == program.fit({**ONE, "trainer": {"max_epochs": 6}})["events"]


# -- where loaders come from


class Hooks(program.Recorder):
    """A module whose hooks build a new loader whenever they are called."""

    def train_dataloader(self):
        return program.loaders(self.job)[0]

    def val_dataloader(self):
        return program.loaders(self.job)[1]


class Data(pl.LightningDataModule):
    """The same, in a data module."""

    def __init__(self, job):
        super().__init__()
        self.job = job

    train_dataloader, val_dataloader = Hooks.train_dataloader, Hooks.val_dataloader


@pytest.mark.parametrize("kind", ["module", "data module"])
def test_hooks_that_build_loaders_are_asked_once(tmp_path, kind):
    def fit(trainer_options, **options):
        job = {**ONE, "trainer": trainer_options}
        model = Hooks(job) if kind == "module" else program.Recorder(job)
        data = {"datamodule": Data(job)} if kind == "data module" else {}
        saver = [program.Everywhere(tmp_path)] if not options else []
        program.make_trainer(job, saver).fit(model, **data, **options)
        return model.events

    uninterrupted = program.fit({**ONE, "trainer": WHOLE})["events"]
    fit(SAVED)
    paths = sorted(tmp_path.glob("*.ckpt"))
    for path in paths[::6]:
        assert fit(WHOLE, ckpt_path=path) == uninterrupted, path.stem


def test_a_loader_in_a_collection_keeps_the_form_of_its_batches():
    class Named(program.Recorder):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["a"], batch_idx)

    job = {**ONE, "trainer": WHOLE}
    model, (train, val) = Named(job), program.loaders(job)
    program.make_trainer(job).fit(model, {"a": train}, val)
    assert model.events == program.fit(job)["events"]


def test_worker_processes_serve_all_chunks_and_end_with_training(tmp_path):
    job = {**ONE, "trainer": SAVED}
    program.fit({**job, "workers": 1, "points": ["batch"]}, save_to=tmp_path)
    path = sorted(tmp_path.glob("*.ckpt"))[8]
    resumed = program.fit({**job, "trainer": WHOLE, "workers": 1}, ckpt_path=str(path))
    assert resumed == program.fit({**ONE, "trainer": WHOLE})


def test_strategies_that_restore_late_and_schedulers_that_ask_early_are_exact(tmp_path):
    """FSDP and DeepSpeed restore after the optimizers were made, which may ask for lengths."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Late(SingleDeviceStrategy):
        restore_checkpoint_after_setup = True

    class Asks(program.Recorder):
        def configure_optimizers(self):
            assert self.trainer.estimated_stepping_batches > 0
            return super().configure_optimizers()

    def fit(job, trainer_options, savers=(), **options):
        job = {**job, "trainer": {**trainer_options, "strategy": Late(torch.device("cpu"))}}
        model, (train, val) = Asks(job), program.loaders(job)
        program.make_trainer(job, savers).fit(model, train, val, **options)
        return {"events": model.events}

    fit(ONE, SAVED, [program.Everywhere(tmp_path)])
    uninterrupted = program.fit({**ONE, "trainer": WHOLE})["events"]
    paths = sorted(tmp_path.glob("*.ckpt"))
    for path in paths[::9]:
        assert fit(ONE, WHOLE, ckpt_path=path)["events"] == uninterrupted, path.stem
    other, unvalidated = {**ONE, "chunk": 3}, [p for p in paths if p.stem.endswith("batch")][4]
    resumed = fit(other, {"max_epochs": 4}, ckpt_path=unvalidated)
    assert validations(resumed) == [0, 1, 2, 3] and len(samples(resumed)) == 46


# -- without the callback


def test_without_the_callback_a_fresh_run_is_exact_if_lightning_reloads():
    job = {**ONE, "trainer": {**WHOLE, "reload_dataloaders_every_n_epochs": 1}}
    assert program.fit(job, callback=None)["events"] == program.fit(job)["events"]


EACH_STEP = {"accumulate_grad_batches": 1}
ALONE = {name: (a, {**b, **EACH_STEP}, c) for name, (a, b, c) in SITUATIONS.items()} | {
    "accumulated": SITUATIONS["no chunks"],
    "loaders are asked for again": ({}, {"reload_dataloaders_every_n_epochs": 1}, {}),
    "steps of epochs": ({"chunk": None}, {"max_steps": 13, "max_epochs": -1}, {"max_steps": 20}),
}
OFTEN_EXACT = {  # a checkpoint inside an epoch, after an optimizer step
    *("no chunks", "steps", "loaders are asked for again", "steps of epochs", "no validation"),
    *("validation of every other chunk", "validation inside chunks"),
}


@pytest.mark.parametrize("of_each", [2, pytest.param(None, marks=pytest.mark.proof)])
@pytest.mark.parametrize("situation", ALONE)
def test_without_the_callback_a_resume_is_exact_or_refused(tmp_path, situation, of_each):
    loading, training, further = ALONE[situation]
    job = {"samples": 22, "batch": 2, "chunk": 4, "plateau": False, **loading}
    saved = {**job, "trainer": {"max_epochs": 3, **training}}
    whole = {**job, "trainer": {**saved["trainer"], **(further or {"max_epochs": 5})}}
    program.fit(saved, save_to=tmp_path, callback=None)
    uninterrupted, found = program.fit(whole, callback=None), Counter()
    for path in program.chosen(tmp_path, of_each):
        try:
            run = program.fit(whole, ckpt_path=str(path), callback=None)
        except StateError as error:
            assert str(error).endswith("; " + ADVICE), path.stem
            continue
        found[path.stem[4:]] += 1
        assert samples(run) == samples(uninterrupted), path.stem
        assert validated(run) == validated(uninterrupted), path.stem
    assert not found.keys() - {"batch", "validated", "ended"}
    assert found["batch"] or situation not in OFTEN_EXACT


ADVICE = "add callbacks=[ChunkedTraining()] to the Trainer of lightning.pytorch"


def validated(run: dict) -> list:
    return [event[:3] for event in run["events"] if event[0] == "validate"]


def test_a_stock_loader_is_left_to_lightning(tmp_path):
    job = {**ONE, "trainer": {"max_epochs": 2}}
    trainer = program.make_trainer(job)
    trainer.fit(program.Recorder(job), DataLoader(torch.arange(8), 2), DataLoader(torch.arange(3)))
    trainer.save_checkpoint(tmp_path / "stock.ckpt")
    assert "penstock" not in torch.load(tmp_path / "stock.ckpt", weights_only=True)


# -- refusals


def test_a_loader_that_passes_through_to_torch_is_refused_before_it_trains():
    job = {**ONE, "trainer": {"max_epochs": 2}}
    stock = ChunkedDataLoader(torch.arange(8), 2, sampler=RandomSampler(range(8)))
    model, trainer = program.Recorder(job), program.make_trainer(job)
    with pytest.raises(ConfigError, match="ChunkedDataLoader with sampler, whose order torch"):
        trainer.fit(model, stock, program.loaders(job)[1])
    assert not samples({"events": model.events})


def test_several_training_loaders_are_refused():
    job = {**ONE, "trainer": {"max_epochs": 1}}
    train, val = program.loaders(job)
    with pytest.raises(ConfigError, match="drives one loader, found 2 in train_dataloader"):
        program.make_trainer(job).fit(program.Recorder(job), [train, val], val)


def test_a_checkpoint_of_another_dataset_is_refused(tmp_path):
    program.fit({**ONE, "trainer": {"max_epochs": 1}, "points": ["ended"]}, save_to=tmp_path)
    other = {**ONE, "samples": 47, "trainer": {"max_epochs": 2}}
    with pytest.raises(StateError, match="46 samples, this loader has 47 samples"):
        program.fit(other, ckpt_path=str(tmp_path / "000-ended.ckpt"))


def test_the_missing_library_is_named_with_its_extra(monkeypatch):
    for name in [*sys.modules]:
        if name.startswith(("lightning.", "penstock.integrations.lightning")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(MissingExtraError, match=r"penstock\[lightning\]"):
        import penstock.integrations.lightning.callback  # noqa: F401
