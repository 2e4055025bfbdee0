"""Checks of what a caller asks of a source: ranges, indices, buffers, names."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.registry import did_you_mean

if TYPE_CHECKING:
    from penstock.sources.base import Arrays, Field, Indices, Rows
    from penstock.sources.boxes import Output


def check_range(length: int, start: int, stop: int) -> None:
    """Raise ``PlanError`` unless ``start:stop`` is within ``range(length)``.

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
            f"pass 0 <= start <= stop <= {length}"
        )


def checked_indices(length: int, indices: npt.ArrayLike) -> Indices:
    """Return the indices as int64; each must be within ``range(length)``, none is negative.

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


def checked_buffers(
    fields: Mapping[str, Field], out: Arrays, samples: int, items: Mapping[str, int] | None = None
) -> dict[str, Rows]:
    """Return the first ``samples`` rows of each buffer in ``out``, if all of them fit.

    Of a ragged field, the first ``items[name]`` rows.

    >>> fields = {"x": Field((3,), np.dtype("f4"))}
    >>> checked_buffers(fields, {"x": np.empty((8, 3), "f4")}, 2)["x"].shape
    (2, 3)
    """
    for name, buffer in out.items():
        field = fields.get(name)
        if field is None:
            raise PlanError(f"no field {name!r} in this source{did_you_mean(name, fields)}")
        if not isinstance(buffer, np.ndarray):
            raise PlanError(
                f"the buffer for field {name!r} must be a numpy array, got {type(buffer).__name__}"
            )
        rows = samples if items is None else items.get(name, samples)
        fits = buffer.dtype == field.dtype and buffer.shape[1:] == field.shape and buffer.ndim
        if not fits or len(buffer) < rows:
            raise PlanError(
                f"the buffer for field {name!r} has shape {buffer.shape} of {buffer.dtype}: "
                f"reading {samples} samples needs ({rows} or more, *{field.shape}) of "
                f"{field.dtype}"
            )
    if not items:
        return {name: buffer[:samples] for name, buffer in out.items()}
    return {name: buffer[: items.get(name, samples)] for name, buffer in out.items()}


def checked_names(name: str, value: object, kinds: type | UnionType = str) -> list[Any] | None:
    """Return the names of fields or columns as a list without repetitions; None stays None.

    >>> checked_names("fields", ("x", "y"))
    ['x', 'y']
    """
    if value is None:
        return None
    names = list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(each, kinds) for each in names):
        raise PlanError(f"{name} must be a list of one or more names, got {value!r}")
    if len(set(names)) < len(names):
        raise PlanError(f"{name} must not repeat a name, got {value!r}")
    return names


def selected_ranges(chosen: Any, samples: int) -> tuple[Indices, Indices]:
    """Return starts and stops of the ranges that indices, a mask, a range or a slice select.

    >>> [each.tolist() for each in selected_ranges([7, 2, 3], 10)]
    [[2, 7], [4, 8]]
    """
    if isinstance(chosen, slice):
        chosen = range(samples)[chosen]
    if isinstance(chosen, range) and abs(chosen.step) == 1:  # of any size, without a list
        if chosen and not (
            0 <= min(chosen[0], chosen[-1]) and max(chosen[0], chosen[-1]) < samples
        ):
            raise PlanError(f"cannot select {chosen} of {samples} samples")
        ends = (
            [[min(chosen[0], chosen[-1])], [max(chosen[0], chosen[-1]) + 1]] if chosen else [[], []]
        )
        return np.array(ends[0], np.int64), np.array(ends[1], np.int64)
    given = np.asarray(chosen)
    if given.dtype == bool:
        if given.shape != (samples,):
            raise PlanError(f"a mask of shape {given.shape} cannot select of {samples} samples")
        indices = np.flatnonzero(given)
    else:
        indices = np.sort(checked_indices(samples, given))
        repeated = np.flatnonzero(np.diff(indices) == 0)
        if len(repeated):
            raise PlanError(
                f"cannot select sample {int(indices[repeated[0]])} twice: a source has each sample "
                "once; use a Mixture or weights to repeat samples"
            )
    gaps = np.flatnonzero(np.diff(indices) != 1)
    first = np.concatenate([indices[:1], indices[gaps + 1]]).astype(np.int64)
    last = np.concatenate([indices[gaps], indices[-1:]]).astype(np.int64)
    return first, last + 1


def checked_offsets(
    outputs: Mapping[str, Output], length: object, offsets: Any
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the output that each new output is made of, and its offsets."""
    if (length is None) == (offsets is None):
        raise PlanError("windows needs either length or offsets")
    if length is not None:
        offsets = range(whole_number("length", length, minimum=1, unit="row"))
    if not isinstance(offsets, Mapping):
        each = _checked_rows("offsets", offsets)
        return {name: (name, each) for name in outputs}
    if not offsets:
        raise PlanError("offsets must name at least one output, got {}")
    named = {}
    for name, given in offsets.items():
        of = name
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            of, given = given
        elif name not in outputs and len(outputs) == 1:
            of = next(iter(outputs))  # there is only one field that it can be of
        if not isinstance(name, str) or of not in outputs:
            raise PlanError(
                f"offsets: no field {of!r} in this source{did_you_mean(str(of), outputs)}; pass "
                f"{{{name!r}: (field, [offsets])}} with one of {list(outputs)}"
            )
        named[name] = (of, _checked_rows(f"offsets of {name!r}", given))
    return named


def _checked_rows(name: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, list | tuple | range | np.ndarray) or not len(given):
        raise PlanError(f"{name} must be a list of one or more integers, got {given!r}")
    return tuple(whole_number(f"an item of {name}", each) for each in given)


def checked_sizes(name: str, sizes: object) -> dict[str, int] | tuple[int, ...]:
    """Return sizes by dimension name or for the last axes, each at least 1."""
    if isinstance(sizes, Mapping) and sizes:
        return {
            str(dim): whole_number(f"{name} of {dim!r}", size, minimum=1)
            for dim, size in sizes.items()
        }
    if not isinstance(sizes, list | tuple) or not sizes:
        raise PlanError(
            f"{name} must be a dict by dimension name or a tuple for the last axes, got {sizes!r}"
        )
    return tuple(whole_number(f"an item of {name}", size, minimum=1) for size in sizes)
