"""accelerate's ``prepare`` takes a loader as it is, on one process and on two."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from torch.utils.data import DataLoader, RandomSampler

from penstock.loaders import ChunkedDataLoader

PROGRAM = Path(__file__).with_name("accelerate_program.py")
spec = importlib.util.spec_from_file_location("accelerate_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

ONE = {"samples": 46, "batch": 4, "chunk": 5, "accumulate": 2}
TWO = {"samples": 46, "batch": 2, "chunk": 5, "accumulate": 2}


def start(commands, directory: Path, name: str, ranks: int, jobs: list[dict]) -> list[dict]:
    """The results of a program run in a process, or two, of its own."""
    jobs_file = directory / f"{name}.json"
    jobs_file.write_text(json.dumps(jobs))
    run = commands.program if ranks == 1 else partial(commands.ranks, ranks)
    done = run(directory, PROGRAM, jobs_file)
    assert done.code == 0, done.err[-3000:]
    return json.loads(jobs_file.with_suffix(".results").read_text())


def samples(run: dict) -> list[int]:
    return [sample for event in run["events"] if event[0] == "train" for sample in event[1]]


def validations(run: dict) -> list[list]:
    return [event[1:] for event in run["events"] if event[0] == "validate"]


@pytest.fixture(scope="module")
def runs(commands, tmp_path_factory) -> dict:
    """Uninterrupted runs, and what became of their checkpoints in new processes."""
    directory = tmp_path_factory.mktemp("runs")
    one_dir, two_dir = str(directory / "one"), str(directory / "two")
    one = program.fit({**ONE, "chunks": 6})
    program.fit({**ONE, "chunks": 4}, save_to=one_dir)
    stream, stream_dir = {**TWO, "kind": "stream", "chunks": 6}, str(directory / "stream")
    jobs = [{**TWO, "chunks": 4, "save_to": two_dir}, {**TWO, "chunks": 6}]
    jobs += [{**stream, "save_to": stream_dir}]
    _, two, streamed = start(commands, directory, "two", 2, jobs)
    whole_one, whole_two = {**ONE, "chunks": 6}, {**TWO, "chunks": 6}
    jobs = [
        {**whole_one, "resume_from": one_dir},
        {**whole_one, "resume_from": two_dir},
    ]
    from_one, two_to_one = start(commands, directory, "on_one", 1, jobs)
    jobs = [
        {**whole_two, "resume_from": two_dir},
        {**whole_two, "resume_from": one_dir, "every": 3},
        {**stream, "resume_from": stream_dir, "every": 4},
    ]
    from_two, one_to_two, from_stream = start(commands, directory, "on_two", 2, jobs)
    return {
        "one": one,
        "two": two["fresh"],
        "resumed": {"one": from_one, "two": from_two},
        "moved": {"two to one": two_to_one, "one to two": one_to_two},
        "stream": (streamed["fresh"], from_stream),
    }


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_a_prepared_loader_is_the_loader_and_its_cursor_moves(runs, ranks):
    run = runs[ranks]
    assert run["kept"] and run["world"] == {"one": 1, "two": 2}[ranks]
    seen = Counter(samples(run))
    assert sorted(seen) == [*range(46)] and set(seen.values()) == {2}
    assert run["place"] == [2, 0]
    assert validations(run) == [[chunk, [*range(1000, 1005)]] for chunk in range(6)]
    assert samples(run) == samples(runs["one"])


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_every_saved_state_resumes_in_a_new_process_as_if_nothing_had_happened(runs, ranks):
    resumed = runs["resumed"][ranks]
    assert {name.split("-")[1] for name in resumed} == {"batch", "validated"}
    for name, run in resumed.items():
        assert run == runs[ranks], name


def test_a_stream_on_two_processes_resumes_from_every_saved_state(runs):
    whole, resumed = runs["stream"]
    assert whole["kept"] and set(Counter(samples(whole)).values()) == {2}
    assert resumed
    for name, run in resumed.items():
        assert run == whole, name


@pytest.mark.parametrize("move", ["two to one", "one to two"])
def test_a_run_moves_to_another_number_of_processes(runs, move):
    assert runs["moved"][move]
    for name, run in runs["moved"][move].items():
        assert samples(run) == samples(runs["one"]), name
        assert validations(run) == validations(runs["one"]), name


def test_an_evaluation_loader_stays_out_of_saved_states(tmp_path):
    accelerator = Accelerator(cpu=True)
    train = ChunkedDataLoader(torch.arange(20), 2, 3)
    stock = ChunkedDataLoader(torch.arange(8), 2, sampler=RandomSampler(range(8)))
    accelerator.prepare(train, ChunkedDataLoader(torch.arange(5), 2, evaluation=True), stock)
    list(train)
    accelerator.save_state(str(tmp_path))
    assert [path.name for path in tmp_path.glob("dl_state_dict*")] == ["dl_state_dict.bin"]
    saved = torch.load(tmp_path / "dl_state_dict.bin", weights_only=True)
    assert saved == train.state_dict() and saved["position"] == 6


def test_a_loader_may_also_be_registered_for_checkpointing(tmp_path):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(ChunkedDataLoader(torch.arange(20), 2, 3))
    accelerator.register_for_checkpointing(loader)
    first = next(iter(loader))
    accelerator.save_state(str(tmp_path))
    rest = torch.cat(list(loader))
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.cat(list(loader)), rest) and len(first) == 2


def test_batches_stay_on_the_cpu_and_accumulation_goes_on_over_the_ends_of_chunks():
    """What accelerate does in its own loaders, and ours leave to the loop: docs/trainers.md."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(
        torch.nn.Linear(1, 1), ChunkedDataLoader(torch.arange(12), 2, 3)
    )
    synced = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            assert batch.device.type == "cpu"
            assert not accelerator.gradient_state.end_of_dataloader
    assert synced == [False, True] * 3


def test_a_loader_of_torchs_would_be_rebuilt():
    """What the class attribute is for: without it this would happen to ours."""
    accelerator = Accelerator(cpu=True)
    stock = DataLoader(torch.arange(4))
    assert accelerator.prepare(stock) is not stock


def test_skipping_batches_is_not_needed():
    loader = ChunkedDataLoader(torch.arange(12), 2, 3)
    state = loader.state_dict()
    skip_first_batches(loader, 1)
    assert loader.state_dict() == state
