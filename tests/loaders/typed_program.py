"""A program for type checkers: loaders are Stateful, and know the type of their batches."""

from collections.abc import Iterator
from typing import assert_type

import numpy as np
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader

from penstock import ChunkedDataLoader, ChunkedSampler, Loader, StreamLoader

Pair = tuple[torch.Tensor, torch.Tensor]

data = torch.arange(8)
chunked = ChunkedDataLoader[Pair](data, 2)
plain = ChunkedDataLoader(data, batch_size=2, shuffle=True)
stream = StreamLoader(np.arange(8.0), 2)

stateful: list[Stateful] = [chunked, plain, stream, ChunkedSampler(8, 2)]
stateful[0].load_state_dict(state_dict=chunked.state_dict())

assert_type(next(iter(chunked)), Pair)
assert_type(chunked.peek(), Pair)


def batches(loader: Loader[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What any loader of tensors gives."""
    yield from loader


def train(loader: ChunkedDataLoader) -> None:
    """A bare name stands for batches of any type."""
    for batch in loader:
        batch.anything()


def stock(loader: DataLoader[torch.Tensor]) -> None:
    """A function of a program that was written for torch's loader."""


stock(plain)
