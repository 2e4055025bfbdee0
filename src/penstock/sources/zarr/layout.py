"""How one Zarr array is stored: enough to find, check and decode any of its chunks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from penstock.sources.zarr.codecs import CodecChain, NotDirect


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """How the name of a chunk's file is spelled.

    >>> ChunkKeys("c/", "/")((2, 0)), ChunkKeys("", ".")((2, 0))
    ('c/2/0', '2.0')
    """

    prefix: str
    separator: str

    def __call__(self, place: tuple[int, ...]) -> str:
        """The file of the chunk (or shard) at ``place`` in the grid."""
        return self.prefix + self.separator.join(map(str, place))


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Several chunks in one file, and where its index of them is."""

    chunks_per_shard: tuple[int, ...]
    index_at_end: bool
    index_checksum: bool

    @property
    def index_bytes(self) -> int:
        """Size of the index: offset and length of each chunk, then perhaps a checksum."""
        return 16 * prod(self.chunks_per_shard) + 4 * self.index_checksum


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Shape, dtype, chunks, file names, fill value and codecs of an array that is read directly."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    chunks: tuple[int, ...]
    keys: ChunkKeys
    fill: np.generic
    codecs: CodecChain
    shards: ShardLayout | None = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk; the last ones are stored whole too, with padding."""
        return prod(self.chunks) * self.dtype.itemsize

    @property
    def is_raw(self) -> bool:
        """Whether stored bytes are the array's bytes."""
        return self.codecs.compressor is None and not self.codecs.checksum


def plain_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype, if its stored bytes can be used as they are.

    >>> plain_dtype(np.dtype("<f4"))
    dtype('float32')
    """
    if dtype.kind not in "biufcmM":
        raise NotDirect(f"dtype {dtype}")
    if not dtype.isnative:
        raise NotDirect("byte order")
    return dtype


def fill_value(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    """The value of samples in missing chunks, from its JSON form.

    >>> fill_value("NaN", np.dtype("f4")), fill_value(None, np.dtype("i2"))
    (np.float32(nan), np.int16(0))
    """
    if stored is None:
        stored = "NaT" if dtype.kind in "mM" else 0
    if isinstance(stored, list) and dtype.kind == "c":
        stored = complex(*(float(part) for part in stored))
    if isinstance(stored, str) and stored not in ("NaN", "Infinity", "-Infinity", "NaT"):
        raise NotDirect(f"fill value {stored!r}")
    try:
        if dtype.kind in "mM" and stored != "NaT":
            stored = int(str(stored))
        filled = np.zeros(1, np.int64).view(dtype) if dtype.kind in "mM" else np.empty(1, dtype)
        filled[0] = stored
    except (ValueError, TypeError, OverflowError) as error:
        raise NotDirect(f"fill value {stored!r}") from error
    value: np.generic = filled[0]
    return value
