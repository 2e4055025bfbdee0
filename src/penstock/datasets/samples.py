"""Reading a dataset that is wrapped by another: samples, or a whole batch in one go."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from penstock.datasets.gather import Gather, gather_of
from penstock.errors import BatchError
from penstock.order import Indices
from penstock.order.keys import Keys
from penstock.transforms import Transform


class Reader:
    """Reads any map-style dataset, in as few operations as it allows.

    >>> Reader(torch.arange(10)).batch(np.array([3, 1]))
    tensor([3, 1])
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset}  # the gather is found anew where this arrives

    @cached_property
    def _gather(self) -> Gather | None:
        return gather_of(self.dataset)

    @property
    def gathers(self) -> bool:
        """Does the dataset give a batch in one go?"""
        return self._gather is not None

    def samples(self, indices: list[int]) -> list[Any]:
        """The samples of these indices, by the dataset's ``__getitems__`` where it has one."""
        batched = getattr(self.dataset, "__getitems__", None)
        if batched is not None:
            return list(batched(indices))
        return [self.dataset[index] for index in indices]

    def batch(self, indices: Indices) -> Any:
        """The batch of these indices, as torch's default collation forms it."""
        if self._gather is not None:
            return self._gather(indices)
        return default_collate(self.samples(indices.tolist()))


def transform_batch(batch: Any, transform: Transform, keys: Keys) -> Any:
    """A collated batch with its first field (or itself, if it is one tensor) changed."""
    if isinstance(batch, torch.Tensor):
        return transform.batch(batch, keys)
    return [transform.batch(first_field(batch), keys), *batch[1:]]


def transform_samples(samples: list[Any], transform: Transform, keys: Keys) -> list[Any]:
    """Samples with their first field changed; in one go where they have one shape."""
    fields = [first_field(sample) for sample in samples]
    if len({(field.shape, field.dtype) for field in fields}) == 1:
        changed = list(transform.batch(torch.stack(fields), keys))
    else:
        pairs = zip(fields, keys, strict=True)
        changed = [transform.batch(x.unsqueeze(0), np.array([key]))[0] for x, key in pairs]
    return [_with_first(sample, x) for sample, x in zip(samples, changed, strict=True)]


def first_field(sample: Any) -> torch.Tensor:
    """What is changed of a sample: its first field, or itself where it is one tensor or array."""
    if isinstance(sample, tuple | list) and sample:
        sample = sample[0]
    if not isinstance(sample, torch.Tensor | np.ndarray):
        raise BatchError(
            "a sample must be a tensor, or a tuple whose first field is one, "
            f"got {type(sample).__name__}: convert it in the base dataset"
        )
    return torch.as_tensor(sample)


def _with_first(sample: Any, x: torch.Tensor) -> Any:
    return (x, *sample[1:]) if isinstance(sample, tuple | list) else x
