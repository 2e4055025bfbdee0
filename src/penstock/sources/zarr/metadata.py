"""The metadata of a Zarr array, version 2 or 3, as a layout; or why zarr-python must read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.sources.zarr.codecs import CodecChain, NotDirect, compressor_named
from penstock.sources.zarr.layout import (
    ArrayLayout,
    ChunkKeys,
    ShardLayout,
    fill_value,
    plain_dtype,
)

Json = Mapping[str, Any]


def layout_v2(metadata: Json) -> ArrayLayout:
    """The layout that a ``.zarray`` describes.

    >>> layout_v2({"shape": [9, 2], "chunks": [4, 2], "dtype": "<f4", "order": "C",
    ...            "fill_value": None, "filters": None, "compressor": None}).chunk_bytes
    32
    """
    if metadata["order"] != "C" and len(metadata["shape"]) > 1:
        raise NotDirect("Fortran order")
    if metadata.get("filters"):
        raise NotDirect(f"filter {metadata['filters'][0].get('id')}")
    if not isinstance(metadata["dtype"], str):
        raise NotDirect("structured dtype")
    dtype = plain_dtype(np.dtype(metadata["dtype"]))
    compressor = metadata["compressor"]
    return ArrayLayout(
        shape=tuple(metadata["shape"]),
        dtype=dtype,
        chunks=tuple(metadata["chunks"]),
        keys=ChunkKeys("", metadata.get("dimension_separator", ".")),
        fill=fill_value(metadata["fill_value"], dtype),
        codecs=CodecChain(compressor and compressor_named(compressor["id"]), checksum=False),
    )


def layout_v3(metadata: Json) -> ArrayLayout:
    """The layout that a ``zarr.json`` describes."""
    if metadata.get("storage_transformers"):
        raise NotDirect("storage transformers")
    if metadata["chunk_grid"]["name"] != "regular":
        raise NotDirect(f"{metadata['chunk_grid']['name']} chunk grid")
    dtype = _dtype_v3(metadata["data_type"])
    outer = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
    shards, chunks, codecs = _unsharded(metadata["codecs"], outer)
    return ArrayLayout(
        shape=tuple(metadata["shape"]),
        dtype=dtype,
        chunks=chunks,
        keys=_keys_v3(metadata["chunk_key_encoding"]),
        fill=fill_value(metadata["fill_value"], dtype),
        codecs=_chain(codecs, dtype),
        shards=shards,
    )


def _dtype_v3(data_type: str | Json) -> np.dtype[np.generic]:
    if isinstance(data_type, str):
        try:
            return plain_dtype(np.dtype(data_type))
        except TypeError as error:
            raise NotDirect(f"dtype {data_type}") from error
    kinds = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}
    if data_type.get("name") not in kinds:
        raise NotDirect(f"dtype {data_type.get('name')}")
    unit = data_type["configuration"]
    return np.dtype(f"{kinds[data_type['name']]}[{unit['scale_factor']}{unit['unit']}]")


def _keys_v3(encoding: Json) -> ChunkKeys:
    name, options = encoding["name"], encoding.get("configuration", {})
    if name == "default":
        separator = options.get("separator", "/")
        return ChunkKeys(f"c{separator}", separator)
    if name == "v2":
        return ChunkKeys("", options.get("separator", "."))
    raise NotDirect(f"chunk key encoding {name}")


def _unsharded(
    codecs: Sequence[Json], outer: tuple[int, ...]
) -> tuple[ShardLayout | None, tuple[int, ...], Sequence[Json]]:
    """The sharding, the shape of the chunks that are decoded, and the codecs inside."""
    if codecs[0]["name"] != "sharding_indexed":
        return None, outer, codecs
    options = codecs[0]["configuration"]
    index = [codec["name"] for codec in options["index_codecs"]]
    little = options["index_codecs"][0].get("configuration", {}).get("endian") == "little"
    if len(codecs) > 1 or index not in (["bytes"], ["bytes", "crc32c"]) or not little:
        raise NotDirect("unusual sharding")
    inner = tuple(options["chunk_shape"])
    shards = ShardLayout(
        chunks_per_shard=tuple(a // b for a, b in zip(outer, inner, strict=True)),
        index_at_end=options.get("index_location", "end") == "end",
        index_checksum=index[-1] == "crc32c",
    )
    return shards, inner, options["codecs"]


def _chain(codecs: Sequence[Json], dtype: np.dtype[np.generic]) -> CodecChain:
    names = [codec["name"] for codec in codecs]
    if names[0] != "bytes":
        raise NotDirect(f"codec {names[0]}")
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    if dtype.itemsize > 1 and endian != "little":
        raise NotDirect("byte order")
    checksum = names[-1] == "crc32c"
    rest = names[1:-1] if checksum else names[1:]
    if len(rest) > 1:
        raise NotDirect(f"codecs {' + '.join(rest)}")
    return CodecChain(compressor_named(rest[0]) if rest else None, checksum)
