"""Tuning measures within its budgets, explains itself, leaves nothing behind, changes nothing."""

import random
import threading
import weakref
from time import perf_counter

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from penstock import ChunkedDataLoader
from penstock.errors import ConfigError
from penstock.loaders import StreamLoader
from penstock.sources import open_source
from penstock.testing import same_batch
from penstock.tuning import DataLoaderConfig, DataLoaderFactory, Machine, tune
from penstock.tuning import trials as trials_module
from penstock.tuning.cost import measure_cost
from penstock.tuning.trials import (
    Trial,
    best_of,
    identity_of,
    load_result,
    result_path,
    same_arrays,
    save_result,
    start_seconds,
)
from tests.attempts import attempts

MACHINE = Machine(4, False)


class Computed(Dataset):
    """Samples that keep the processor busy."""

    def __init__(self, samples=64, scale=2.0, handle=None):
        self.samples, self.scale, self.handle = samples, scale, handle

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        sum(range(5000))
        return torch.tensor([index * self.scale])


class Waiting(Computed):
    """Samples of storage that answers late."""

    def __getitem__(self, index):
        threading.Event().wait(0.005)
        return torch.tensor([index * self.scale])


class OneAtATime(Waiting):
    """Storage with one reader, which cannot be sent to a worker."""

    def __init__(self):
        super().__init__(64, handle=threading.Lock())

    def __getitem__(self, index):
        with self.handle:
            return super().__getitem__(index)


class Ambient(Computed):
    def __getitem__(self, index):
        return torch.tensor([np.random.random() + random.random()])


class OneFile(Computed):
    """Reads from one position of one file, opened with the first sample."""

    def __init__(self, path):
        path.write_bytes(bytes(range(64)))
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        if self.handle is None:
            self.handle = self.path.open("rb")
            weakref.finalize(self, self.handle.close)
        self.handle.seek(index)
        return torch.tensor([self.handle.read(1)[0]])


class Iterable(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "tune"


def quick(dataset, batch_size=8, **options):
    return tune(dataset, batch_size, **{"budget_seconds": 0.4, "cached": False, **options})


def test_the_answer_is_a_configuration_that_makes_the_loader(capsys):
    config = quick(Computed(), 8)
    assert isinstance(config, DataLoaderConfig) and config.batch_size == 8
    assert config.executor in ("inline", "threads", "processes")
    assert (config.num_workers > 0) == (config.executor == "processes")
    with DataLoaderFactory.create_dataloader(Computed(), config) as loader:
        assert same_batch(list(loader), list(ChunkedDataLoader(Computed(), 8, shuffle=True)))
    said = capsys.readouterr()
    assert said.out == ""
    assert "round 1/" in said.err
    (head,) = [line for line in said.err.splitlines() if "samples/s" in line]
    assert "first batch" in head and "memory" in head
    (chosen,) = [line for line in said.err.splitlines() if line.startswith("* ")]
    assert str(config.executor) in chosen


def test_silence_can_be_had(capsys):
    quick(torch.zeros(64, 4), verbose=False)
    assert capsys.readouterr() == ("", "")


def test_time_and_ambient_generators_are_as_they_were():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    control = torch.rand(()).item(), np.random.random(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    begin = perf_counter()
    quick(Ambient(), verbose=False)
    assert perf_counter() - begin < 30  # the budget, and the start of a few workers
    assert (torch.rand(()).item(), np.random.random(), random.random()) == control


def test_a_dataset_slower_than_the_budget_is_measured_once_and_no_more(capsys):
    config = quick(Waiting(8), 8, budget_seconds=0.001)
    assert config.executor == "inline"
    assert "round 1/3: 2 threads" not in capsys.readouterr().err


@attempts(3)
def test_storage_that_answers_late_gets_more_readers_than_cores():
    assert measure_cost(Waiting()).waits
    assert not measure_cost(Computed()).waits
    config = quick(Waiting(), budget_seconds=1.5, verbose=False)
    assert (config.threads or config.num_workers) > 2


def test_a_dataset_that_cannot_be_sent_is_tried_inline_and_in_threads_and_the_reason_said(capsys):
    config = quick(Computed(handle=lambda x: x))
    said = capsys.readouterr().err
    assert config.num_workers == 0
    assert "no processes: dataset.handle (function) cannot be sent" in said and "lambda" in said
    assert "threads" in said and "processes, 2 ahead" not in said
    quick(Computed(), collate_fn=lambda samples: samples[0])
    assert "no processes: collate_fn (function)" in capsys.readouterr().err


def test_threads_that_would_move_one_files_position_for_each_other_are_not_tried(capsys, tmp_path):
    config = quick(OneFile(tmp_path / "samples"))
    said = capsys.readouterr().err
    assert "no threads: dataset.handle (BufferedReader) has one file position" in said
    assert "processes" in said and config.executor != "threads"


def test_measuring_opens_no_file_that_workers_would_share(tmp_path):
    dataset = Subset(OneFile(tmp_path / "samples"), range(10))
    quick(dataset, 2, verbose=False)
    assert dataset.dataset.handle is None


@attempts(3)  # on a busy machine the budget can end before the threads had their turn
def test_threads_that_deliver_other_batches_are_refused_with_the_reason(capsys):
    config = quick(Ambient(handle=lambda: 1), budget_seconds=1.0)
    assert config.executor == "inline"
    assert "its batches differ from those read inline" in capsys.readouterr().err


def test_memory_is_bounded_and_what_is_left_out_is_said(capsys):
    dataset = torch.zeros(64, 1000)  # a batch of 8 has 32 kB
    config = quick(dataset, 8, memory_budget="100kB")
    said = capsys.readouterr().err
    assert config.executor == "inline"
    assert "2 threads: 128 kB exceeds memory_budget" in said


# -- how it is measured


def test_what_was_in_flight_does_not_look_like_speed(monkeypatch):
    """Of readers that read ahead, as many batches as they had ready come before the clock."""
    times = iter([0.0] + [1.0] * 4 + [2.0, 2.0, 3.0, 3.0, 4.0, 4.0])  # two at a time, once a second
    monkeypatch.setattr(trials_module, "perf_counter", lambda: next(times))
    trial = Trial(
        DataLoaderConfig(1, num_workers=0, executor="threads", threads=2), torch.arange(99)
    )
    trial.run(seconds=0.5, deadline=3.5)
    assert trial.samples_per_second == 2.0
    assert trial.first_batch_seconds == 1.0


def test_waves_of_readers_do_not_look_like_speed(monkeypatch):
    """Four threads deliver four batches a second, at once: a run may end within a wave."""
    waves = [float(second) for second in range(1, 30) for _ in range(4)]
    config = DataLoaderConfig(1, num_workers=0, executor="threads", threads=4)
    for more in range(4):
        times = iter([0.0, *waves])
        monkeypatch.setattr(trials_module, "perf_counter", lambda times=times: next(times))
        trial = Trial(config, torch.arange(999))
        trial.run(seconds=4.0 + more / 4, deadline=1e9)
        assert trial.samples_per_second == pytest.approx(4.0)


def test_the_better_half_goes_on_and_the_cheapest_of_the_close_ones_wins():
    ran = []

    class Told(Trial):
        def run(self, seconds, deadline):
            ran.append((self.config.batch_size, seconds))
            self.samples += SPEEDS[self.config.batch_size]
            self.seconds += 1.0

    SPEEDS = {1: 10, 2: 99, 3: 100, 4: 50}
    told = [Told(DataLoaderConfig(n, num_workers=0), None) for n in SPEEDS]
    best = best_of(told, 4.0, perf_counter() + 60, lambda _: None)
    assert best.config.batch_size == 2  # 99 is close to 100, and listed first
    assert ran == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5), (3, 1.0), (2, 1.0)]


def test_workers_that_could_not_start_before_the_deadline_are_not_started():
    def trial(workers, executor="processes", **measured):
        return Trial(DataLoaderConfig(num_workers=workers, executor=executor), None, **measured)

    two = trial(2, first_batch_seconds=0.5, seconds=1.0)
    assert start_seconds(trial(16), [two, trial(16)]) == 4.0
    assert start_seconds(trial(16), [trial(16)]) == 0.0  # nothing is known yet
    assert start_seconds(trial(0, "threads"), [two]) == 0.0


@attempts(3)
def test_where_a_device_is_busy_what_reads_meanwhile_wins():
    """Readers gain nothing but that: samples wait one after the other, whoever reads them."""
    options = {"budget_seconds": 1.5, "cached": False, "verbose": False}
    dataset = OneAtATime()
    assert tune(dataset, 4, step_seconds=0.02, **options).executor == "threads"


@attempts(3)
def test_long_steps_are_measured_in_short_ones(capsys):
    """So that every candidate has its turn within the budget."""
    options = {"budget_seconds": 3.0, "cached": False}
    assert tune(torch.zeros(4096, 8), 512, step_seconds=1.0, **options).batch_size == 512
    said = capsys.readouterr().err
    assert "inline" in said and "processes" in said
    assert " 0 " not in said.split("memory")[1]  # samples a second of every candidate


def test_arrays_are_compared_bit_by_bit():
    batch = {"x": torch.tensor([1.0, float("nan")]), "y": [np.arange(3)]}
    assert same_arrays(batch, {"x": batch["x"].clone(), "y": [np.arange(3)]})
    assert not same_arrays(batch, {"x": batch["x"], "y": [np.arange(3.0)]})
    assert not same_arrays(batch, {"x": batch["x"]})


# -- what is remembered


def test_an_answer_is_remembered_for_the_dataset(own_cache, capsys):
    config = quick(Computed(), cached=True)
    (file,) = own_cache.iterdir()
    capsys.readouterr()
    begin = perf_counter()
    assert quick(Computed(), cached=True, budget_seconds=60) == config
    assert perf_counter() - begin < 30
    assert "measured before" in capsys.readouterr().err
    quick(Computed(scale=3.0), cached=True)
    assert len(list(own_cache.iterdir())) == 2
    assert file.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"batch_size": 8}', "null", "\0", '{"executor": "none"}']
)
def test_a_corrupt_memory_is_none(text):
    path = result_path(MACHINE, Computed(), 8, None, 1)
    save_result(path, DataLoaderConfig(8, num_workers=3, executor="processes"))
    assert load_result(path).num_workers == 3
    path.write_text(text)
    assert load_result(path) is None


def test_an_impossible_memory_is_none():
    path = result_path(MACHINE, Computed(), 8, None, 1)
    save_result(path, DataLoaderConfig(8, num_workers=3, executor="processes"))
    path.write_text(path.read_text().replace('"num_workers": 3', '"num_workers": 0'))
    assert load_result(path) is None


def test_where_nothing_can_be_written_tuning_works(own_cache):
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("a file where the directory should be")
    assert quick(torch.zeros(64, 4), cached=True, verbose=False).batch_size == 8


def test_another_machine_dataset_batch_collation_or_budget_is_another_key():
    def key(dataset=None, batch=8, collate=None, budget=1, machine=MACHINE):
        dataset = Computed() if dataset is None else dataset
        return result_path(machine, dataset, batch, collate, budget)

    others = [
        key(),
        key(Computed(65)),
        key(Computed(scale=3.0)),
        key(Waiting()),
        key(Subset(Computed(), range(64))),
        key(Subset(Computed(scale=3.0), range(64))),
        key(batch=9),
        key(collate=same_arrays),
        key(collate=Trial),
        key(budget=2),
        key(machine=Machine(8, False)),
        key(machine=Machine(4, True)),
    ]
    assert len(set(others)) == len(others)
    assert key() == key()
    assert key(torch.zeros(4)) != key(torch.ones(4))
    assert identity_of({"a": [1, 2]}) != identity_of({"a": [1, 3]})


# -- refusals


def test_what_has_no_samples_by_index_is_refused(tmp_path):
    source = open_source(np.zeros((8, 2), np.float32))
    with pytest.raises(ConfigError, match="StreamLoader over a source chooses its own threads"):
        tune(source, 4)
    with StreamLoader(source, 4) as loader, pytest.raises(ConfigError, match="is not a dataset"):
        tune(loader, 4)
    with pytest.raises(ConfigError, match="Iterable has no samples by index"):
        tune(Iterable(), 4)
    with pytest.raises(ConfigError, match="Computed is empty"):
        tune(Computed(0), 4)
