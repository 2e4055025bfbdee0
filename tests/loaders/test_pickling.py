"""What cannot go to a worker is named to the attribute, with what to do about it."""

import io
import multiprocessing
import threading
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from penstock.loaders.worker_errors import twin, unpicklable_part


class Holder(Dataset):
    """A dataset with one attribute."""

    def __init__(self, held):
        self.held = held
        self.data = torch.arange(6)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.data[index]


class Slotted:
    __slots__ = ("handle",)

    def __init__(self, handle):
        self.handle = handle


class Repaired(Holder):
    """Leaves its lock out when it is sent."""

    def __getstate__(self):
        return {**vars(self), "held": None}


class Opening(Holder):
    """Opens its file where a sample is first read."""

    def __getitem__(self, index):
        if self.held is None:
            self.held = io.StringIO("opened")
        return self.data[index]


def local_class():
    class Local(Holder):
        pass

    return Local


def found_in(value):
    return unpicklable_part(Holder(value), "dataset")


@pytest.mark.parametrize(
    ("value", "said", "fix"),
    [
        (lambda x: x, "dataset.held (function)", "lambda"),
        (threading.Lock(), "dataset.held (lock)", "exists in one process only"),
        ({"a": [1, (2, lambda x: x)]}, "dataset.held['a'][1][1] (function)", "lambda"),
        (partial(max, key=lambda x: x), "dataset.held.keywords['key'] (function)", "lambda"),
        (Slotted(threading.Lock()), "dataset.held.handle (lock)", "exists in one process only"),
        (Holder(Holder(lambda: 1)), "dataset.held.held.held (function)", "lambda"),
        (local_class()(1), "dataset.held (Local)", "of a class defined inside a function"),
        (local_class(), "dataset.held (type)", "top of a module"),
        ((i for i in ()), "dataset.held (generator)", "exists in one process only"),
    ],
)
def test_the_innermost_part_is_named_with_what_to_do(value, said, fix):
    culprit = found_in(value)
    assert str(culprit) == said
    assert fix in culprit.fix


def test_an_open_file_is_named_with_its_path(tmp_path):
    path = tmp_path / "samples.bin"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        culprit = found_in(file)
    assert str(culprit) == "dataset.held (BufferedReader)"
    assert "open file" in culprit.fix and "samples.bin" in culprit.fix
    assert "open it where a sample is first read" in culprit.fix


def test_an_open_hdf5_handle_is_named(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for held in (file, file.create_dataset("x", data=np.arange(3))):
            culprit = found_in(held)
            assert str(culprit).startswith("dataset.held (")
            assert "HDF5" in culprit.fix


def test_a_tensor_with_a_graph_is_named():
    culprit = found_in(torch.ones(2, requires_grad=True) * 2)
    assert str(culprit) == "dataset.held (Tensor)"
    assert "detach" in culprit.fix


def test_an_object_that_holds_itself_is_searched_once():
    holder = Holder(None)
    holder.held = [holder, {"again": holder}]
    assert unpicklable_part(holder, "dataset") is None
    holder.last = lambda: 1
    assert str(unpicklable_part(holder, "dataset")) == "dataset.last (function)"


def test_what_can_be_sent_has_no_culprit():
    inherited = multiprocessing.get_context("spawn").Lock()  # only a process being started gets it
    for value in (1, "a", None, np.arange(3), torch.ones(2), inherited, Repaired(threading.Lock())):
        assert found_in(value) is None
    assert unpicklable_part(Subset(Holder(1), [0]), "dataset") is None


def test_looking_copies_no_tensor():
    large = torch.zeros(1)
    assert found_in(large) is None
    assert not large.is_shared()  # sending it would have moved it to shared memory


def test_a_twin_opens_its_own_files_and_shares_tensors():
    dataset = Subset(Opening(None), [0, 1])
    other = twin(dataset)
    assert other[1] == 1
    assert other.dataset.held is not None and dataset.dataset.held is None
    assert other.dataset.data is dataset.dataset.data
