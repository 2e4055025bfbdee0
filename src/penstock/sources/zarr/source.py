"""A Zarr array, or the arrays of a group, as a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from penstock.arguments import choice, flag
from penstock.errors import SourceError
from penstock.registry import did_you_mean
from penstock.sources.array_source import (
    ArrayReader,
    StoredArray,
    StoreSource,
    checked_along,
)
from penstock.sources.base import checked_names
from penstock.sources.cf import zarr_attributes
from penstock.sources.contract import SourceLike
from penstock.sources.storage import ByteStore
from penstock.sources.zarr.codecs import NotDirect
from penstock.sources.zarr.direct import DirectArray
from penstock.sources.zarr.hierarchy import (
    MissingChunks,
    Node,
    array_paths,
    check_path,
    image_levels,
    read_node,
)
from penstock.sources.zarr.stores import GenericArray, store_of


class ZarrSource(StoreSource):
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Arrays of subgroups are fields by their path, such as ``"images/raw"``. Scalars, and
    coordinates of arrays with dimension names, are left out unless ``fields`` names them; of an
    OME-Zarr image the first level is read, and ``fields=["1"]`` is another one.

    Chunks with common codecs are decoded straight into the output (``reader`` is "direct"), all
    others are read by zarr-python; both give equal arrays. A damaged chunk is an error that names
    its file.

    Args:
        path: A directory, a zip file, an object of zarr-python or icechunk, or a `ByteStore`; see
            `stores.store_of`.
        fields: Paths of arrays in a group; all of them if None.
        axis: The axis of samples in every array, by number or by dimension name.
        direct: False reads every array with zarr-python.
        along: An alias of ``axis``.
        decode: Apply ``scale_factor``, ``add_offset``, ``_FillValue``, ``missing_value`` and
            ``_Unsigned`` as xarray does. False reads the stored values.
        missing: How to read a chunk that is not stored: ``"fill"`` reads the array's fill value,
            as every Zarr library does, ``"error"`` raises. If the whole array is gone, a
            missing chunk is always an error.
    """

    def __init__(
        self,
        path: SourceLike | ByteStore,
        *,
        fields: Sequence[str] | None = None,
        axis: int | str | None = None,
        direct: bool = True,
        along: int | str | None = None,
        decode: bool = True,
        missing: str = "fill",
    ) -> None:
        store, axis = store_of(path), checked_along(axis, along)
        names, decode = checked_names("fields", fields), flag("decode", decode)
        refused = choice("missing", missing, ("fill", "error")) == "error"
        arrays = stored_arrays(store, names, flag("direct", direct), refused)
        super().__init__(store.name(""), arrays, fields=names, along=axis, decode=decode)
        self.in_flight = store.concurrency

    @property
    def reader(self) -> str:
        """The reader of all fields: "direct", or "zarr-python" if any field needs it."""
        direct = all(how == "direct" for how in self.readers.values())
        return "direct" if direct else "zarr-python"

    def __repr__(self) -> str:
        readers = ", ".join(f"{name!r}: {reader}" for name, reader in self.readers.items())
        return f"ZarrSource({self._name!r}, {len(self)} samples, {{{readers}}})"


# -- the arrays of a store, each with its reader


def stored_arrays(
    store: ByteStore,
    fields: Sequence[str] | None = None,
    direct: bool = True,
    refused: bool = False,
) -> dict[str, StoredArray]:
    """Return the one array as field ``""``, or the arrays of a group by their paths.

    Args:
        store: The store.
        fields: The paths; all of them if None.
        direct: Whether chunks with common codecs are decoded without zarr-python.
        refused: Whether a chunk that is not stored is an error.
    """
    root = read_node(store, "")
    if root is None:
        raise SourceError(
            f"there is no Zarr array or group in {store.name('')}: "
            "neither zarr.json nor .zarray nor .zgroup was found"
        )
    if root.array is not None:
        return {"": _stored_array(store, root, None, direct, refused)}
    paths = array_paths(store) if fields is None else [check_path(path) for path in fields]
    groups = {path.rpartition("/")[0] for path in paths}
    images = {group: image_levels(store, group) for group in groups}
    found = {}
    for path in paths:
        group, _, level = path.rpartition("/")
        levels, axes = images[group]
        if fields is not None or level not in levels[1:]:  # of an image the first level
            node, named = _named(store, path), axes if level in levels else None
            found[path] = _stored_array(store, node, named, direct, refused)
    return found


def _named(store: ByteStore, path: str) -> Node:
    node = read_node(store, path)
    if node is None or node.array is None:
        what = "a group, not an array" if node is not None else "missing"
        near = did_you_mean(path, array_paths(store))
        raise SourceError(f"{path!r} of {store.name('')} is {what}{near}")
    return node


def _stored_array(
    store: ByteStore, node: Node, axes: tuple[str, ...] | None, direct: bool, refused: bool
) -> StoredArray:
    metadata = node.array
    assert metadata is not None
    dims = metadata.dimensions
    if dims is None and axes is not None and len(axes) == len(metadata.shape):
        dims = axes
    attributes = zarr_attributes(
        metadata.attributes, fill_value=metadata.fill_value, version=metadata.version
    )
    layout, prefix = metadata.layout, f"{node.path}/" if node.path else ""
    missing = MissingChunks(store, node.metadata_key, refused)
    opened: Callable[[int], ArrayReader]
    if direct and not isinstance(layout, NotDirect):
        opened = partial(DirectArray, store, prefix, layout, missing)
    else:
        why = str(layout) if isinstance(layout, NotDirect) else "direct=False"
        opened = partial(GenericArray, store, prefix, missing, why)
    return StoredArray(store.name(node.path), metadata.shape, dims, attributes, opened)
