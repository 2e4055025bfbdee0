"""Batches come out of worker processes as they were read, small and large ones."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, WorkerError
from penstock.loaders.batch_transport import BY_VALUE_BYTES
from penstock.testing import same_batch

Pair = namedtuple("Pair", "left right")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
EDGE = BY_VALUE_BYTES // 4  # float32 values that still go by value


class Kinds(Dataset):
    """Every sample is a whole batch of another kind."""

    def __init__(self):
        base = torch.arange(24.0).reshape(4, 6)
        self.batches = [
            *(base.to(dtype) for dtype in DTYPES),
            *(torch.arange(float(size)) for size in (0, 1, EDGE, EDGE + 1)),
            torch.tensor(3.0),
            torch.empty(0, 5),
            base.t(),
            base[:, ::2],
            base[1],
            torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),
            torch.tensor([1 + 2j]).conj(),
            {"x": base, "y": [torch.ones(3), ("text", 7, None)], "array": np.arange(3)},
            Pair(base, torch.zeros(EDGE + 5)),
            torch.nn.Parameter(base),
        ]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def only(samples):
    """A collate function: the one sample, as it is."""
    (sample,) = samples
    return sample


@pytest.fixture(scope="module")
def delivered():
    with ChunkedDataLoader(Kinds(), 1, shuffle=False, collate_fn=only, num_workers=2) as loader:
        return list(loader)


def test_every_kind_of_batch_arrives_as_it_was(delivered):
    kinds = Kinds().batches
    assert len(delivered) == len(kinds)
    for came, sent in zip(delivered, kinds, strict=True):
        assert type(came) is type(sent)
        assert same_batch(came, sent)
        if isinstance(sent, torch.Tensor):
            assert came.stride() == sent.stride() and came.requires_grad == sent.requires_grad


def test_what_arrives_may_be_written_to(delivered):
    for batch in delivered[: len(DTYPES)]:
        before = batch.clone()
        assert not batch.zero_().any()
        batch.copy_(before)


def test_small_tensors_come_by_value_and_large_ones_in_shared_memory(delivered):
    by_size = {len(batch): batch.is_shared() for batch in delivered[len(DTYPES) : len(DTYPES) + 4]}
    assert by_size == {0: False, 1: False, EDGE: False, EDGE + 1: True}


def nest(samples):
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_arrive_too():
    with ChunkedDataLoader(torch.arange(8), 4, collate_fn=nest, num_workers=1) as loader:
        assert [len(part) for part in next(iter(loader)).unbind()] == [2, 3]


class Sealed:
    """Cannot be sent anywhere."""

    def __reduce__(self):
        raise TypeError("sealed values stay where they are")


def seal(samples):
    return Sealed()


def test_a_batch_that_cannot_be_sent_is_said_and_does_not_hang():
    with ChunkedDataLoader(torch.arange(8), 4, collate_fn=seal, num_workers=1) as loader:
        with pytest.raises(WorkerError, match=r"cannot be sent .*sealed values.* num_workers=0"):
            next(iter(loader))
