"""The arrays of a Zarr store, each with the reader that suits it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.arguments import whole_number
from penstock.errors import SourceError
from penstock.registry import did_you_mean
from penstock.sources.zarr.attributes import packing
from penstock.sources.zarr.codecs import NotDirect
from penstock.sources.zarr.direct import DirectArray
from penstock.sources.zarr.generic import GenericArray
from penstock.sources.zarr.grid import Crop
from penstock.sources.zarr.metadata import ArrayMetadata
from penstock.sources.zarr.missing import MissingChunks
from penstock.sources.zarr.nodes import Node, array_paths, check_path, read_node
from penstock.sources.zarr.stored import StoredBytes

log = logging.getLogger(__name__)

ZarrArray: TypeAlias = DirectArray | GenericArray


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How arrays are read.

    Attributes:
        along: The axis of samples, by number or by dimension name.
        direct: Whether chunks with common codecs are decoded without zarr-python.
        decode: Whether samples must be the data; False gives the values as they are stored.
        missing_refused: Whether a chunk that is not stored is an error.
    """

    along: int | str = 0
    direct: bool = True
    decode: bool = True
    missing_refused: bool = False


def is_zarr(stored: StoredBytes) -> bool:
    """Whether a Zarr array or group is stored here."""
    return read_node(stored, "") is not None


def open_arrays(
    stored: StoredBytes, *, fields: Sequence[str] | None, settings: ReadSettings
) -> dict[str, ZarrArray]:
    """The one array as field ``""``, or the arrays of a group by their paths."""
    root = read_node(stored, "")
    if root is None:
        raise SourceError(
            f"there is no Zarr array or group in {stored.name('')}: "
            "neither zarr.json nor .zarray nor .zgroup was found"
        )
    if root.array is not None:
        if fields is not None:
            raise SourceError(f"{stored.name('')} is one array without fields: leave out fields=")
        return {"": _opened(stored, root, settings)}
    nodes = _all_arrays(stored) if fields is None else [_named(stored, name) for name in fields]
    if not nodes:
        raise SourceError(f"the Zarr group {stored.name('')} has no arrays of samples")
    return {node.path: _opened(stored, node, settings) for node in nodes}


def open_cropped(stored: StoredBytes, *, axis: int, crop: Crop) -> ZarrArray:
    """The one array stored here, of which only a part along the other axes is wanted."""
    node = read_node(stored, "")
    if node is None or node.array is None:
        raise SourceError(f"there is no Zarr array {stored.name('')}")
    return _opened(stored, node, ReadSettings(along=axis), crop)


def _all_arrays(stored: StoredBytes) -> list[Node]:
    nodes = [_named(stored, path) for path in array_paths(stored)]
    scalars = [node.path for node in nodes if node.array is not None and not node.array.shape]
    if scalars:  # such as the grid mapping of a map projection: they have no samples
        log.info("leaving out scalar arrays of %s: %s", stored.name(""), ", ".join(scalars))
    return [node for node in nodes if node.path not in scalars]


def _named(stored: StoredBytes, path: str) -> Node:
    node = read_node(stored, check_path(path))
    if node is None or node.array is None:
        what = "a group, not an array" if node is not None else "not there"
        near = did_you_mean(path, array_paths(stored))
        raise SourceError(f"{path!r} of {stored.name('')} is {what}{near}")
    return node


def _opened(
    stored: StoredBytes, node: Node, settings: ReadSettings, crop: Crop | None = None
) -> ZarrArray:
    name, metadata = stored.name(node.path), node.array
    assert metadata is not None
    axis = axis_of(metadata, settings.along, name)
    prefix = f"{node.path}/" if node.path else ""
    missing = MissingChunks(stored, node.metadata_key, settings.missing_refused)
    array: ZarrArray
    if settings.direct and not isinstance(metadata.layout, NotDirect):
        array = DirectArray(stored, prefix, metadata.layout, axis, missing, crop)
    else:
        why = str(metadata.layout) if isinstance(metadata.layout, NotDirect) else "asked for"
        array = GenericArray(stored, prefix, axis, missing, why, crop)
    whole_number(f"the size of a sample of {name}", array.field.nbytes, error=SourceError)
    if settings.decode:
        _check_unpacked(metadata, array, name)
    return array


def axis_of(metadata: ArrayMetadata, along: int | str, name: str) -> int:
    """The number of the axis of samples, given by number or by dimension name."""
    shape, dimensions = metadata.shape, metadata.dimensions
    if not shape:
        raise SourceError(f"array {name} is a scalar: it has no axis of samples")
    if isinstance(along, str):
        if dimensions is None or along not in dimensions:
            known = [each for each in dimensions or () if each]
            has = f"has dimensions {known}" if known else "has no dimension names"
            raise SourceError(
                f"array {name} {has}, so along={along!r} cannot be found: choose the axis of "
                f"samples by number, from 0 to {len(shape) - 1}, or other arrays with "
                "open_source(..., fields=[...])"
            )
        return dimensions.index(along)
    if not 0 <= along < len(shape):
        raise SourceError(
            f"array {name} has shape {shape}: the axis of samples (along) must be from 0 to "
            f"{len(shape) - 1}, got {along}"
        )
    return along


def _check_unpacked(metadata: ArrayMetadata, array: ZarrArray, name: str) -> None:
    found = packing(
        metadata.attributes,
        array.field.dtype,
        fill_value=metadata.fill_value,
        version=metadata.version,
    )
    if found:
        listed = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise SourceError(
            f"array {name} has {listed[:200]}: its stored values are not the data, and they are "
            "not decoded yet; pass open_source(..., decode=False) to StreamLoader for the stored "
            "values, or write the decoded data to another store"
        )
