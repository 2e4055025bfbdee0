"""Validation on a part of a partition: the same samples each time, or all of them in turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.options import check_chunk_size
from penstock.loaders.plan_settings import OrderFactory, OrderRequest, order_factory
from penstock.order import Indices, Order, Permutation, SequentialOrder, ShuffledOrder
from penstock.ranks import Seed
from penstock.sources.contract import DatasetLike


def validation_loader(
    dataset: DatasetLike,
    batch_size: int,
    chunk_size: int | None = None,
    *,
    seed: Seed | int | None = 42,
    cycle: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    kind: type[ChunkedDataLoader] = ChunkedDataLoader,
    **dataloader_kwargs: Any,
) -> ChunkedDataLoader:
    """Return a loader of ``chunk_size`` batches to validate on, the same ones each time.

    The samples are chosen once, by a keyed shuffle of all, and delivered in the order of the
    dataset, so that scores of different validations are comparable. Nothing is dropped, and no rank
    repeats a sample: every rank has ``chunk_size * batch_size`` of them.

    Args:
        dataset: The partition; map-style.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches of this rank. None, or more than there are, for the whole partition.
        seed: Seed of the choice; None draws one and logs it.
        cycle: Every ``iter()`` is the next chunk instead, until all samples were used; then the
            same chunks again.
        rank: This rank, of ``world_size``; both default to those of ``torch.distributed``.
        world_size: Number of ranks.
        kind: The class of the loader.
        **dataloader_kwargs: More arguments of `ChunkedDataLoader`; ``drop_last`` has no effect.

    >>> import torch
    >>> loader = validation_loader(torch.arange(100), batch_size=4, chunk_size=2)
    >>> first, again = torch.cat(list(loader)), torch.cat(list(loader))
    >>> len(first), torch.equal(first, again)
    (8, True)
    """
    options = dataloader_kwargs | {"seed": seed, "rank": rank, "world_size": world_size}
    options |= {"drop_last": False}
    if chunk_size is None:
        return kind(dataset, batch_size, evaluation=True, **options)
    if cycle:
        options["order"] = order_factory(FixedShuffle)
        return kind(dataset, batch_size, chunk_size, **options)
    order = subset_order(check_chunk_size(chunk_size))
    return kind(dataset, batch_size, chunk_size, evaluation=True, order=order, **options)


def subset_order(chunk_size: int) -> OrderFactory:
    """Return a factory of orders of ``chunk_size`` batches of samples, chosen by the seed.

    Args:
        chunk_size: Batches of each rank. If the dataset has no more, the order is all of it.
    """
    return partial(_choose, chunk_size)


def _choose(chunk_size: int, request: OrderRequest) -> Order:
    size = chunk_size * request.batch_size * request.world_size
    partition = SequentialOrder(request.samples, request.seed)
    return partition if size >= partition.size else ChosenOrder(size, partition)


class FixedShuffle(ShuffledOrder):
    """One shuffle of all samples, the same in every epoch.

    >>> order = FixedShuffle(100, seed=7)
    >>> bool((order.at(0, np.arange(100)) == order.at(5, np.arange(100))).all())
    True
    """

    kind = "fixed shuffle"

    def _shuffle(self, epoch: int) -> Permutation:
        return super()._shuffle(0)

    def at_epochs(self, epochs: Indices, positions: Indices) -> Indices:
        """Return the samples at these positions, the same in every epoch."""
        return self.at(0, positions)


class ChosenOrder:
    """A number of samples of a partition, chosen by a keyed shuffle, in the order of storage.

    >>> ChosenOrder(3, SequentialOrder(10, seed=1)).at(0, np.arange(3))
    array([0, 1, 8])
    """

    kind = "chosen"
    lanes = 1

    def __init__(self, size: int, partition: Order) -> None:
        self.size, self.seed, self.samples = size, partition.seed, partition.size
        shuffle = FixedShuffle(partition.size, partition.seed)
        self._samples = np.sort(shuffle.at(0, np.arange(size)))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the samples at these positions."""
        found: Indices = self._samples[positions]
        return found

    def position_of(self, epoch: int, samples: Indices) -> Indices:
        """Return the positions of these samples, all of which must be chosen ones."""
        return np.searchsorted(self._samples, samples)

    def identity(self) -> dict[str, Any]:
        """Return the kind, the seed and the size of the partition.

        Not the number of chosen samples, which depends on the number of ranks.
        """
        return {"order": self.kind, "samples": self.samples, "seed": self.seed}
