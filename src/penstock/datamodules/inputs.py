"""The interface of a data module, what ours share, and the data a user passes to one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeVar, overload, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, Subset

from penstock.arguments import real_number
from penstock.errors import ConfigError
from penstock.order import Indices, Permutation, derive_key
from penstock.sources import open_source
from penstock.sources.base import composed
from penstock.sources.contract import Source

T = TypeVar("T")

LIGHTNING_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")  # one library, two names


@runtime_checkable
class DataModuleProtocol(Protocol):
    """Anything that returns loaders for training and validation.

    Data modules of Penstock and of Lightning satisfy it, and so can your own class.

    >>> class Mine:
    ...     def train_dataloader(self): return [1, 2, 3]
    ...     def val_dataloader(self): return None
    >>> isinstance(Mine(), DataModuleProtocol)
    True
    """

    def train_dataloader(self) -> Any:
        """Return the batches to train on."""
        ...

    def val_dataloader(self) -> Any | None:
        """Return the batches to validate on; None if there are none."""
        ...


class ClosableModule:
    """A data module that releases its loaders at the end of a ``with`` block or of a fit."""

    _loaders: Any  # by name

    def close(self) -> None:
        """Stop all threads and processes of the loaders; they can be iterated again."""
        for loader in flat_loaders(self._loaders):
            getattr(loader, "close", lambda: None)()

    def teardown(self, stage: str | None = None) -> None:
        """Close the loaders; Lightning calls this at the end of a stage."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _for_trainer(self, loader: T | None) -> T | list[Any] | None:
        """Return ``loader``; an empty list instead of None if Lightning asks, as it requires."""
        return [] if loader is None and getattr(self, "trainer", None) is not None else loader


def flat_loaders(loaders: Any) -> list[Any]:
    """Return all loaders of a nested structure as a list; none for None.

    >>> flat_loaders({"a": 1, "b": [2, (3,)]}), flat_loaders(None)
    ([1, 2, 3], [])
    """
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, list | tuple):
        return [each for value in loaders for each in flat_loaders(value)]
    return [] if loaders is None else [loaders]


def lightning_class(cls: type[T]) -> type[T]:
    """Return a subclass of ``cls`` that is also a ``LightningDataModule``.

    Lightning accepts only data modules of its own class. Without Lightning, or if Lightning is not
    imported yet, returns ``cls`` itself.
    """
    modules = (sys.modules.get(name) for name in LIGHTNING_PACKAGES)
    imported = (getattr(module, "LightningDataModule", None) for module in modules)
    bases = tuple(base for base in imported if base is not None and not issubclass(cls, base))
    if not bases:
        return cls
    if (cls, bases) not in _lightning_classes:
        # the name stays the same: Lightning's checkpoints identify a data module by it
        names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        _lightning_classes[cls, bases] = type(cls.__name__, (cls, *bases), names)
    found: type[T] = _lightning_classes[cls, bases]
    return found


_lightning_classes: dict[Any, Any] = {}  # cached, so that two modules have the same class


log = logging.getLogger("penstock")

ACCEPTED = (
    "a Hugging Face or torch dataset, a list of samples, an array or tensor, a dict of arrays, "
    "a Penstock source, or a path or URL that open_source opens"
)
TEXT_ROWS = 1000  # rows that are checked for text at a time


def opened(data: Any, name: str) -> Any:
    """Return the data, with paths, tables and dicts of arrays opened as sources.

    Args:
        data: What holds the samples.
        name: The name of the argument, for messages.
    """
    if _is_of_datasets(data) and isinstance(data, dict):
        raise ConfigError(f"{name} is several datasets, {sorted(data)}: pass one of them")
    is_table = type(data).__module__.startswith("pyarrow.")
    if is_table or isinstance(data, str | os.PathLike | Mapping):
        return open_source(data)
    if isinstance(data, Source) or is_stream(data) or hasattr(data, "__getitem__"):
        return data
    raise ConfigError(f"{name}: cannot load samples from {type(data).__name__}; pass {ACCEPTED}")


def is_stream(data: Any) -> bool:
    """Return whether ``data`` can only be read from its beginning.

    That is an ``IterableDataset`` of torch or of Hugging Face, or any other iterable.
    """
    if isinstance(data, IterableDataset):  # torch's has a __getitem__ that only raises
        return True
    return (
        hasattr(data, "__iter__")
        and not hasattr(data, "__getitem__")
        and not isinstance(data, Source)
    )


def is_hugging_face(data: Any) -> bool:
    """Return whether ``data`` is a Hugging Face dataset with a length."""
    return _is_of_datasets(data) and hasattr(data, "select") and hasattr(data, "__len__")


def _is_of_datasets(data: Any) -> bool:
    return any(each.__module__.partition(".")[0] == "datasets" for each in type(data).__mro__)


def chosen(data: Any, indices: Sequence[int]) -> Any:
    """Return those samples: a list, a Hugging Face dataset or a ``Subset``, by the type of data."""
    if is_hugging_face(data):
        return data.select(np.asarray(indices))
    if isinstance(data, list | tuple):
        return [data[index] for index in indices]
    return Subset(data, indices)


# -- raw text


def without_empty_text(data: Any, fields: Sequence[str]) -> Any:
    """Return the data without rows whose text is empty or blank, as in line-by-line corpora.

    Only Hugging Face datasets and lists are checked: anything else would have to be read
    completely. The number of dropped rows is logged.
    """
    name = text_column(data, fields)
    if name is None:
        return data
    filled = np.flatnonzero(np.concatenate([*_has_text(data, name)]))
    if len(filled) == len(data):
        return data
    log.info("dropping %d of %d rows without text", len(data) - len(filled), len(data))
    return chosen(data, filled.tolist())


def text_column(data: Any, fields: Sequence[str]) -> str | None:
    """Return the first of ``fields`` that holds strings; "" for a list of strings; else None."""
    if is_hugging_face(data):
        kinds = {name: getattr(data.features.get(name), "dtype", None) for name in fields}
        return next((name for name in fields if kinds[name] in ("string", "large_string")), None)
    if not isinstance(data, list | tuple) or not data:
        return None
    if isinstance(data[0], str):
        return ""
    if isinstance(data[0], Mapping):
        return next((name for name in fields if isinstance(data[0].get(name), str)), None)
    return None


def _has_text(data: Any, name: str) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield which rows have text, `TEXT_ROWS` at a time."""
    rows = data.select_columns([name]).with_format(None) if is_hugging_face(data) else data
    for start in range(0, len(data), TEXT_ROWS):
        some = rows[start : start + TEXT_ROWS]
        listed = rows is data
        texts = [row.get(name) if name else row for row in some] if listed else some[name]
        yield np.array([bool(text and text.strip()) for text in texts], bool)


# -- tensors of different lengths


def is_ragged(data: Any) -> bool:
    """Return whether ``data`` is a list of tensors with different shapes."""
    return (
        isinstance(data, list | tuple)
        and all(isinstance(each, torch.Tensor) for each in data)
        and len({each.shape for each in data}) > 1
    )


def check_padding(data: list[torch.Tensor]) -> None:
    """Raise `ConfigError` for tensors that padding the first axis cannot make equal."""
    kinds = {(each.shape[1:], each.dtype) if each.ndim else None: i for i, each in enumerate(data)}
    if len(kinds) > 1 or None in kinds:
        others = sorted(kinds.values())[:2]
        shown = ", ".join(f"sample {i} is {tuple(data[i].shape)} {data[i].dtype}" for i in others)
        raise ConfigError(f"tensors may differ only in their first axis: {shown}")


def padded(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return one tensor with zeros after the end of shorter samples, and the lengths.

    >>> padded([torch.tensor([1, 2, 3]), torch.tensor([4])])
    [tensor([[1, 2, 3],
            [4, 0, 0]]), tensor([3, 1])]
    """
    lengths = torch.tensor([len(each) for each in samples])
    return [pad_sequence(samples, batch_first=True), lengths]


def split_sizes(samples: int, val_split: float) -> tuple[int, int]:
    """Return the numbers of training and validation samples: at least one each.

    >>> split_sizes(100, 0.2), split_sizes(10, 0.9), split_sizes(3, 0.01)
    ((80, 20), (1, 9), (2, 1))
    """
    check_share(val_split)
    if samples < 2:
        left = "pass val_data=, or val_split=0"
        raise ConfigError(f"val_split={val_split!r} needs 2 samples or more: {left}")
    validated = min(max(1, round(samples * val_split)), samples - 1)
    return samples - validated, validated


def check_share(val_split: float) -> None:
    """Raise `ConfigError` for a fraction that leaves nothing to train on."""
    if not 0 <= real_number("val_split", val_split, error=ConfigError) < 1:
        raise ConfigError(f"val_split must be in [0, 1), got {val_split!r}")


class KeyedIndices(Sequence[int]):
    """Positions ``start:stop`` of a keyed shuffle, computed on access instead of stored.

    Args:
        length: Number of samples.
        key: Key of the shuffle.
        start: The first position.
        stop: The position after the last one.

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
    if isinstance(data, Source):
        by = "random" if steps == 1 else "time"
        sizes = {"train": train, "val": validated}
        return tuple(composed(data).split(sizes, by=by, seed=seed).values())  # type: ignore[return-value]
    key = derive_key(seed, "split")
    parts = (0, train), (train, len(data))
    first, second = (KeyedIndices(len(data), key=key, start=a, stop=b) for a, b in parts)
    return chosen(data, first), chosen(data, second)
