"""The arrays and groups of a Zarr store, and chunks that are missing from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import SourceError
from penstock.sources.cf import Attributes
from penstock.sources.storage import ByteStore, new_memory
from penstock.sources.thread_buffers import Bytes
from penstock.sources.zarr.metadata import ArrayMetadata, BadMetadata, metadata_v2, metadata_v3

MOST_METADATA_BYTES = 1 << 28  # consolidated metadata of a large store has some megabytes
MOST_DEPTH = 32
MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group of a store.

    Attributes:
        path: Of the node in the store, ``""`` for the root.
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


def is_zarr(store: ByteStore) -> bool:
    """Return whether the store holds a Zarr array or group."""
    return read_node(store, "") is not None


def is_anndata(store: ByteStore) -> bool:
    """Return whether anndata wrote the store."""
    node = read_node(store, "")
    return node is not None and node.attributes.get("encoding-type") == "anndata"


def array_paths(store: ByteStore) -> list[str]:
    """Return the paths of all arrays of a store, also in subgroups, in order.

    A store that cannot list its objects needs consolidated metadata.
    """
    known = _consolidated(store)
    return sorted(_listed(store) if known is None else known)


def image_levels(store: ByteStore, group: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the levels of the OME-Zarr image in a group, and the names of its axes.

    The metadata of an image is in the group around its levels, versions 0.1 to 0.5. Both are empty
    if there is no image.
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


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """The handling of chunks of one array that are not store.

    Attributes:
        store: Where the array is stored.
        metadata_key: The object that holds the array's metadata.
        refused: Whether a missing chunk is an error instead of the fill value.
    """

    store: ByteStore
    metadata_key: str
    refused: bool = False

    def report(self, key: str) -> None:
        """Report that the chunk in ``key`` is missing: an error if every chunk must be store."""
        if self.refused:
            raise SourceError(
                f"there is no chunk {self.store.name(key)}, and missing='error' was passed: "
                "restore it from a copy, or use missing='fill' to read fill values there"
            )

    def verify(self) -> None:
        """Raise ``SourceError`` if the array is gone: deleted, unmounted, or no longer served.

        Called once for each read with missing chunks, after them: if the metadata is found then,
        the store was there when the chunks were not, and fill values are right.
        """
        if self.store.fetch(self.metadata_key, new_memory) is None:
            raise SourceError(
                f"{self.store.name(self.metadata_key)} is gone, so the array's missing chunks are "
                "not fill values: check that the storage is mounted and the store still exists"
            )
