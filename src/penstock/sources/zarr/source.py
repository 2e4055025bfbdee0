"""A Zarr array, or the arrays of a group, as a source; and the nodes of a Zarr store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.arguments import a_path, choice, flag
from penstock.errors import SourceError
from penstock.registry import did_you_mean
from penstock.sources.array_source import (
    ArrayReader,
    StoredArray,
    StoreSource,
    checked_along,
)
from penstock.sources.cf import Attributes, zarr_attributes
from penstock.sources.contract import SourceLike, checked_names
from penstock.sources.storage import ByteStore, DirectoryStore, new_memory, package_of
from penstock.sources.thread_buffers import Bytes
from penstock.sources.zarr.chunks import MissingChunks
from penstock.sources.zarr.codecs import NotDirect
from penstock.sources.zarr.direct import DirectArray
from penstock.sources.zarr.metadata import ArrayMetadata, BadMetadata, metadata_v2, metadata_v3
from penstock.sources.zarr.stores import GenericArray, ZarrPythonStore, ZipByteStore

MOST_METADATA_BYTES = 1 << 28  # consolidated metadata of a large store has some megabytes
MOST_DEPTH = 32
MOST_NODES = 100_000


class ZarrSource(StoreSource):
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Arrays of subgroups are fields by their path, such as ``"images/raw"``. Scalars, and
    coordinates of arrays with dimension names, are left out unless ``fields`` names them; of an
    OME-Zarr image the first level is read, and ``fields=["1"]`` reads the second.

    Chunks with common codecs are decoded straight into the output (``reader`` is "direct"), all
    others are read by zarr-python; both give the same arrays. A damaged chunk is an error that
    names its file.

    Args:
        path: A directory, a zip file, an object of zarr-python or icechunk, or a `ByteStore`; see
            `store_of`.
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


def store_of(where: Any) -> ByteStore:
    """Return the store of anything that holds Zarr.

    Chunks with common codecs are decoded directly; of an object of zarr-python only their bytes
    come from its store, or from the files if the store is a directory.

    Args:
        where: A directory, a zip file (nothing is unpacked), a `ByteStore`, an array, a group or a
            store of zarr-python, or a session or a store of icechunk. The current content of the
            store is read, even if it has changed since it was opened.
    """
    if isinstance(where, ByteStore):
        return where
    if package_of(where) not in ("zarr", "icechunk"):
        path = a_path("path", where, error=SourceError)
        return ZipByteStore(path) if path.suffix.lower() == ".zip" else DirectoryStore(path)
    store, inside = getattr(where, "store", where), getattr(where, "path", "")
    if not hasattr(store, "list_dir"):
        raise SourceError(
            f"a {type(where).__name__} of {package_of(where)} is not an array, group or store: for "
            'an icechunk repository, pass open_source(repository.readonly_session("main").store)'
        )
    if type(store).__name__ == "LocalStore":
        return DirectoryStore(Path(store.root) / inside)
    return ZarrPythonStore(store, inside)


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


# -- arrays and groups


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group of a store.

    Attributes:
        path: The path of the node in the store, ``""`` for the root.
        metadata_key: The object that holds its metadata.
        array: The metadata of an array; None for a group.
        attributes: The user's attributes.
    """

    path: str
    metadata_key: str
    array: ArrayMetadata | None
    attributes: Attributes


def read_node(store: ByteStore, path: str) -> Node | None:
    """Return the node at ``path``, or None if there is none."""
    prefix = f"{path}/" if path else ""
    try:
        return _version_3(store, path, prefix) or _version_2(store, path, prefix)
    except BadMetadata as error:
        raise SourceError(
            f"the metadata of {store.name(path)} cannot be used: {error}; "
            "restore it from a copy, or create the array again"
        ) from error


def kind_of_store(store: ByteStore) -> str | None:
    """Return "anndata" if anndata wrote the store, "zarr" for any other Zarr, None for neither."""
    node = read_node(store, "")
    if node is None:
        return None
    return "anndata" if node.attributes.get("encoding-type") == "anndata" else "zarr"


def array_paths(store: ByteStore) -> list[str]:
    """Return the paths of all arrays of a store, also in subgroups, in order.

    A store that cannot list its objects needs consolidated metadata.
    """
    known = _consolidated(store)
    return sorted(_listed(store) if known is None else known)


def image_levels(store: ByteStore, group: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the levels of the OME-Zarr image in a group, and the names of its axes.

    The metadata of an image (versions 0.1 to 0.5) is in the group that has its levels. Both are
    empty if there is no image.
    """
    node = read_node(store, group)
    return _image_of(node.attributes if node is not None else {})


def _image_of(attributes: Attributes) -> tuple[list[str], tuple[str, ...]]:
    """Return the paths of levels, and the names of axes, of the first image.

    >>> _image_of({"multiscales": [{"datasets": [{"path": "0"}], "axes": [{"name": "z"}, "y"]}]})
    (['0'], ('z', 'y'))
    """
    inside = attributes.get("ome")  # of version 0.5
    images = (inside if isinstance(inside, dict) else attributes).get("multiscales")
    image = images[0] if isinstance(images, list) and images else None
    if not isinstance(image, dict):
        return [], ()
    levels: list[Any] = [each.get("path") for each in _dicts(image.get("datasets"))]
    named = image.get("axes", list("tczyx"))  # versions 0.1 and 0.2 always have these five
    names: list[Any] = [
        each.get("name") if isinstance(each, dict) else each for each in named or ()
    ]
    if not all(isinstance(each, str) for each in [*levels, *names]):
        return [], ()
    return levels, tuple(names)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def check_path(path: object) -> str:
    """Return the path of a node, if it is inside of the store.

    >>> check_path("images/raw")
    'images/raw'
    """
    if not isinstance(path, str):
        raise SourceError(f"an array is named by its path in the store, got {path!r}")
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise SourceError(f"{path!r} is not the path of an array inside of the store")
    return path


def _version_3(store: ByteStore, path: str, prefix: str) -> Node | None:
    key = f"{prefix}zarr.json"
    metadata = _json(store, key)
    if metadata is None:
        return None
    kind = metadata.get("node_type")
    if kind == "array":
        array = metadata_v3(metadata)
        return Node(path, key, array, array.attributes)
    if kind != "group" or metadata.get("zarr_format") != 3:
        raise BadMetadata('zarr_format must be 3, and node_type "array" or "group"')
    return Node(path, key, None, _attributes(metadata.get("attributes")))


def _version_2(store: ByteStore, path: str, prefix: str) -> Node | None:
    for key in (f"{prefix}.zarray", f"{prefix}.zgroup"):
        metadata = _json(store, key)
        if metadata is not None:
            attributes = _attributes(_json(store, f"{prefix}.zattrs"))
            is_array = key.endswith(".zarray")
            array = metadata_v2(metadata, attributes) if is_array else None
            if not is_array and metadata.get("zarr_format") != 2:
                raise BadMetadata("zarr_format must be 2")
            return Node(path, key, array, attributes)
    return None


def _attributes(found: object) -> Attributes:
    if found is not None and not isinstance(found, dict):
        raise BadMetadata(f"attributes must be a JSON object, got {type(found).__name__}")
    return found or {}


def _consolidated(store: ByteStore) -> list[str] | None:
    """Return the paths of arrays in consolidated metadata, or None if there is none."""
    group = _json(store, "zarr.json")
    if group is not None:
        found = group.get("consolidated_metadata")
        nodes = found.get("metadata") if isinstance(found, dict) else None
        if not isinstance(nodes, dict):
            return None
        kinds = {n: node.get("node_type") for n, node in nodes.items() if isinstance(node, dict)}
        return [check_path(name) for name, kind in kinds.items() if kind == "array"]
    entries = (_json(store, ".zmetadata") or {}).get("metadata")
    if not isinstance(entries, dict):
        return None
    arrays = [key.removesuffix("/.zarray") for key in entries if key.endswith("/.zarray")]
    return [check_path(name) for name in arrays]


def _listed(store: ByteStore) -> Iterator[str]:
    """Yield the paths of arrays by listing; folders without metadata are searched too."""
    waiting, seen = [""], 0
    while waiting:
        folder = waiting.pop()
        prefix = f"{folder}/" if folder else ""
        for name in store.children(folder):
            path = f"{prefix}{name}"
            node = read_node(store, path)
            seen += 1
            if node is not None and node.array is not None:
                yield path
            elif path.count("/") >= MOST_DEPTH or seen > MOST_NODES:
                raise SourceError(
                    f"{store.name('')} has more than {MOST_NODES:,} folders or {MOST_DEPTH} "
                    "levels of them: name its arrays with open_source(..., fields=[...])"
                )
            else:
                waiting.append(path)


def _json(store: ByteStore, key: str) -> dict[str, Any] | None:
    def allocate(nbytes: int) -> Bytes:
        if nbytes > MOST_METADATA_BYTES:
            raise SourceError(f"{store.name(key)} has {nbytes:,} bytes: it is not metadata")
        return new_memory(nbytes)

    raw = store.fetch(key, allocate)
    if raw is None:
        return None
    try:
        parsed = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{store.name(key)} is not valid JSON: restore the file") from error
    if not isinstance(parsed, dict):
        raise SourceError(f"{store.name(key)} is not a JSON object: restore the file")
    return parsed
