"""What of a dataset cannot go to a worker process: its name, and how to mend it."""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

# what objects raise that cannot be pickled; RuntimeError holds RecursionError
FAILURES = (AttributeError, TypeError, ValueError, RuntimeError, OSError, pickle.PicklingError)


@dataclass(frozen=True, slots=True)
class Culprit:
    """The innermost part that cannot be pickled: where it is, what it is, what to do."""

    name: str
    kind: str
    mend: str
    value: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def unpicklable_part(value: Any, name: str) -> Culprit | None:
    """The innermost attribute that cannot be pickled; None where all can.

    Tensors and arrays are not copied: they can be sent, and may be large.

    >>> class Dataset:
    ...     def __init__(self):
    ...         self.scale = lambda x: 2 * x
    >>> found = unpicklable_part(Dataset(), "dataset")
    >>> print(found)
    dataset.scale (function)
    >>> found.mend
    'it is a lambda: write it with def at the top of a module'
    """
    if _picklable(value):
        return None
    return _search(value, name, seen=set()) or _culprit(value, name)


def _search(value: Any, name: str, *, seen: set[int]) -> Culprit | None:
    """The culprit in what cannot be pickled; None where only what holds it is to blame."""
    seen.add(id(value))
    faulty = [part for part in _parts(value, name) if not _picklable(part[1])]
    for inner_name, inner in faulty:
        if id(inner) not in seen and (found := _search(inner, inner_name, seen=seen)) is not None:
            return found
    return None if faulty else _culprit(value, name)


def _culprit(value: Any, name: str) -> Culprit:
    return Culprit(name, type(value).__name__, _mend(value), value)


def _mend(value: Any) -> str:
    """What to do about an object that cannot be sent, by what it is."""
    kind = type(value)
    called = value if isinstance(value, FunctionType | type) else kind
    if getattr(called, "__name__", "") == "<lambda>":
        return "it is a lambda: write it with def at the top of a module"
    if "<locals>" in getattr(called, "__qualname__", ""):
        what = "a function" if isinstance(value, FunctionType) else "of a class"
        return f"it is {what} defined inside a function: define it at the top of a module"
    if isinstance(value, io.IOBase):
        return f"it is an open file ({getattr(value, 'name', '?')!r}): {REOPEN}"
    if kind.__module__.startswith("h5py."):
        return f"it is an open HDF5 handle: {REOPEN}"
    if isinstance(value, torch.Tensor):
        return "it is part of a graph of gradients: detach() it"
    return f"a {kind.__name__} belongs to one process: make it where it is first used"


REOPEN = "keep its path, and open it where a sample is first read"


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{name}[{i}]", inner) for i, inner in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{name}{{...}}", inner) for inner in value)
    elif isinstance(value, partial):
        yield from ((f"{name}.{key}", getattr(value, key)) for key in ("func", "args", "keywords"))
    elif isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
    else:
        yield from ((f"{name}.{key}", inner) for key, inner in state_of(value).items())


def state_of(value: Any) -> dict[str, Any]:
    """The attributes of an object that are pickled, in slots too."""
    with suppress(*FAILURES):
        state = value.__getstate__()
        if isinstance(state, tuple):  # attributes, and what is in slots
            return {
                name: inner
                for part in state
                if isinstance(part, dict)
                for name, inner in part.items()
            }
        return state if isinstance(state, dict) else {}
    return {}


class _Probe(ForkingPickler):
    """Pickles all but large and shared memory, to nowhere."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            raise TypeError("torch sends no tensor that is part of a graph")
        return (int, ()) if is_shared(value) else NotImplemented


def is_shared(value: Any) -> bool:
    """Is it memory that processes share, or something that only a process being started gets?"""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    own = type(value).__module__  # locks and queues of multiprocessing are inherited
    return isinstance(value, torch.Tensor) or own.startswith("multiprocessing.")


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _picklable(value: Any) -> bool:
    try:
        _Probe(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except FAILURES:
        return False
    return True


def twin(value: Any) -> Any:
    """A copy whose files and handles open apart; tensors and arrays are shared, not copied.

    Reading a sample in this process would open a dataset's files here, and what is open cannot go
    to a worker: so measuring reads from a twin.

    >>> first = [torch.zeros(3)]
    >>> second = twin(first)
    >>> second is first, second[0] is first[0]
    (False, True)
    """
    shared: list[Any] = []
    written = io.BytesIO()
    _Sharing(written, shared).dump(value)
    written.seek(0)
    return _Shared(written, shared).load()


class _Sharing(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if not is_shared(value):
            return None
        self._shared.append(value)
        return len(self._shared) - 1


class _Shared(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]
