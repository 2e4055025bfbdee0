"""Attributes that change what stored values mean, as xarray and the CF conventions define them."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

Attributes = Mapping[str, Any]

DIMENSIONS_V2 = "_ARRAY_DIMENSIONS"  # where xarray stores dimension names in Zarr version 2
NO_CHANGE = {"scale_factor": 1, "add_offset": 0, "_Unsigned": "false"}
FILLS = ("_FillValue", "missing_value")


def packing(
    attributes: Attributes, dtype: np.dtype[np.generic], *, fill_value: object, version: int
) -> dict[str, Any]:
    """Return the attributes because of which stored values are not the data.

    A NaN that marks missing floats changes nothing.

    >>> packing({"scale_factor": 0.1, "units": "K"}, np.dtype("i2"), fill_value=0, version=3)
    {'scale_factor': 0.1}
    >>> packing({"_FillValue": "NaN"}, np.dtype("f4"), fill_value=0, version=3)
    {}
    """
    found = {
        name: attributes[name]
        for name, harmless in NO_CHANGE.items()
        if name in attributes and attributes[name] != harmless
    }
    marks = {name: attributes[name] for name in FILLS if name in attributes}
    if version == 2:
        marks = fill_mark_v2(attributes, fill_value) | marks
    harmless_nan = dtype.kind in "fc"
    found.update(
        {name: mark for name, mark in marks.items() if not (harmless_nan and _is_nan(mark))}
    )
    return found


def fill_mark_v2(attributes: Attributes, fill_value: object) -> dict[str, object]:
    """Return the attribute ``_FillValue``, which xarray stores as ``fill_value`` in version 2.

    0 is zarr's default there, and does not mark missing data.

    >>> fill_mark_v2({"_ARRAY_DIMENSIONS": ["x"]}, -32767)
    {'_FillValue': -32767}
    """
    if DIMENSIONS_V2 not in attributes or fill_value in (None, 0, ""):
        return {}
    return {"_FillValue": fill_value}


def dimensions_v2(attributes: Attributes, axes: int) -> tuple[str | None, ...] | None:
    """Return the dimension names that xarray writes into a version 2 array, or None.

    >>> dimensions_v2({"_ARRAY_DIMENSIONS": ["time", "x"]}, 2)
    ('time', 'x')
    """
    names = attributes.get(DIMENSIONS_V2)
    if not isinstance(names, list) or len(names) != axes:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def encoded_mark(value: object) -> object:
    """Return a mark of missing data as xarray writes ``_FillValue`` in version 3.

    >>> encoded_mark(-32767), _is_nan(encoded_mark(float("nan")))
    (-32767, True)
    """
    number = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(str(value), value)
    if not isinstance(number, float):
        return number
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


def _is_nan(mark: object) -> bool:
    """Return whether a mark is NaN: a number, text, or xarray's base64 text of its bytes."""
    if isinstance(mark, str):
        try:
            return mark == "NaN" or math.isnan(struct.unpack("<d", base64.b64decode(mark))[0])
        except (struct.error, binascii.Error, ValueError):
            return False
    return isinstance(mark, float) and math.isnan(mark)
