"""A Zarr array, or the arrays of a group, as a source."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.arguments import a_path, choice, flag, whole_number
from penstock.errors import PlanError, SourceError
from penstock.registry import did_you_mean
from penstock.sources.array_source import ArraySource
from penstock.sources.base import checked_names
from penstock.sources.storage import ByteStore, DirectoryStore
from penstock.sources.zarr.attributes import packing
from penstock.sources.zarr.chunks import Crop
from penstock.sources.zarr.codecs import NotDirect
from penstock.sources.zarr.direct import DirectArray
from penstock.sources.zarr.generic import GenericArray
from penstock.sources.zarr.hierarchy import (
    MissingChunks,
    Node,
    array_paths,
    check_path,
    read_node,
)
from penstock.sources.zarr.metadata import ArrayMetadata

log = logging.getLogger(__name__)

ZarrArray: TypeAlias = DirectArray | GenericArray


class ZarrSource(ArraySource):
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Arrays of subgroups are fields by their path, such as ``"images/raw"``; scalar arrays are left
    out. Chunks with common codecs are decoded straight into the output (``reader`` is
    "direct"), all others are read by zarr-python; both give equal arrays. A damaged chunk is an
    error that names its file.

    Args:
        path: A directory, or a `ByteStore`.
        fields: Paths of arrays in a group; all of them if None.
        axis: The axis of samples in every array, by number or by dimension name.
        direct: False reads every array with zarr-python.
        along: An alias of ``axis``.
        decode: Refuse arrays whose stored values are not the data, because of the attributes
            ``scale_factor``, ``add_offset``, ``_FillValue`` or ``missing_value``. False reads the
            stored values.
        missing: How to read a chunk that is not stored: ``"fill"`` reads the array's fill value,
            as every Zarr library does, ``"error"`` raises. If the whole array is gone, a
            missing chunk is always an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | ByteStore,
        *,
        fields: Sequence[str] | None = None,
        axis: int | str | None = None,
        direct: bool = True,
        along: int | str | None = None,
        decode: bool = True,
        missing: str = "fill",
    ) -> None:
        settings = ReadSettings(
            along=checked_along(axis, along) or 0,
            direct=flag("direct", direct),
            decode=flag("decode", decode),
            missing_refused=choice("missing", missing, ("fill", "error")) == "error",
        )
        store = _checked_store(path)
        self._name = store.name("")
        self._arrays = open_arrays(store, checked_names("fields", fields), settings)
        super().__init__(self._arrays, self._name)
        self.in_flight = store.concurrency

    @property
    def readers(self) -> Mapping[str, str]:
        """The reader of each field: "direct", or "zarr-python" and why."""
        return {
            name: array.reader if array.reader == "direct" else f"{array.reader} ({array.why})"
            for name, array in self._arrays.items()
        }

    @property
    def reader(self) -> str:
        """The reader of all fields: "direct", or "zarr-python" if any field needs it."""
        direct = all(array.reader == "direct" for array in self._arrays.values())
        return "direct" if direct else "zarr-python"

    def __repr__(self) -> str:
        readers = ", ".join(f"{name!r}: {reader}" for name, reader in self.readers.items())
        return f"ZarrSource({self._name!r}, {len(self)} samples, {{{readers}}})"


def checked_along(axis: object, along: object) -> int | str | None:
    """Return the axis of samples, which may be passed under either of two names.

    >>> checked_along(None, "time"), checked_along(2, None)
    ('time', 2)
    """
    name, given = ("axis", axis) if along is None else ("along", along)
    if axis is not None and along not in (None, axis):
        raise PlanError(f"axis={axis!r} and along={along!r} are the same argument: pass one")
    if given is None or isinstance(given, str):
        return given
    return whole_number(name, given)


def _checked_store(path: object) -> ByteStore:
    if isinstance(path, ByteStore):
        return path
    return DirectoryStore(a_path("path", path, error=SourceError))


# -- the arrays of a store, each with its reader


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How arrays are read.

    Attributes:
        along: The axis of samples, by number or by dimension name.
        direct: Whether chunks with common codecs are decoded without zarr-python.
        decode: Whether to refuse arrays whose stored values are not the data.
        missing_refused: Whether a chunk that is not stored is an error.
    """

    along: int | str = 0
    direct: bool = True
    decode: bool = True
    missing_refused: bool = False


def open_arrays(
    store: ByteStore, fields: Sequence[str] | None, settings: ReadSettings
) -> dict[str, ZarrArray]:
    """Return the one array as field ``""``, or the arrays of a group by their paths."""
    root = read_node(store, "")
    if root is None:
        raise SourceError(
            f"there is no Zarr array or group in {store.name('')}: "
            "neither zarr.json nor .zarray nor .zgroup was found"
        )
    if root.array is not None:
        if fields is not None:
            raise SourceError(f"{store.name('')} is one array without fields: leave out fields=")
        return {"": _open_array(store, root, settings)}
    nodes = _all_arrays(store) if fields is None else [_named(store, name) for name in fields]
    if not nodes:
        raise SourceError(f"the Zarr group {store.name('')} has no arrays of samples")
    return {node.path: _open_array(store, node, settings) for node in nodes}


def open_cropped(store: ByteStore, *, axis: int, crop: Crop) -> ZarrArray:
    """Return the one array of a store, with only the part ``crop`` of its other axes."""
    node = read_node(store, "")
    if node is None or node.array is None:
        raise SourceError(f"there is no Zarr array {store.name('')}")
    return _open_array(store, node, ReadSettings(along=axis), crop)


def _all_arrays(store: ByteStore) -> list[Node]:
    nodes = [_named(store, path) for path in array_paths(store)]
    scalars = [node.path for node in nodes if node.array is not None and not node.array.shape]
    if scalars:  # such as the grid mapping of a map projection
        log.info("ignoring scalar arrays of %s: %s", store.name(""), ", ".join(scalars))
    return [node for node in nodes if node.path not in scalars]


def _named(store: ByteStore, path: str) -> Node:
    node = read_node(store, check_path(path))
    if node is None or node.array is None:
        what = "a group, not an array" if node is not None else "missing"
        near = did_you_mean(path, array_paths(store))
        raise SourceError(f"{path!r} of {store.name('')} is {what}{near}")
    return node


def _open_array(
    store: ByteStore, node: Node, settings: ReadSettings, crop: Crop | None = None
) -> ZarrArray:
    name, metadata = store.name(node.path), node.array
    assert metadata is not None
    axis = axis_of(metadata, settings.along, name)
    prefix = f"{node.path}/" if node.path else ""
    missing = MissingChunks(store, node.metadata_key, settings.missing_refused)
    array: ZarrArray
    if settings.direct and not isinstance(metadata.layout, NotDirect):
        array = DirectArray(store, prefix, metadata.layout, axis, missing, crop)
    else:
        why = str(metadata.layout) if isinstance(metadata.layout, NotDirect) else "direct=False"
        array = GenericArray(store, prefix, axis, missing, why, crop)
    whole_number(f"the size of a sample of {name}", array.field.nbytes, error=SourceError)
    if settings.decode:
        _check_unpacked(metadata, array, name)
    return array


def axis_of(metadata: ArrayMetadata, along: int | str, name: str) -> int:
    """Return the number of the axis of samples, from a number or a dimension name."""
    shape, dimensions = metadata.shape, metadata.dimensions
    if not shape:
        raise SourceError(f"array {name} is a scalar: it has no axis of samples")
    if isinstance(along, str):
        if dimensions is None or along not in dimensions:
            known = [each for each in dimensions or () if each]
            has = f"has dimensions {known}" if known else "has no dimension names"
            raise SourceError(
                f"array {name} {has}, so along={along!r} is not one of them: choose the axis of "
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
