"""Splits of the data into training and validation samples, by a keyed shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from penstock.arguments import real_number
from penstock.datamodules.inputs import chosen, is_source
from penstock.errors import ConfigError
from penstock.order import Indices, Permutation, derive_key
from penstock.sources.base import composed


def split_sizes(samples: int, val_split: float) -> tuple[int, int]:
    """Return the numbers of training and validation samples: at least one each.

    >>> split_sizes(100, 0.2), split_sizes(10, 0.9), split_sizes(3, 0.01)
    ((80, 20), (1, 9), (2, 1))
    """
    check_share(val_split)
    if samples < 2:
        raise ConfigError(
            f"val_split={val_split!r} needs 2 samples or more, got {samples}: "
            "pass val_data=, or val_split=0"
        )
    validated = min(max(1, round(samples * val_split)), samples - 1)
    return samples - validated, validated


def check_share(val_split: float) -> None:
    """Raise `ConfigError` for a fraction that leaves nothing to train on."""
    if not 0 <= real_number("val_split", val_split, error=ConfigError) < 1:
        raise ConfigError(f"val_split must be in [0, 1), got {val_split!r}")


class KeyedIndices(Sequence[int]):
    """Positions ``start:stop`` of a keyed shuffle, computed on access instead of stored.

    >>> both = [KeyedIndices(10, key=7, start=0, stop=8), KeyedIndices(10, key=7, start=8, stop=10)]
    >>> sorted([*both[0], *both[1]]) == list(range(10))
    True
    """

    def __init__(self, length: int, *, key: int, start: int, stop: int) -> None:
        self._shuffle, self._positions = Permutation(length, key), range(start, stop)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        if isinstance(position, slice):
            return [self._shuffle[each] for each in self._positions[position]]
        return self._shuffle[self._positions[position]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Indices:
        """Return all of them as an array."""
        positions = np.arange(self._positions.start, self._positions.stop)
        return np.asarray(self._shuffle(positions), dtype)


def split(data: Any, val_split: float, seed: int, *, steps: int = 1) -> tuple[Any, Any]:
    """Return the training and the validation part of ``data``, of the same type as ``data``.

    The same seed gives the same parts. A source is cut along the blocks of its storage, so that
    both parts still stream efficiently.

    Args:
        data: Anything with a length.
        val_split: Fraction of the samples to validate on.
        seed: Seed of the shuffle.
        steps: Consecutive rows in a sample of a stream. Windows do not cross the gaps of a random
            split, so with more than one the last rows of a source are the validation part.
    """
    train, validated = split_sizes(len(data), val_split)
    if is_source(data):
        by = "random" if steps == 1 else "time"
        sizes = {"train": train, "val": validated}
        return tuple(composed(data).split(sizes, by=by, seed=seed).values())  # type: ignore[return-value]
    key = derive_key(seed, "split")
    parts = (0, train), (train, len(data))
    first, second = (KeyedIndices(len(data), key=key, start=a, stop=b) for a, b in parts)
    return chosen(data, first), chosen(data, second)
