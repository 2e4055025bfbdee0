"""The arrays of a Zarr store: found by their metadata, each with the reader that suits it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from penstock.errors import SourceError
from penstock.sources.zarr.codecs import NotDirect
from penstock.sources.zarr.direct import DirectArray
from penstock.sources.zarr.generic import GenericArray, check_axis
from penstock.sources.zarr.grid import Crop
from penstock.sources.zarr.layout import ArrayLayout
from penstock.sources.zarr.metadata import layout_v2, layout_v3
from penstock.sources.zarr.stored import StoredBytes, new_memory

ZarrArray: TypeAlias = DirectArray | GenericArray


def is_zarr(stored: StoredBytes) -> bool:
    """Whether a Zarr array or group is stored here."""
    return any(_json(stored, name) is not None for name in ("zarr.json", ".zarray", ".zgroup"))


def open_arrays(
    stored: StoredBytes, *, fields: Sequence[str] | None, axis: int, direct: bool
) -> dict[str, ZarrArray]:
    """The one array as field ``""``, or the arrays of a group by their names."""
    if fields is None and _layout_at(stored, "") is not None:
        return {"": _opened(stored, "", axis, direct)}
    if not is_zarr(stored):
        raise SourceError(
            f"there is no Zarr array or group in {stored.name('')}: "
            "neither zarr.json nor .zarray nor .zgroup was found"
        )
    names = _arrays_below(stored) if fields is None else list(fields)
    if not names:
        raise SourceError(f"the Zarr group {stored.name('')} has no arrays: name one by its path")
    return {name: _opened(stored, f"{name}/", axis, direct) for name in names}


def open_cropped(stored: StoredBytes, *, axis: int, crop: Crop) -> ZarrArray:
    """The one array stored here, of which only a part along the other axes is wanted."""
    return _opened(stored, "", axis, True, crop)


def _arrays_below(stored: StoredBytes) -> list[str]:
    """Names of the arrays one level below: a store that cannot list needs consolidated metadata."""
    group = _json(stored, "zarr.json") or _json(stored, ".zmetadata") or {}
    nodes = (group.get("consolidated_metadata") or {}).get("metadata", {})
    if nodes:
        return sorted(
            n for n, node in nodes.items() if node["node_type"] == "array" and "/" not in n
        )
    if "metadata" in group:
        arrays = [key.removesuffix("/.zarray") for key in group["metadata"] if "/.zarray" in key]
        return sorted(name for name in arrays if "/" not in name)
    return [n for n in stored.children("") if _layout_at(stored, f"{n}/") is not None]


def _opened(
    stored: StoredBytes, prefix: str, axis: int, direct: bool, crop: Crop | None = None
) -> ZarrArray:
    layout = _layout_at(stored, prefix)
    if layout is None:
        raise SourceError(f"there is no Zarr array {stored.name(prefix)}")
    if isinstance(layout, ArrayLayout) and direct:
        check_axis(layout.shape, axis, stored.name(prefix))
        return DirectArray(stored, prefix, layout, axis, crop)
    why = str(layout) if isinstance(layout, NotDirect) else "asked for"
    return GenericArray(stored, prefix, axis, why, crop)


def _layout_at(stored: StoredBytes, prefix: str) -> ArrayLayout | NotDirect | None:
    """The layout of the array there, why it has none, or None where there is no array."""
    try:
        metadata = _json(stored, f"{prefix}zarr.json")
        if metadata is not None:
            return layout_v3(metadata) if metadata["node_type"] == "array" else None
        metadata = _json(stored, f"{prefix}.zarray")
        return None if metadata is None else layout_v2(metadata)
    except NotDirect as reason:
        return reason
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise SourceError(
            f"the metadata of {stored.name(prefix)} cannot be understood ({error!r}): "
            "it is damaged or not Zarr version 2 or 3"
        ) from error


def _json(stored: StoredBytes, key: str) -> dict[str, Any] | None:
    raw = stored.fetch(key, new_memory)
    if raw is None:
        return None
    try:
        parsed = json.loads(raw.tobytes())
    except ValueError as error:
        raise SourceError(f"{stored.name(key)} is not valid JSON: restore the file") from error
    if not isinstance(parsed, dict):
        raise SourceError(f"{stored.name(key)} is not a JSON object: restore the file")
    return parsed
