"""What kind of data somebody handed over: rows to index, a source, or a stream without a length."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch.utils.data import IterableDataset

from penstock.errors import ConfigError
from penstock.sources import open_source
from penstock.sources.base import Source

ACCEPTED = (
    "a Hugging Face or torch dataset, a list of samples, an array or tensor, a dict of arrays, "
    "a Penstock source, or a path or URL that open_source opens"
)


def opened(data: Any, name: str) -> Any:
    """The data, with paths, tables and dicts of arrays opened as sources.

    Args:
        data: What holds the samples.
        name: The argument's name, for messages.
    """
    if is_hugging_face_dict(data):
        raise ConfigError(
            f"these are several datasets, {sorted(data)}: give one of them as train_data= and "
            "another as val_data="
        )
    is_table = type(data).__module__.startswith("pyarrow.")
    if is_table or isinstance(data, str | os.PathLike | Mapping):
        return open_source(data)
    if is_source(data) or is_stream(data) or hasattr(data, "__getitem__"):
        return data
    raise ConfigError(f"{name}: cannot load samples from {type(data).__name__}; pass {ACCEPTED}")


def is_source(data: Any) -> TypeGuard[Source]:
    """Does it stream from storage?"""
    return isinstance(data, Source)


def is_stream(data: Any) -> bool:
    """Can it only be read from its beginning (``IterableDataset``, torch's or Hugging Face's)?"""
    if isinstance(data, IterableDataset):  # torch's has a __getitem__ that only raises
        return True
    return hasattr(data, "__iter__") and not hasattr(data, "__getitem__") and not is_source(data)


def is_hugging_face(data: Any) -> bool:
    """Is it a Hugging Face dataset with a length?"""
    return _is_of_datasets(data) and hasattr(data, "select") and hasattr(data, "__len__")


def is_hugging_face_dict(data: Any) -> bool:
    """Is it several Hugging Face datasets by name?"""
    return _is_of_datasets(data) and isinstance(data, dict)


def _is_of_datasets(data: Any) -> bool:
    return any(each.__module__.partition(".")[0] == "datasets" for each in type(data).__mro__)
