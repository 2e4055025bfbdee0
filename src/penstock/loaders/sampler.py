"""A sampler for a stock ``DataLoader``: chunks of a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from penstock.arguments import flag, whole_number
from penstock.loaders.options import check_epoch
from penstock.loaders.plan_settings import make_order
from penstock.order import Cursor, Indices, Order
from penstock.order.permutation import STRIDE
from penstock.order.state import check_format, check_identity, cursor_of, refuse_skips, to_state
from penstock.ranks import Seed, ranks


class ChunkedSampler(Sampler[int]):
    """One chunk of an epoch's shuffle at a time, for a stock ``DataLoader``.

    Chunks ``0 .. total_chunks - 1`` of an epoch are disjoint and cover the dataset; they are cut
    from a shuffle of the *whole* dataset, which differs in every epoch. Iterating never moves
    ``current_chunk``; `set_chunk` does.

    Args:
        dataset_size: Samples of the dataset.
        chunk_size: Samples of a chunk; the last one of an epoch may be shorter.
        seed: For the shuffle; None draws one and logs it.
        shuffle: False for the dataset's own order.

    >>> sampler = ChunkedSampler(10, chunk_size=4)
    >>> sampler.total_chunks, [len(sampler.get_chunk_indices(k)) for k in range(3)]
    (3, [4, 4, 2])
    """

    def __init__(
        self, dataset_size: int, chunk_size: int, seed: int | None = 42, *, shuffle: bool = True
    ) -> None:
        self.dataset_size = whole_number("dataset_size", dataset_size, minimum=0)
        self.chunk_size = whole_number("chunk_size", chunk_size, minimum=1, unit="sample")
        self.shuffle = flag("shuffle", shuffle)
        self._seed = Seed.of(seed)
        make_order(self.dataset_size, self._seed.value, shuffle=self.shuffle)  # refused here
        self.epoch = self.current_chunk = 0

    @property
    def seed(self) -> int:
        """The seed in use: passed in, or drawn at random; the same on all ranks."""
        return self._order.seed

    @property
    def _order(self) -> Order:
        seed = self._seed.for_ranks(ranks())
        return make_order(self.dataset_size, seed, shuffle=self.shuffle)

    @property
    def total_chunks(self) -> int:
        """Chunks of an epoch."""
        return -(-self.dataset_size // self.chunk_size)

    def get_chunk_indices(self, chunk_idx: int) -> Indices:
        """Return the samples of a chunk; always the same for the same chunk and epoch.

        Args:
            chunk_idx: The chunk, counted from 0; ``total_chunks`` is the next epoch's first.
        """
        epoch, begin, end = self._span(chunk_idx)
        order = self._order
        self._seed.settle("samples were delivered")
        return order.at(epoch, np.arange(begin, end))

    def _span(self, chunk: int) -> tuple[int, int, int]:
        chunk = whole_number("chunk_idx", chunk, minimum=0)
        further, chunk = divmod(chunk, self.total_chunks)
        begin = chunk * self.chunk_size
        return self.epoch + further, begin, min(begin + self.chunk_size, self.dataset_size)

    def set_chunk(self, chunk_idx: int) -> None:
        """Set the chunk that the next iterations deliver.

        Args:
            chunk_idx: The chunk, counted from 0; past the last chunk, one of a later epoch.
        """
        self.current_chunk = whole_number("chunk_idx", chunk_idx, minimum=0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose shuffle the chunks are cut from.

        Args:
            epoch: The epoch, counted from 0.
        """
        self.epoch = check_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        epoch, begin, end = self._span(self.current_chunk)
        order = self._order
        self._seed.settle("samples were delivered")
        for at in range(begin, end, STRIDE):
            yield from order.at(epoch, np.arange(at, min(at + STRIDE, end))).tolist()

    def __len__(self) -> int:
        _, begin, end = self._span(self.current_chunk)
        return end - begin

    def state_dict(self) -> dict[str, Any]:
        """Return the current chunk as a small flat dict."""
        epoch, begin, _ = self._span(self.current_chunk)
        return to_state(Cursor(epoch, begin), self._order)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the chunk a state was taken at (the one that holds its position).

        Args:
            state_dict: What `state_dict` returned.
        """
        check_format(state_dict)
        refuse_skips(state_dict, "ChunkedSampler")
        check_identity(state_dict, self._order)
        cursor = cursor_of(state_dict)
        self.epoch, self.current_chunk = cursor.epoch, cursor.position // self.chunk_size
