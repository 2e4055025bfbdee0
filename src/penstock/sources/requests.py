"""What a caller may ask of a source: ranges, indices and buffers, checked where they enter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError, SourceError
from penstock.registry import did_you_mean
from penstock.sources.base import Arrays, Field


def check_range(length: int, start: int, stop: int) -> None:
    """Refuse a range that is not within ``range(length)``.

    >>> check_range(10, 3, 10)
    >>> check_range(10, 3, 11)
    Traceback (most recent call last):
    ...
    penstock.errors.PlanError: cannot read samples 3:11 of a source of 10 samples: ...
    """
    if type(start) is not int or type(stop) is not int:  # the usual case costs nothing
        start, stop = whole_number("start", start), whole_number("stop", stop)
    if not 0 <= start <= stop <= length:
        raise PlanError(
            f"cannot read samples {start}:{stop} of a source of {length} samples: "
            f"ask for 0 <= start <= stop <= {length}"
        )


def checked_path(path: object, *, error: type[Exception] = SourceError) -> Path:
    """The path, if it is one.

    >>> checked_path("data.npy").name
    'data.npy'
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise error(f"a file is given by its path, got {path!r} ({type(path).__name__})")
    return Path(path)


def checked_names(name: str, value: object, kinds: type | UnionType = str) -> list[Any] | None:
    """The names of fields or columns, if they are a list of different ones; None stays None.

    >>> checked_names("fields", ("x", "y"))
    ['x', 'y']
    """
    if value is None:
        return None
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(each, kinds) for each in names):
        raise PlanError(f"{name} must be a list of one or more names, got {value!r}")
    if len(set(names)) < len(names):
        raise PlanError(f"{name} must name each of them once, got {value!r}")
    return names


def checked_indices(length: int, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The indices as int64, each within ``range(length)``; negative ones are refused, not wrapped.

    >>> checked_indices(10, [9, 0]).tolist()
    [9, 0]
    """
    try:
        chosen = np.asarray(indices)
    except ValueError as error:  # rows of different lengths
        raise PlanError(f"indices must be a flat array of integers: {error}") from error
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise PlanError(
            "indices must be a flat array of integers, "
            f"got {chosen.ndim} dimensions of {chosen.dtype}"
        )
    low, high = (int(chosen.min()), int(chosen.max())) if chosen.size else (0, -1)
    if low < 0 or high >= length:
        raise PlanError(
            f"cannot take samples {low} to {high} of a source of {length} samples: "
            f"indices must be from 0 to {length - 1}"
        )
    return chosen.astype(np.int64, copy=False)


def destinations(
    fields: Mapping[str, Field], out: Arrays, samples: int
) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Each name in ``out`` with the first ``samples`` rows of its buffer, once all of them fit.

    >>> fields = {"x": Field((3,), np.dtype("f4"))}
    >>> out = {"x": np.empty((8, 3), "f4")}
    >>> [(name, rows.shape) for name, rows in destinations(fields, out, 2)]
    [('x', (2, 3))]
    """
    for name, buffer in out.items():
        _check_buffer(fields, name, buffer, samples)
    return ((name, buffer[:samples]) for name, buffer in out.items())


def _check_buffer(
    fields: Mapping[str, Field], name: str, buffer: npt.NDArray[np.generic], samples: int
) -> None:
    field = fields.get(name)
    if field is None:
        raise PlanError(f"no field {name!r} in this source{did_you_mean(name, fields)}")
    if not isinstance(buffer, np.ndarray):
        raise PlanError(
            f"the buffer for field {name!r} must be a numpy array, got {type(buffer).__name__}"
        )
    fits = buffer.dtype == field.dtype and buffer.shape[1:] == field.shape and buffer.ndim
    if not fits or len(buffer) < samples:
        raise PlanError(
            f"the buffer for field {name!r} has shape {buffer.shape} of {buffer.dtype}: "
            f"reading {samples} samples needs ({samples} or more, *{field.shape}) of {field.dtype}"
        )
