"""Training loaders: shuffled unless told otherwise, in an order that is known in advance."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.data import IterableDataset

from penstock.loaders import ChunkedDataLoader
from penstock.loaders.position import order_factory
from penstock.loaders.sampler import order_named
from penstock.seeds import Seed


def training_loader(
    dataset: Any,
    chunk_size: int | None,
    *,
    batch_size: int | None,
    order: str,
    kind: type[ChunkedDataLoader],
    seed: Seed | int | None,
    shuffle: bool | None = None,
    **options: Any,
) -> ChunkedDataLoader:
    """A loader in the order of that name; torch's own where its arguments decide the order.

    ``shuffle=False`` is the order in which the samples lie.
    """
    given = {"batch_size": batch_size, "chunk_size": chunk_size, "seed": seed, **options}
    decided = any(options.get(key) is not None for key in ("sampler", "batch_sampler"))
    if decided or isinstance(dataset, IterableDataset):
        return kind(dataset, **given)
    if batch_size is None or options.get("generator") is not None:
        return kind(dataset, shuffle=shuffle is not False, **given)
    name = "sequential" if shuffle is False else order
    return kind(dataset, order=order_factory(partial(order_named, name)), **given)
