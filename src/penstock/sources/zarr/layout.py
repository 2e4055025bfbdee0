"""How one Zarr array is stored: enough to find, check and decode any of its chunks."""

from __future__ import annotations

from collections.abc import Callable
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


def fill_value(stored: object, dtype: np.dtype[np.generic], *, version: int) -> np.generic:
    """The value of samples in missing chunks, from its JSON form.

    Only the forms that every reader understands alike; zarr-python decides about the others.

    >>> fill_value("NaN", np.dtype("f4"), version=3), fill_value(None, np.dtype("i2"), version=2)
    (np.float32(nan), np.int16(0))
    """
    if stored is None and version == 2:
        stored = {"m": "NaT", "M": "NaT", "b": False}.get(dtype.kind, 0)
    try:
        return _FILLS[dtype.kind](stored, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise NotDirect(f"fill value {str(stored)[:60]!r}") from error


def _bool_fill(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    if not isinstance(stored, bool):
        raise TypeError
    return np.bool_(stored)


def _integer_fill(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    if isinstance(stored, bool) or not isinstance(stored, int):
        raise TypeError
    value: np.generic = np.array([stored], dtype)[0]  # OverflowError where it does not fit
    return value


def _float_fill(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    if isinstance(stored, bool) or not isinstance(stored, int | float | str):
        raise TypeError
    if isinstance(stored, str) and stored not in ("NaN", "Infinity", "-Infinity"):
        raise TypeError
    with np.errstate(over="ignore"):  # infinity, as in zarr-python
        value: np.generic = np.array([float(stored)]).astype(dtype)[0]
    return value


def _complex_fill(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    parts = stored if isinstance(stored, list) else [stored, 0]
    part = np.dtype(f"f{dtype.itemsize // 2}")
    real, imaginary = (_float_fill(each, part) for each in parts)
    value: np.generic = np.array([real, imaginary], part).view(dtype)[0]
    return value


def _time_fill(stored: object, dtype: np.dtype[np.generic]) -> np.generic:
    ticks = np.iinfo(np.int64).min if stored == "NaT" else stored
    value: np.generic = np.array([_integer_fill(ticks, np.dtype("i8"))]).view(dtype)[0]
    return value


_FILLS: dict[str, Callable[[object, np.dtype[np.generic]], np.generic]] = {
    "b": _bool_fill,
    "i": _integer_fill,
    "u": _integer_fill,
    "f": _float_fill,
    "c": _complex_fill,
    "m": _time_fill,
    "M": _time_fill,
}
