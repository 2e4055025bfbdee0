"""What of a dataset cannot go to a worker process, by name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

FAILURES = (AttributeError, TypeError, pickle.PicklingError, NotImplementedError, OSError)


def unpicklable_part(value: Any, name: str) -> str | None:
    """The innermost attribute that cannot be pickled, with its type; None where all can.

    Tensors and arrays are not looked at: they can, and may be large.

    >>> class Dataset:
    ...     def __init__(self):
    ...         self.scale = lambda x: 2 * x
    >>> unpicklable_part(Dataset(), "dataset")
    'dataset.scale (function)'
    """
    if _picklable(value):
        return None
    for inner_name, inner in _parts(value, name):
        found = unpicklable_part(inner, inner_name)
        if found is not None:
            return found
    return f"{name} ({type(value).__name__})"


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{i}]", inner) for i, inner in enumerate(value))
    else:
        yield from ((f"{name}.{key}", inner) for key, inner in vars_of(value).items())


def vars_of(value: Any) -> dict[str, Any]:
    """Attributes of an object, in slots too."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return named | getattr(value, "__dict__", {})


class _Probe(pickle.Pickler):
    """Pickles all but tensors and arrays, to nowhere."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) or (
            isinstance(value, np.ndarray) and not value.dtype.hasobject
        ):
            return int, ()
        return NotImplemented


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _picklable(value: Any) -> bool:
    try:
        _Probe(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except FAILURES:
        return False
    return True
