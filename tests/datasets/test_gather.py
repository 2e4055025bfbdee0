"""Tensors that torch moves to shared memory while something gathers from them."""

import numpy as np
import torch

from penstock import MemorySource
from penstock.datasets.gather import gather_of


def test_a_tensor_moved_to_shared_memory_is_still_gathered_right():
    tensor = torch.arange(5000)
    gather, source = gather_of(tensor), MemorySource(tensor)
    where = np.array([5, 4_000])
    assert gather(where).tolist() == [5, 4_000]
    tensor.share_memory_()  # as torch does when a dataset goes to spawned workers
    trash = [torch.full((5000,), -1) for _ in range(50)]  # over what was freed
    out = {"": np.empty(2, np.int64)}
    source.take(where, out)
    assert gather(where).tolist() == [5, 4_000] == out[""].tolist()
    assert source.view(7, 8)[""].tolist() == [7] and len(trash) == 50


def test_what_numpy_does_not_know_is_gathered_by_torch():
    for tensor in (torch.arange(9).bfloat16(), torch.arange(9.0, requires_grad=True)):
        assert gather_of(tensor)(np.array([3, 1])).tolist() == [3, 1]
