"""The metadata of one Zarr array, version 2 or 3: checked, then converted to a layout.

Wrong values that both readers depend on (shape, chunks, names of chunk files) raise `BadMetadata`.
What only the direct reader does not support is a `NotDirect` reason: zarr-python reads the array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from penstock.arguments import shown, whole_number
from penstock.sources.cf import Attributes, dimensions_v2
from penstock.sources.zarr.chunks import ArrayLayout, ChunkKeys, ShardLayout
from penstock.sources.zarr.codecs import CodecChain, NotDirect, compressor_named

Json = Mapping[str, Any]

MOST_DIMENSIONS = 32  # of an array of numpy 1.26
MOST_CHUNK_ITEMS = 1 << 40
DTYPES_V2 = re.compile(r"[<>|]([biufc]\d{1,2}|[mM]8\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])")
DTYPES_V3 = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
TIMES_V3 = {"numpy.datetime64": "<M8", "numpy.timedelta64": "<m8"}
KNOWN_V3 = (
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
    "consolidated_metadata",
)


class BadMetadata(ValueError):
    """The metadata of an array is wrong; the message says how."""


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """The metadata of one array.

    Attributes:
        shape: The shape of the whole array.
        layout: How its chunks are stored, or why the direct reader cannot read them.
        fill_value: As in the JSON text.
        dimensions: A name for each axis (None for an axis without), or None.
        attributes: The user's attributes.
        version: The version of the Zarr format.
    """

    shape: tuple[int, ...]
    layout: ArrayLayout | NotDirect
    fill_value: object
    dimensions: tuple[str | None, ...] | None
    attributes: Attributes
    version: int


def metadata_v2(metadata: Json, attributes: Attributes) -> ArrayMetadata:
    """Return the metadata of an array from its ``.zarray`` and ``.zattrs``.

    >>> array = metadata_v2({"zarr_format": 2, "shape": [9, 2], "chunks": [4, 2], "dtype": "<f4",
    ...     "order": "C", "fill_value": None, "filters": None, "compressor": None}, {})
    >>> array.layout.chunk_bytes
    32
    """
    _require(metadata, 2, "shape chunks dtype compressor fill_value order filters")
    shape = _sizes("shape", metadata["shape"], minimum=0)
    chunks = _chunks("chunks", metadata["chunks"], shape)
    keys = ChunkKeys("", _separator(metadata.get("dimension_separator", ".")))
    compressor = metadata["compressor"]
    if compressor is not None and not isinstance(_section("compressor", compressor).get("id"), str):
        raise BadMetadata(f"compressor must have an id, got {shown(compressor)}")
    try:
        layout: ArrayLayout | NotDirect = _layout_v2(metadata, shape, chunks, keys)
    except NotDirect as reason:
        layout = reason
    dimensions = dimensions_v2(attributes, len(shape))
    return ArrayMetadata(shape, layout, metadata["fill_value"], dimensions, attributes, 2)


def metadata_v3(metadata: Json) -> ArrayMetadata:
    """Return the metadata of an array from its ``zarr.json``."""
    _require(metadata, 3, "shape data_type chunk_grid chunk_key_encoding fill_value codecs")
    shape = _sizes("shape", metadata["shape"], minimum=0)
    grid, options = _named("chunk_grid", metadata["chunk_grid"])
    chunks = _chunks("chunk_shape", options.get("chunk_shape"), shape) if grid == "regular" else ()
    keys = _keys_v3(*_named("chunk_key_encoding", metadata["chunk_key_encoding"]))
    codecs = metadata["codecs"]
    if not isinstance(codecs, list) or not codecs:
        raise BadMetadata(f"codecs must be a list of codecs, got {shown(codecs)}")
    chain = [_named("codecs", codec) for codec in codecs]
    try:
        if grid != "regular":
            raise NotDirect(f"{grid} chunk grid")
        if isinstance(keys, NotDirect):
            raise keys
        layout: ArrayLayout | NotDirect = _layout_v3(metadata, shape, chunks, keys, chain)
    except NotDirect as reason:
        layout = reason
    attributes = _section("attributes", metadata.get("attributes") or {})
    dimensions = _dimensions(metadata.get("dimension_names"), len(shape))
    return ArrayMetadata(shape, layout, metadata["fill_value"], dimensions, attributes, 3)


def _layout_v2(
    metadata: Json, shape: tuple[int, ...], chunks: tuple[int, ...], keys: ChunkKeys
) -> ArrayLayout:
    if metadata["order"] not in ("C", "F"):
        raise BadMetadata(f'order must be "C" or "F", got {shown(metadata["order"])}')
    if metadata["order"] == "F" and len(shape) > 1:
        raise NotDirect("Fortran order")
    if metadata["filters"]:
        raise NotDirect("filters")
    if not isinstance(metadata["dtype"], str) or not DTYPES_V2.fullmatch(metadata["dtype"]):
        raise NotDirect(f"dtype {shown(metadata['dtype'])}")
    dtype = plain_dtype(_numpy_dtype(metadata["dtype"]))
    compressor = metadata["compressor"]
    codecs = CodecChain(compressor and compressor_named(compressor["id"]), checksum=False)
    fill = fill_value(metadata["fill_value"], dtype, version=2)
    return ArrayLayout(shape, dtype, chunks, keys, fill, codecs)


def _layout_v3(
    metadata: Json,
    shape: tuple[int, ...],
    outer: tuple[int, ...],
    keys: ChunkKeys,
    chain: Sequence[tuple[str, Json]],
) -> ArrayLayout:
    if metadata.get("storage_transformers"):
        raise NotDirect("storage transformers")
    unknown = sorted(set(metadata) - set(KNOWN_V3))
    if unknown:  # an extension: zarr-python knows whether it may be ignored
        raise NotDirect(f"metadata key {unknown[0]!r}")
    dtype = _dtype_v3(metadata["data_type"])
    shards, chunks, inner = _unsharded(chain, outer)
    fill = fill_value(metadata["fill_value"], dtype, version=3)
    return ArrayLayout(shape, dtype, chunks, keys, fill, _chain(inner, dtype), shards)


def _dtype_v3(data_type: object) -> np.dtype[np.generic]:
    if isinstance(data_type, str) and DTYPES_V3.fullmatch(data_type):
        return np.dtype(data_type)
    name, options = _named("data_type", data_type)
    unit, factor = options.get("unit"), options.get("scale_factor")
    if name not in TIMES_V3 or not isinstance(factor, int) or isinstance(factor, bool):
        raise NotDirect(f"dtype {name}")
    text = f"{TIMES_V3[name]}[{factor}{unit}]"
    if not DTYPES_V2.fullmatch(text):
        raise NotDirect(f"dtype {text}")
    return _numpy_dtype(text)


def _numpy_dtype(text: str) -> np.dtype[np.generic]:
    try:
        return np.dtype(text)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotDirect(f"dtype {text}") from error


def _keys_v3(name: str, options: Json) -> ChunkKeys | NotDirect:
    separator = _separator(options.get("separator", "." if name == "v2" else "/"))
    if name == "default":
        return ChunkKeys(f"c{separator}", separator)
    if name == "v2":
        return ChunkKeys("", separator)
    return NotDirect(f"chunk key encoding {name}")


def _unsharded(
    chain: Sequence[tuple[str, Json]], outer: tuple[int, ...]
) -> tuple[ShardLayout | None, tuple[int, ...], Sequence[tuple[str, Json]]]:
    """Return the sharding, the shape of the inner chunks, and their codecs."""
    name, options = chain[0]
    if name != "sharding_indexed":
        return None, outer, chain
    inner = _chunks("chunk_shape of sharding_indexed", options.get("chunk_shape"), outer)
    if any(a % b for a, b in zip(outer, inner, strict=True)):
        raise BadMetadata(f"shards of shape {outer} cannot be divided into chunks of {inner}")
    location = options.get("index_location", "end")
    if location not in ("start", "end"):
        raise BadMetadata(f'index_location must be "start" or "end", got {shown(location)}')
    codecs, index = options.get("codecs"), options.get("index_codecs")
    if not isinstance(codecs, list) or not isinstance(index, list) or not codecs or not index:
        raise BadMetadata("sharding_indexed needs codecs and index_codecs")
    index_chain = [_named("index_codecs", codec) for codec in index]
    names = [codec for codec, _ in index_chain]
    little = index_chain[0][1].get("endian") == "little"
    if len(chain) > 1 or names not in (["bytes"], ["bytes", "crc32c"]) or not little:
        raise NotDirect("unusual sharding")
    shards = ShardLayout(
        chunks_per_shard=tuple(a // b for a, b in zip(outer, inner, strict=True)),
        index_at_end=location == "end",
        index_checksum=names[-1] == "crc32c",
    )
    return shards, inner, [_named("codecs", codec) for codec in codecs]


def _chain(chain: Sequence[tuple[str, Json]], dtype: np.dtype[np.generic]) -> CodecChain:
    names = [name for name, _ in chain]
    if names[0] != "bytes":
        raise NotDirect(f"codec {names[0]}")
    if dtype.itemsize > 1 and chain[0][1].get("endian", "little") != "little":
        raise NotDirect("byte order")
    checksum = names[-1] == "crc32c"
    rest = names[1:-1] if checksum else names[1:]
    if len(rest) > 1:
        raise NotDirect(f"codecs {' + '.join(rest)}")
    return CodecChain(compressor_named(rest[0]) if rest else None, checksum)


# -- fill values


def plain_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype, if its stored bytes can be used as they are.

    >>> plain_dtype(np.dtype("<f4"))
    dtype('float32')
    """
    if dtype.kind not in "biufcmM":
        raise NotDirect(f"dtype {dtype}")
    if not dtype.isnative:
        raise NotDirect("byte order")
    return dtype


def fill_value(stored: object, dtype: np.dtype[np.generic], *, version: int) -> np.generic:
    """Return the value of samples in missing chunks, from its JSON form.

    Only forms that all readers interpret alike are accepted; the others are left to zarr-python.

    >>> fill_value("NaN", np.dtype("f4"), version=3), fill_value(None, np.dtype("i2"), version=2)
    (np.float32(nan), np.int16(0))
    """
    kind = dtype.kind
    if stored is None and version == 2:
        stored = {"m": "NaT", "M": "NaT", "b": False}.get(kind, 0)
    try:
        if kind in "mM":
            ticks = np.iinfo(np.int64).min if stored == "NaT" else stored
            return _values([ticks], np.dtype("i8")).view(dtype)[0]  # type: ignore[no-any-return]
        if kind == "c":
            parts = stored if isinstance(stored, list) and len(stored) == 2 else [stored, 0]
            found = _values(parts, np.dtype(f"f{dtype.itemsize // 2}"))
            return found.view(dtype)[0]  # type: ignore[no-any-return]
        return _values([stored], dtype)[0]  # type: ignore[no-any-return]
    except (ValueError, TypeError, OverflowError) as error:
        raise NotDirect(f"fill value {str(stored)[:60]!r}") from error


def _values(parts: Sequence[object], dtype: np.dtype[np.generic]) -> np.ndarray[Any, Any]:
    """Return values of JSON as an array; raise ``TypeError`` for one that is not of the dtype."""
    kinds = {"b": bool, "f": int | float | str}.get(dtype.kind, int)
    for each in parts:
        is_text = isinstance(each, str)
        if not isinstance(each, kinds) or (isinstance(each, bool) and dtype.kind != "b"):
            raise TypeError
        if is_text and each not in ("NaN", "Infinity", "-Infinity"):
            raise TypeError
    if dtype.kind != "f":
        return np.array(parts, dtype)  # OverflowError if one does not fit
    with np.errstate(over="ignore"):  # infinity, as in zarr-python
        return np.array([float(each) for each in parts]).astype(dtype)  # type: ignore[arg-type]


# -- checks of single values


def _require(metadata: Json, version: int, names: str) -> None:
    found = metadata.get("zarr_format")
    if found != version or isinstance(found, bool):
        raise BadMetadata(f"zarr_format must be {version}, got {shown(found)}")
    missing = [name for name in names.split() if name not in metadata]
    if missing:
        raise BadMetadata(f"there is no {' and no '.join(missing)}")


def _sizes(name: str, value: object, *, minimum: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BadMetadata(f"{name} must be a list of integers, got {shown(value)}")
    if len(value) > MOST_DIMENSIONS:
        raise BadMetadata(f"{name} has {len(value)} dimensions, at most {MOST_DIMENSIONS} are read")
    return tuple(
        whole_number(f"{name}[{axis}]", size, minimum=minimum, error=BadMetadata)
        for axis, size in enumerate(value)
    )


def _chunks(name: str, value: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    chunks = _sizes(name, value, minimum=1)
    if len(chunks) != len(shape):
        raise BadMetadata(f"{name} {list(chunks)} does not fit the shape {list(shape)}")
    if prod(chunks) > MOST_CHUNK_ITEMS:
        raise BadMetadata(f"{name} {list(chunks)} has more items than memory can hold")
    return chunks


def _separator(value: object) -> str:
    # anything else could name files outside of the store
    if value not in (".", "/"):
        raise BadMetadata(f'the separator of chunk names must be "." or "/", got {shown(value)}')
    return str(value)


def _named(key: str, value: object) -> tuple[str, Json]:
    """Return name and configuration of an extension point: an object, or only its name."""
    if isinstance(value, str):
        return value, {}
    name = _section(key, value).get("name")
    if not isinstance(name, str):
        raise BadMetadata(f"{key} must have a name, got {shown(value)}")
    return name, _section(
        f"the configuration of {name}", _section(key, value).get("configuration", {})
    )


def _section(name: str, value: object) -> Json:
    if not isinstance(value, Mapping):
        raise BadMetadata(f"{name} must be a JSON object, got {shown(value)}")
    return value


def _dimensions(value: object, axes: int) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = value if isinstance(value, list) else [0]
    if len(names) != axes or not all(name is None or isinstance(name, str) for name in names):
        raise BadMetadata(f"dimension_names must name {axes} axes, got {shown(value)}")
    return tuple(names)
