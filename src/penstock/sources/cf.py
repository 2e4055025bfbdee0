"""The decoding of stored values into data, as the CF conventions and xarray define it.

Packed integers are multiplied by ``scale_factor`` and shifted by ``add_offset``; values that mark
missing data become NaN. Dtypes are chosen and steps are ordered as in xarray, so that the results
are bitwise equal.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from penstock.arguments import shown
from penstock.errors import SourceError
from penstock.native import native
from penstock.sources.thread_buffers import thread_array

Attributes = Mapping[str, Any]
DType = np.dtype[np.generic]

DIMENSIONS_V2 = "_ARRAY_DIMENSIONS"  # where xarray stores dimension names in Zarr version 2
PIECE_ITEMS = 1 << 13  # that are computed together: with their temporaries they fit into L2
TABLE_ITEMS = 1 << 12  # fewer are computed at once: making a table takes longer
FILLS = ("missing_value", "_FillValue")
TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Decoding:
    """How stored values of one array become data.

    Attributes:
        stored: The dtype in storage.
        read_as: The stored dtype, signed or unsigned as ``_Unsigned`` requires.
        dtype: The dtype of the data.
        fills: Values that mark missing data, compared after conversion to ``dtype``.
        scale: The factor; None for none.
        offset: Added after scaling; None for none.
    """

    stored: DType
    read_as: DType
    dtype: DType
    fills: tuple[Any, ...]
    scale: Any
    offset: Any

    def __reduce__(self) -> tuple[type[Decoding], tuple[Any, ...]]:
        return Decoding, tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def _table(self) -> np.ndarray[Any, Any] | None:
        """The data of all values that 8 or 16 bits can have; None if a table is not faster."""
        small = self.read_as.kind in "iu" and self.read_as.itemsize <= 2 and self.read_as.isnative
        if native is None or not small or self.dtype != np.float32:
            return None
        values = np.arange(1 << 8 * self.read_as.itemsize, dtype=f"u{self.read_as.itemsize}")
        table = np.empty(len(values), np.float32)
        self._compute(values, table)
        return table

    def apply(self, stored: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Fill ``out`` with the data of ``stored`` values of the same shape."""
        table = self._table if stored.size >= TABLE_ITEMS and out.flags.c_contiguous else None
        if native is None or table is None or not stored.flags.c_contiguous:
            self._compute(stored, out)
            return
        native.lookup(
            out.ctypes.data, stored.ctypes.data, stored.itemsize, table.ctypes.data, stored.size
        )

    def _compute(self, stored: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        exact = _float_dtype(self.read_as, self.scale, self.offset)
        if exact == np.float64 and out.dtype == np.float32 and self.read_as != np.float32:
            # computed as xarray does, and rounded once; a few rows at a time stay in the cache
            rows = max(1, PIECE_ITEMS // max(1, math.prod(out.shape[1:])))
            for first in range(0, len(out), rows):
                part = out[first : first + rows]
                wide = thread_array("wide", part.shape, np.dtype(np.float64))
                self._convert(stored[first : first + rows], wide)
                np.copyto(part, wide, casting="same_kind")
        else:
            self._convert(stored, out)

    def _convert(self, stored: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        np.copyto(out, stored.view(self.read_as), casting="unsafe")
        missing: Any = False
        for fill in self.fills:
            missing |= out == fill
        if self.fills:
            out[missing] = np.nan + np.nan * 1j if out.dtype.kind == "c" else np.nan
        with np.errstate(all="ignore"):  # overflow is a property of the data
            if self.scale is not None:
                out *= self.scale
            if self.offset is not None:
                out += self.offset


def decoding_of(attributes: Attributes, stored: DType, name: str) -> Decoding | None:
    """Return how to decode an array, or None if its stored values are the data.

    Args:
        attributes: Attributes of the array.
        stored: The dtype in storage.
        name: The name of the array for messages.

    >>> decoding_of({"scale_factor": 0.1, "_FillValue": -1}, np.dtype("i2"), "t2m").dtype
    dtype('float32')
    >>> decoding_of({"_FillValue": float("nan")}, np.dtype("f4"), "t2m")
    """
    if stored.kind not in "iufcb":
        return None
    refuse_times(attributes, name)
    as_bool = attributes.get("dtype") == "bool"
    fills = {key: _numbers(key, attributes, stored, name) for key in FILLS if key in attributes}
    if stored.kind in "iu":  # NaN cannot be among integers
        fills = {key: marks for key, marks in fills.items() if marks}
    read_as = _signedness(attributes, stored)
    marks = {mark for key in fills for mark in fills[key]}
    if read_as != stored and "_FillValue" in fills:
        own = np.array(fills["_FillValue"]).astype(stored).view(read_as)
        marks = marks - set(fills["_FillValue"]) | set(own.tolist())
    scale, offset = (_number(key, attributes, name) for key in ("scale_factor", "add_offset"))
    dtype = read_as
    if scale is not None or offset is not None:
        # a NaN mark of floats keeps their dtype: only then are there fills without marks
        dtype = _float_dtype(read_as, scale, offset) if marks or not fills else read_as
        if read_as.kind in "iu" and read_as.itemsize <= 2 and dtype.kind == "f":
            dtype = np.dtype(np.float32)  # 16 bits fit into it, and models compute in it
    elif marks:
        dtype = _with_nan(read_as)
    if dtype == stored and scale is None and offset is None and not marks and not as_bool:
        return None
    if stored.kind == "b" or (as_bool and (marks or scale is not None or offset is not None)):
        raise SourceError(
            f"array {name} holds booleans with marks of missing data, and no dtype can represent "
            "both: pass decode=False for the stored values"
        )
    dtype = np.dtype(bool) if as_bool else dtype
    return Decoding(stored, read_as, dtype, tuple(sorted(marks)), scale, offset)


def refuse_times(attributes: Attributes, name: str) -> None:
    """Raise ``SourceError`` for an array of times: numbers that count from a date."""
    units = str(attributes.get("units", ""))
    if " since " in units or str(attributes.get("dtype", "")).startswith("timedelta64"):
        raise SourceError(
            f"array {name} holds times ({units!r}), which cannot be decoded into numbers: leave it "
            "out with fields=[...], or pass decode=False for the numbers as they are stored"
        )


def _signedness(attributes: Attributes, stored: DType) -> DType:
    kinds = {("i", "true"): "u", ("u", "false"): "i"}
    kind = kinds.get((stored.kind, str(attributes.get("_Unsigned"))), stored.kind)
    return np.dtype(f"{kind}{stored.itemsize}") if kind != stored.kind else stored


def _float_dtype(dtype: DType, scale: Any, offset: Any) -> DType:
    """Return the dtype that xarray chooses for scaled values."""
    if scale is None and offset is None:
        return dtype
    if offset is None:
        return np.dtype(type(scale))
    same = type(scale) if type(scale) is type(offset) else None
    small = dtype.itemsize != 4 or dtype.kind not in "iu"  # 32 bits do not fit into float32
    if same is not None and np.dtype(same) in (np.float32, np.float64) and small:
        return np.dtype(same)
    return np.dtype(np.float64)


def _with_nan(dtype: DType) -> DType:
    if dtype.kind in "iu":
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    return dtype


def _number(key: str, attributes: Attributes, name: str) -> Any:
    """Return an attribute that is one number, or None; a numpy scalar keeps its dtype."""
    value = attributes.get(key)
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise SourceError(
            f"array {name} has {key}={shown(value)}, which is not one number: correct the "
            "attribute, or pass decode=False for the stored values"
        )
    return array.item() if array.ndim else value


def _numbers(key: str, attributes: Attributes, stored: DType, name: str) -> list[Any]:
    """Return the marks of missing data of one attribute, without NaN."""
    value = attributes[key]
    values: list[Any] = list(np.ravel(value)) if not isinstance(value, list) else value
    array = np.ravel([TEXTS.get(str(each), each) for each in values])
    if array.dtype.kind not in "iufcb":
        raise SourceError(
            f"array {name} has {key}={shown(value)}, which is not a number: correct the "
            "attribute, or pass decode=False for the stored values"
        )
    if key == "_FillValue" and stored.kind == "f" and not isinstance(value, np.generic):
        array = array.astype(stored)  # JSON has no dtypes
    return [mark for mark in array if mark == mark]


# -- Zarr: where xarray stores marks and dimension names


def zarr_attributes(attributes: Attributes, *, fill_value: object, version: int) -> Attributes:
    """Return the attributes of a Zarr array with ``_FillValue`` as in CF.

    xarray stores it as the array's ``fill_value`` in version 2 (of an array that has dimension
    names), and as the base64 text of a double in version 3.

    >>> zarr_attributes({"_FillValue": "AAAAAAAA+H8="}, fill_value=0, version=3)
    {'_FillValue': nan}
    >>> zarr_attributes({"_ARRAY_DIMENSIONS": ["x"]}, fill_value=-1, version=2)["_FillValue"]
    -1
    """
    if version == 2:
        marked = DIMENSIONS_V2 in attributes and fill_value is not None
        return {**attributes, "_FillValue": fill_value} if marked else attributes
    mark = attributes.get("_FillValue")
    if isinstance(mark, str) and mark not in TEXTS:
        try:
            return {**attributes, "_FillValue": struct.unpack("<d", base64.b64decode(mark))[0]}
        except (struct.error, binascii.Error, ValueError):
            return attributes  # refused where it is decoded
    return attributes


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

    >>> encoded_mark(-32767), encoded_mark(float("nan"))
    (-32767, 'AAAAAAAA+H8=')
    """
    number = TEXTS.get(value, value) if isinstance(value, str) else value
    if not isinstance(number, float):
        return number
    return base64.standard_b64encode(struct.pack("<d", number)).decode()
