"""Columns of Arrow tables as arrays: which can be samples, and their values in place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.registry import did_you_mean
from penstock.sources.base import Field


def fields_of(schema: Any, columns: Sequence[str] | None) -> dict[str, Field]:
    """The chosen columns (all of them if None) as fields, or which one cannot be one, and why."""
    names = list(schema.names) if columns is None else list(columns)
    if not names:
        raise SourceError("a table without columns has no samples: name some with columns=[...]")
    fields: dict[str, Field] = {}
    for name in names:
        if name not in schema.names:
            raise SourceError(f"the table has no column {name!r}{did_you_mean(name, schema.names)}")
        field = field_of(schema.field(name).type)
        if field is None:
            usable = [n for n in schema.names if field_of(schema.field(n).type) is not None]
            raise SourceError(
                f"column {name!r} holds {schema.field(name).type}, which has no fixed size: "
                f"leave it out with columns={usable}, or make it numbers first"
            )
        fields[name] = field
    return fields


def field_of(arrow_type: Any) -> Field | None:
    """Shape and dtype of one value of an Arrow type; None where they are not fixed.

    >>> import pyarrow
    >>> field_of(pyarrow.list_(pyarrow.float32(), 3))
    Field(shape=(3,), dtype=dtype('float32'))
    >>> field_of(pyarrow.string()) is None
    True
    """
    arrow = optional("pyarrow", extra="arrow")
    if isinstance(arrow_type, arrow.BaseExtensionType):
        return _field_of_extension(arrow_type)
    if arrow.types.is_fixed_size_list(arrow_type):
        inner = field_of(arrow_type.value_type)
        return inner and Field((arrow_type.list_size, *inner.shape), inner.dtype)
    dtype = _dtype_of(arrow_type)
    return None if dtype is None else Field((), dtype)


def _field_of_extension(arrow_type: Any) -> Field | None:
    """Tensors of a fixed shape: Arrow's own, and the Array2D to Array5D of Hugging Face."""
    shape = getattr(arrow_type, "shape", None)
    if shape is None or any(size is None for size in shape):
        return None
    leaf = arrow_type.storage_type
    while hasattr(leaf, "value_type"):
        leaf = leaf.value_type
    inner = field_of(leaf)
    return inner and Field(tuple(shape), inner.dtype)


def _dtype_of(arrow_type: Any) -> np.dtype[np.generic] | None:
    types = optional("pyarrow", extra="arrow").types
    if types.is_timestamp(arrow_type):
        return np.dtype(f"M8[{arrow_type.unit}]")
    if types.is_duration(arrow_type):
        return np.dtype(f"m8[{arrow_type.unit}]")
    if (
        types.is_boolean(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
    ):
        dtype: np.dtype[np.generic] = np.dtype(arrow_type.to_pandas_dtype())
        return dtype
    return None


def values_of(array: Any, field: Field, name: str) -> npt.NDArray[np.generic]:
    """The values of one Arrow array in its own memory; a copy for booleans, which are bits."""
    arrow = optional("pyarrow", extra="arrow")
    samples = len(array)
    if isinstance(array.type, arrow.BaseExtensionType):
        array = array.storage
    while hasattr(array.type, "value_type"):
        _check_full(array, name)
        array = _items(array, name)
    _check_full(array, name)
    if len(array) != samples * prod(field.shape):
        raise SourceError(f"column {name!r} holds lists of another length than {field.shape}")
    is_bits = array.type == arrow.bool_()
    values: npt.NDArray[np.generic] = array.to_numpy(zero_copy_only=not is_bits)
    return values.reshape(samples, *field.shape)


def _items(array: Any, name: str) -> Any:
    """The items of lists that all have one length."""
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise SourceError(
            f"column {name!r} holds lists of {lengths[0]} and of {lengths[-1]} items: "
            "only lists of one length can be samples"
        )
    return array.flatten()


def _check_full(array: Any, name: str) -> None:
    if array.null_count:
        raise SourceError(
            f"column {name!r} has {array.null_count} missing values among {len(array)}: "
            "fill them in before, or choose other columns with columns=[...]"
        )
