"""The attributes of the user's objects: what is not safe in workers, long lists, packed arrays."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset

MOST_NESTED = 4  # objects in objects, as far as attributes are looked at
ITEMS = 8  # of a list that are looked at


def attributes(value: Any, name: str = "dataset", depth: int = MOST_NESTED) -> Iterator[Any]:
    """Yield name and value of the attributes of an object, and of objects of the user in it."""
    own = type(value).__module__.partition(".")[0] not in ("penstock", "numpy", "zarr", "pyarrow")
    inside = own or isinstance(value, Dataset)
    if isinstance(value, list | tuple):
        inner = {f"{name}[{i}]": each for i, each in enumerate(value[:ITEMS])}
    elif isinstance(value, dict):
        inner = {f"{name}[{key!r}]": value[key] for key in islice(value, ITEMS)}
    elif inside and not isinstance(value, type | torch.Tensor | torch.nn.Module | io.IOBase):
        inner = {f"{name}.{key}": each for key, each in getattr(value, "__dict__", {}).items()}
    else:
        return
    for key, each in inner.items():
        yield key, each
        if depth and not isinstance(each, threading.Thread | Executor):
            yield from attributes(each, key, depth - 1)


def hazards_of(dataset: Any) -> Iterator[tuple[str, str]]:
    """Yield name and description of what must not be there when workers are forked."""
    for name, value in attributes(dataset):
        module = type(value).__module__.partition(".")[0]
        if isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO):
            yield name, "is an open file, whose position all workers would share"
        elif module in ("h5py", "sqlite3", "socket") and not isinstance(value, type):
            yield name, f"is an open {type(value).__name__} of {module}, not safe to share"
        elif isinstance(value, threading.Thread | Executor):
            yield name, "has threads, which do not run in a forked worker"
        elif isinstance(value, torch.Tensor) and value.device.type != "cpu":
            yield name, f"is on {value.device}, which cannot be used in a forked worker"


def long_lists(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield name and length of each collection of Python objects."""
    for name, value in attributes(dataset):
        if isinstance(value, list | tuple | dict | set):
            yield name, len(value)


def packed(dataset: Any) -> Iterator[str]:
    """Yield the names of stored arrays whose attributes say how to decode their values."""
    for name, value in attributes(dataset):
        marks = getattr(value, "attrs", None)
        if hasattr(value, "dtype") and isinstance(marks, Mapping) and "scale_factor" in marks:
            yield name


def unbounded_caches(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield name and size of caches of methods (`functools.lru_cache`) that have no limit."""
    for kind in type(dataset).__mro__:
        for name, method in vars(kind).items():
            info = getattr(method, "cache_info", None)
            if info is not None and info().maxsize is None:
                yield f"the cache of dataset.{name}", info().currsize
