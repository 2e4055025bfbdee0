"""The doctor finds every planted fault by the right check, and nothing in good datasets."""

import functools
import io
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from penstock import ChunkedDataLoader, StreamLoader, concatenate, open_source, sample_generator
from penstock.tuning.cost import SampleCost
from penstock.tuning.doctor import CHECKS, diagnose, memory, sample_cost, unguarded
from penstock.tuning.examination import Examination, Samples, Subject
from penstock.tuning.machine import Machine

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((64, 8)).astype(np.float32)


class Rows(Dataset):
    """A good dataset, and the base of faulty ones."""

    def __init__(self, **attributes):
        self.rows = ROWS.copy()
        vars(self).update(attributes)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index].copy())


def checks_of(*subjects, program=""):
    found, _ = diagnose(
        [each if isinstance(each, Subject) else Subject("", each) for each in subjects], program
    )
    for each in found:
        assert ":" in each.text and each.text.count("\n") == 0  # a sentence with what to change
    return {each.check for each in found}


# -- faults of a class


class Local:
    def __reduce__(self):
        raise TypeError("not here")


class WithGenerator(Rows):
    def __init__(self):
        super().__init__(rng=np.random.default_rng(3))

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index] + self.rng.standard_normal(8))


class WithClock(Rows):
    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index] + np.random.default_rng().standard_normal(8))


class InPlace(Rows):
    def __getitem__(self, index):
        self.rows[index] *= 2
        return torch.from_numpy(self.rows[index].copy())


class OneBuffer(Rows):
    def __getitem__(self, index):
        if not hasattr(self, "buffer"):
            self.buffer = torch.zeros(8)
        return self.buffer.copy_(torch.from_numpy(self.rows[index]))


class Drawing(Rows):
    def __getitem__(self, index):
        return super().__getitem__(index) + self.draw()


class Growing(Rows):
    def __getitem__(self, index):
        cache = self.__dict__.setdefault("cache", {})
        cache[len(cache)] = index
        return super().__getitem__(index)


class Cached(Rows):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # the fault
    def __getitem__(self, index):
        return super().__getitem__(index)


class Uneven(Rows):
    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index, : 3 + index % 2].copy())


class Broken(Rows):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError("damaged")
        return super().__getitem__(index)


class Nothing(Rows):
    def __getitem__(self, index):
        return None


class WithGradient(Rows):
    def __getitem__(self, index):
        return super().__getitem__(index).requires_grad_()


class Straggler(Rows):
    def __getitem__(self, index):
        if index == 7:
            time.sleep(0.12)
        return super().__getitem__(index)


class Numbers(IterableDataset):
    def __init__(self, shared):
        self.shared = shared

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        step = info.num_workers if self.shared and info else 1
        first = info.id if self.shared and info else 0
        return iter(torch.arange(400.0).reshape(100, 4)[first::step])


class Handle(Rows):
    """An open file that is left out of pickles, but not of forks."""

    def __getstate__(self):
        return {name: each for name, each in vars(self).items() if name != "file"}


def normal():
    return float(np.random.normal())


def torch_normal():
    return torch.randn(8)


def uniform():
    return random.random()


FAULTY = {
    "a lambda": (lambda: Rows(scale=lambda x: x), "workers"),
    "an object that refuses to be pickled": (lambda: Rows(inner=Local()), "workers"),
    "a lock": (lambda: Rows(lock=threading.Lock()), "workers"),
    "an open file": (lambda: Handle(file=Path(__file__).open()), "fork"),  # noqa: SIM115
    "threads": (lambda: Rows(pool=ThreadPoolExecutor(1)), "fork"),
    "a tensor on an accelerator": (lambda: Rows(table=torch.zeros(3, device="meta")), "fork"),
    "numpy's generator": (lambda: Drawing(draw=normal), "randomness"),
    "torch's generator": (lambda: Drawing(draw=torch_normal), "randomness"),
    "Python's generator": (lambda: Drawing(draw=uniform), "randomness"),
    "a generator in each worker": (WithGenerator, "randomness"),
    "new entropy": (WithClock, "randomness"),
    "workers that give the same": (lambda: Numbers(shared=False), "randomness"),
    "data changed in place": (InPlace, "changes"),
    "one buffer for all samples": (OneBuffer, "changes"),
    "one slow sample": (Straggler, "spread"),
    "a list of many objects": (lambda: Rows(names=["x"] * 100_000), "memory"),
    "a list that grows": (Growing, "memory"),
    "a cache without limit": (Cached, "memory"),
    "samples of different shapes": (Uneven, "samples"),
    "a sample that raises": (Broken, "samples"),
    "samples of None": (Nothing, "samples"),
    "samples that require grad": (WithGradient, "samples"),
    "no samples": (lambda: Rows(rows=ROWS[:0]), "samples"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_dataset_is_found_and_nothing_else(name):
    make, check = FAULTY[name]
    dataset = make()
    try:
        assert checks_of(dataset) == {check}
    finally:
        getattr(vars(dataset).get("file"), "close", lambda: None)()
        getattr(vars(dataset).get("pool"), "shutdown", lambda: None)()


# -- faults of values


def with_value(value, share=0.1):
    rows = np.tile(ROWS, (4, 1)) + RNG.standard_normal((256, 8))
    rows[RNG.random(rows.shape) < share] = value
    return {"x": rows}


def labelled(labels):
    return {"x": RNG.standard_normal((len(labels), 8)), "y": np.asarray(labels)}


VALUES = {
    "NaN": (with_value(np.nan), "nan"),
    "infinity": (with_value(np.inf), "nan"),
    "marks of missing values": (with_value(-9999.0), "packed"),
    "a constant field": ({"x": ROWS, "mask": np.ones(64)}, "constant"),
    "a rare class": (labelled([0] * 990 + [1] * 10), "classes"),
    "copies": ({"x": np.tile(ROWS, (2, 1))}, "copies"),
    "time that goes back": (
        {"x": RNG.standard_normal((200, 8)), "time": np.tile(np.arange(100), 2)},
        "seams",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_fault_of_values_is_found_and_nothing_else(name):
    values, check = VALUES[name]
    assert checks_of(open_source(values)) == {check}


def test_samples_in_two_parts_are_found():
    own, other = RNG.standard_normal((2, 300, 8))
    parts = {"train": own, "val": np.concatenate([own[:20], other])}
    subjects = [Subject(name, open_source({"x": each})) for name, each in parts.items()]
    assert checks_of(*subjects) == {"splits"}
    found, _ = diagnose(subjects)
    assert found[0].text.startswith("20 of 320 samples of 'val' are in 'train' too")


# -- faults of storage


@pytest.fixture
def stored(tmp_path):
    def write(chunks, shape=(512, 64), attributes=None, dtype="f4"):
        group = zarr.open_group(tmp_path / "data.zarr", mode="w")
        rows = RNG.standard_normal(shape) * 100
        array = group.create_array("x", data=rows.astype(dtype), chunks=chunks)
        array.attrs.update(attributes or {})
        return tmp_path / "data.zarr"

    return write


def streamed(path, name="train", **options):
    loader = StreamLoader(path, 32, **options)
    return loader, Subject(name, loader.source, 32, loader=loader)


@pytest.mark.parametrize(
    ("chunks", "options", "check"),
    [
        ((1, 64), {}, {"storage"}),
        ((512, 64), {"block_samples": 16}, {"storage"}),
        ((8, 64), {"memory_budget": "256KB", "window_blocks": 1}, {"shuffle"}),
        ((64, 64), {}, set()),
    ],
    ids=["a chunk a sample", "parts of chunks", "few blocks", "good"],
)
def test_a_layout_is_compared_with_how_it_is_read(stored, chunks, options, check):
    loader, subject = streamed(stored(chunks), **options)
    with loader:
        assert checks_of(subject) == check


def test_a_part_that_is_mixed_poorly_is_found(stored):
    whole = open_source(stored((8, 64)))
    part = whole.select(np.arange(len(whole)) % 3 > 0)
    for window, check in ((1, {"shuffle"}), (len(whole), set())):
        loader, subject = streamed(part, block_samples=8, window_blocks=window)
        with loader:
            assert checks_of(subject) == check


def test_a_storage_chunk_that_holds_everything_is_found(tmp_path):
    path = tmp_path / "one.zarr"
    array = zarr.create_array(path, shape=(20_000, 1024), chunks=(20_000, 1024), dtype="f4")
    array[0] = 1  # the rest is not stored
    assert "storage" in checks_of(open_source(path))


def test_packed_values_that_are_not_decoded_are_found(stored):
    attributes = {"scale_factor": 0.01, "add_offset": 3.0}
    path = stored((64, 64), attributes=attributes, dtype="i2")
    stored_array = zarr.open_group(path)["x"]
    assert checks_of(Rows(array=stored_array, rows=ROWS)) == {"packed"}
    assert checks_of(open_source(path)) == set()


def test_a_training_order_by_class_is_found():
    values = labelled(np.repeat(np.arange(4), 100))
    loader, subject = streamed(open_source(values), shuffle=False)
    with loader:
        assert checks_of(subject) == {"shuffle"}


def test_pieces_that_are_too_short_for_a_window_are_found():
    parts = [open_source(RNG.standard_normal((n, 4))) for n in (50, 3, 60)]
    loader, subject = streamed(concatenate(parts), steps=5)
    with loader:
        assert checks_of(subject) == {"seams"}


# -- checks of measurements that a test should not depend on


def test_workers_that_do_not_fit_the_cost_of_a_sample_are_found():
    machine = Machine(cores=4, accelerator=False, memory_bytes=1 << 30)

    def found(check, workers, seconds=0.01, size=100, waiting=0.0):
        cost = SampleCost(seconds, waiting, size, False)
        subject = Subject("", ROWS, 32, workers=workers)
        read = Samples(sample_bytes=size)
        return list(check(Examination(subject, 64, read, machine, cost=cost)))

    assert "set num_workers=4" in found(sample_cost, 0)[0]
    assert "set num_workers=4" in found(sample_cost, 16)[0]
    assert "set num_workers=0" in found(sample_cost, 2, seconds=1e-6)[0]
    assert not found(sample_cost, 4) and not found(sample_cost, None)
    assert not found(sample_cost, 16, waiting=0.009)
    assert "smaller batches" in found(memory, 4, size=8 << 20)[0]
    assert not found(memory, 4)


GUARDED = """
from torch.utils.data import DataLoader
def main():
    for batch in DataLoader(range(10), num_workers=2):
        pass
"""


def test_a_program_without_a_guard_is_found():
    assert "__main__" in next(unguarded(GUARDED + "main()\n"))
    assert "line 3" in next(unguarded("x = DataLoader(data, num_workers=2)\n\nfor b in x: pass\n"))
    guard = 'if __name__ == "__main__":\n    main()\n'
    assert not list(unguarded(GUARDED + guard))
    assert not list(unguarded("for i in range(3): print(i)\n"))  # no workers: nothing is started
    assert checks_of(Rows(), program=GUARDED + "main()\n") == {"main guard"}


# -- nothing is found in good data


class Keyed(Rows):
    def __getitem__(self, index):
        noise = torch.randn(8, generator=sample_generator(index, "noise"))
        return torch.from_numpy(self.rows[index]) + noise


class Lazy(Rows):
    """Opens its file where a sample is first read."""

    file = None

    def __getitem__(self, index):
        if self.file is None:
            self.file = io.BytesIO(self.rows.tobytes())
        self.file.seek(32 * index)
        return torch.frombuffer(bytearray(self.file.read(32)), dtype=torch.float32)


class Named(Rows):
    def __getitem__(self, index):
        return {"x": self.rows[index], "y": index % 4, "name": f"sample {index}"}


GOOD = {
    "rows": Rows,
    "keyed randomness": Keyed,
    "a file opened late": Lazy,
    "fields and text": Named,
    "tensors": lambda: TensorDataset(torch.from_numpy(ROWS), torch.arange(64) % 2),
    "an array": lambda: ROWS,
    "a list": lambda: [torch.full((3,), float(i)) for i in range(20)],
    "a subset": lambda: Subset(Rows(), range(3, 40)),
    "several": lambda: ConcatDataset([Rows(rows=ROWS[:30]), Rows(rows=ROWS[30:])]),
    "shares of workers": lambda: Numbers(shared=True),
    "one sample": lambda: Rows(rows=ROWS[:1]),
    "a source": lambda: open_source({"x": ROWS, "y": np.arange(64) % 3}),
    "windows": lambda: open_source(ROWS).windows(4),
    "patches": lambda: open_source(RNG.standard_normal((20, 16, 16))).patches((8, 8), random=True),
    "parts": lambda: open_source([ROWS[:20], ROWS[20:]]),
    "time with a seam": lambda: open_source(
        [{"x": part, "time": np.arange(32)} for part in (ROWS[:32], ROWS[32:])]
    ),
    "missing marks that are values": lambda: open_source(
        np.linspace(-9999.0, 9999.0, 600)[:, None]
    ),
    "blank samples": lambda: open_source(np.concatenate([ROWS, np.zeros((10, 8), np.float32)])),
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_good_data(name):
    assert checks_of(GOOD[name]()) == set()


def test_there_are_at_least_twenty_planted_faults_and_every_check_has_one():
    planted = {check for _, check in (FAULTY | VALUES).values()}
    assert len(FAULTY) + len(VALUES) >= 20
    assert CHECKS.keys() - planted <= {"cost", "storage", "shuffle"}  # tests of their own


def test_a_loader_over_a_dataset_keeps_its_position():
    loader = ChunkedDataLoader(Rows(), 8)
    next(iter(loader))
    before, state = torch.get_rng_state(), loader.state_dict()
    checks_of(loader.dataset)
    assert loader.state_dict() == state
    assert torch.equal(torch.get_rng_state(), before)
