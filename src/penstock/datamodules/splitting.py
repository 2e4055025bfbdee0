"""Training and validation samples: a keyed shuffle, cut in two. Arithmetic, nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from torch.utils.data import Subset

from penstock.arguments import real_number
from penstock.datamodules.kinds import is_hugging_face, is_source
from penstock.datamodules.ranges import SelectedRanges, split_ranges
from penstock.errors import ConfigError
from penstock.order import Indices, Permutation, derive_key


def split_sizes(samples: int, val_split: float) -> tuple[int, int]:
    """How many samples are trained and validated on: at least one each.

    >>> split_sizes(100, 0.2), split_sizes(10, 0.9), split_sizes(3, 0.01)
    ((80, 20), (1, 9), (2, 1))
    """
    check_share(val_split)
    if samples < 2:
        raise ConfigError(
            f"val_split={val_split!r} needs 2 samples or more, got {samples}: "
            "give val_data=, or val_split=0"
        )
    validated = min(max(1, round(samples * val_split)), samples - 1)
    return samples - validated, validated


def check_share(val_split: float) -> None:
    """Refuse a share that leaves nothing to train on."""
    if not 0 <= real_number("val_split", val_split, error=ConfigError) < 1:
        raise ConfigError(f"val_split must be in [0, 1), got {val_split!r}")


class KeyedIndices(Sequence[int]):
    """Places ``start:stop`` of a keyed shuffle, as a sequence that is computed when asked.

    >>> both = [KeyedIndices(10, key=7, start=0, stop=8), KeyedIndices(10, key=7, start=8, stop=10)]
    >>> sorted([*both[0], *both[1]]) == list(range(10))
    True
    """

    def __init__(self, length: int, *, key: int, start: int, stop: int) -> None:
        self._shuffle, self._places = Permutation(length, key), range(start, stop)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self._shuffle[each] for each in self._places[place]]
        return self._shuffle[self._places[place]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Indices:
        """All of them at once."""
        places = np.arange(self._places.start, self._places.stop)
        return np.asarray(self._shuffle(places), dtype)


def split(data: Any, val_split: float, seed: int) -> tuple[Any, Any]:
    """``data`` in two, each of its own kind: the same two for the same seed.

    A source is cut along the blocks of its storage, so that both sides still stream.
    """
    train, _ = split_sizes(len(data), val_split)
    key = derive_key(seed, "split")
    if is_source(data):
        ranges = split_ranges(len(data), train, data.block_samples, key)
        return SelectedRanges(data, ranges[0]), SelectedRanges(data, ranges[1])
    sides = (0, train), (train, len(data))
    first, second = (KeyedIndices(len(data), key=key, start=a, stop=b) for a, b in sides)
    return chosen(data, first), chosen(data, second)


def chosen(data: Any, indices: Sequence[int]) -> Any:
    """Those samples: of a list a list, of a Hugging Face dataset one of these, else a subset."""
    if is_hugging_face(data):
        return data.select(np.asarray(indices))
    if isinstance(data, list | tuple):
        return [data[index] for index in indices]
    return Subset(data, indices)
