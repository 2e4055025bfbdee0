"""The hierarchy of a Zarr store: which arrays and groups it has, and what their metadata say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import SourceError
from penstock.sources.scratch import Bytes
from penstock.sources.zarr.attributes import Attributes
from penstock.sources.zarr.metadata import ArrayMetadata, BadMetadata, metadata_v2, metadata_v3
from penstock.sources.zarr.stored import StoredBytes, new_memory

MOST_METADATA_BYTES = 1 << 28  # consolidated metadata of a large store has some megabytes
MOST_DEPTH = 32
MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group of a store.

    Attributes:
        path: Of the node in the store, ``""`` for the root.
        metadata_key: The object that holds its metadata.
        array: What the metadata of an array say; None for a group.
        attributes: The user's attributes.
    """

    path: str
    metadata_key: str
    array: ArrayMetadata | None
    attributes: Attributes


def read_node(stored: StoredBytes, path: str) -> Node | None:
    """The node at ``path``; None where there is none."""
    prefix = f"{path}/" if path else ""
    try:
        return _version_3(stored, path, prefix) or _version_2(stored, path, prefix)
    except BadMetadata as error:
        raise SourceError(
            f"the metadata of {stored.name(path)} cannot be used: {error}; "
            "restore it from a copy, or create the array again"
        ) from error


def array_paths(stored: StoredBytes) -> list[str]:
    """Paths of all arrays below a group, those of its subgroups too, in order.

    A store that cannot list its objects needs consolidated metadata.
    """
    known = _consolidated(stored)
    return sorted(_listed(stored) if known is None else known)


def check_path(path: object) -> str:
    """The path of a node, if it stays inside of the store.

    >>> check_path("images/raw")
    'images/raw'
    """
    if not isinstance(path, str):
        raise SourceError(f"an array is named by its path in the store, got {path!r}")
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise SourceError(f"{path!r} is not the path of an array inside of the store")
    return path


def _version_3(stored: StoredBytes, path: str, prefix: str) -> Node | None:
    key = f"{prefix}zarr.json"
    metadata = _json(stored, key)
    if metadata is None:
        return None
    kind = metadata.get("node_type")
    if kind == "array":
        array = metadata_v3(metadata)
        return Node(path, key, array, array.attributes)
    if kind != "group" or metadata.get("zarr_format") != 3:
        raise BadMetadata('zarr_format must be 3, and node_type "array" or "group"')
    return Node(path, key, None, _attributes(metadata.get("attributes")))


def _version_2(stored: StoredBytes, path: str, prefix: str) -> Node | None:
    for key in (f"{prefix}.zarray", f"{prefix}.zgroup"):
        metadata = _json(stored, key)
        if metadata is not None:
            attributes = _attributes(_json(stored, f"{prefix}.zattrs"))
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


def _consolidated(stored: StoredBytes) -> list[str] | None:
    """Paths of arrays from consolidated metadata, version 3 or 2; None where there are none."""
    group = _json(stored, "zarr.json")
    if group is not None:
        found = group.get("consolidated_metadata")
        nodes = found.get("metadata") if isinstance(found, dict) else None
        if not isinstance(nodes, dict):
            return None
        kinds = {n: node.get("node_type") for n, node in nodes.items() if isinstance(node, dict)}
        return [check_path(name) for name, kind in kinds.items() if kind == "array"]
    entries = (_json(stored, ".zmetadata") or {}).get("metadata")
    if not isinstance(entries, dict):
        return None
    arrays = [key.removesuffix("/.zarray") for key in entries if key.endswith("/.zarray")]
    return [check_path(name) for name in arrays]


def _listed(stored: StoredBytes) -> Iterator[str]:
    """Paths of arrays, found by listing; folders without metadata are looked into too."""
    waiting, seen = [""], 0
    while waiting:
        folder = waiting.pop()
        prefix = f"{folder}/" if folder else ""
        for name in stored.children(folder):
            path = f"{prefix}{name}"
            node = read_node(stored, path)
            seen += 1
            if node is not None and node.array is not None:
                yield path
            elif path.count("/") >= MOST_DEPTH or seen > MOST_NODES:
                raise SourceError(
                    f"{stored.name('')} has more than {MOST_NODES:,} folders or {MOST_DEPTH} "
                    "levels of them: name its arrays with open_source(..., fields=[...])"
                )
            else:
                waiting.append(path)


def _json(stored: StoredBytes, key: str) -> dict[str, Any] | None:
    def room(nbytes: int) -> Bytes:
        if nbytes > MOST_METADATA_BYTES:
            raise SourceError(f"{stored.name(key)} has {nbytes:,} bytes: it is not metadata")
        return new_memory(nbytes)

    raw = stored.fetch(key, room)
    if raw is None:
        return None
    try:
        parsed = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{stored.name(key)} is not valid JSON: restore the file") from error
    if not isinstance(parsed, dict):
        raise SourceError(f"{stored.name(key)} is not a JSON object: restore the file")
    return parsed
