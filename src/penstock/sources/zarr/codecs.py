"""Decoding of a chunk into the output: one decompression, checked before and after."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from penstock.extras import optional
from penstock.metrics import Probe
from penstock.sources.thread_buffers import Bytes


class BadChunk(ValueError):
    """The stored bytes of a chunk are wrong; the message says how."""


class NotDirect(Exception):
    """The reason why an array is read by zarr-python, not directly."""


@dataclass(frozen=True, slots=True)
class CodecChain:
    """An optional compressor, then an optional crc32c checksum: the codecs of most arrays.

    >>> out = np.empty(3, np.uint8)
    >>> CodecChain("zlib", checksum=False).decode(np.frombuffer(zlib.compress(b"abc"), "u1"), out)
    >>> out.tobytes()
    b'abc'
    """

    compressor: str | None
    checksum: bool

    def decode(self, stored: Bytes, out: Bytes) -> None:
        """Fill ``out`` completely with decoded bytes, or raise ``BadChunk``."""
        with Probe("decode"):
            if self.checksum:
                stored = _verified(stored)
            if self.compressor is None:
                _copy(stored, out)
            else:
                _DECODERS[self.compressor](stored, out)

    def most_stored_bytes(self, decoded_bytes: int) -> int:
        """Return more than any encoder writes: a larger file is refused before it is read."""
        if self.compressor is None:
            return decoded_bytes + 4 * self.checksum
        return decoded_bytes + decoded_bytes // 8 + (1 << 16)


def compressor_named(name: str) -> str:
    """Return the compressor for a codec name of Zarr version 2 or 3.

    >>> compressor_named("numcodecs.lz4")
    'lz4'
    """
    known = name.removeprefix("numcodecs.")
    if known not in _DECODERS:
        raise NotDirect(f"codec {name}")
    return known


def verify_checksum(body: Bytes, checksum: Bytes) -> None:
    """Raise ``BadChunk`` unless ``checksum`` is the crc32c of ``body``."""
    crc32c = optional("google_crc32c", extra="zarr")
    if crc32c.value(body) != int.from_bytes(checksum.tobytes(), "little"):
        raise BadChunk("its crc32c checksum does not match")


def _verified(stored: Bytes) -> Bytes:
    if stored.size < 4:
        raise BadChunk(f"{stored.size} bytes are too few for a checksum")
    verify_checksum(stored[:-4], stored[-4:])
    return stored[:-4]


def _check_size(found: int, out: Bytes, modulo: int | None = None) -> None:
    if found != (out.size if modulo is None else out.size % modulo):
        raise BadChunk(f"it holds {found} bytes where the chunk has {out.size}")


def _copy(stored: Bytes, out: Bytes) -> None:
    _check_size(stored.size, out)
    if stored is not out:  # a raw chunk is read straight into the output
        np.copyto(out, stored)


def _decompressed(decompress: Callable[[Bytes, Bytes], object], stored: Bytes, out: Bytes) -> None:
    try:
        decompress(stored, out)
    except (RuntimeError, ValueError) as error:
        raise BadChunk(str(error)) from error


@cache
def _blosc() -> Any:
    blosc = optional("numcodecs.blosc", extra="zarr")
    if blosc.use_threads is None:
        # Blosc's own pool has one global lock and does not survive a fork; our threads are the
        # parallelism, and its other mode releases the GIL and shares nothing.
        blosc.use_threads = False
    return blosc


def _decode_blosc(stored: Bytes, out: Bytes) -> None:
    # the header is checked first, so that nothing is ever written past the end of the output
    if stored.size < 16:
        raise BadChunk(f"{stored.size} bytes are too few for a blosc chunk")
    nbytes, _, cbytes = stored[4:16].view("<u4").tolist()
    _check_size(nbytes, out)
    if cbytes != stored.size:
        raise BadChunk(f"it has {stored.size} of {cbytes} compressed bytes")
    _decompressed(_blosc().decompress, stored, out)


def _decode_lz4(stored: Bytes, out: Bytes) -> None:
    if stored.size < 4:
        raise BadChunk(f"{stored.size} bytes are too few for an lz4 chunk")
    _check_size(int.from_bytes(stored[:4].tobytes(), "little"), out)
    _decompressed(optional("numcodecs.lz4", extra="zarr").decompress, stored, out)


def _decode_zstd(stored: Bytes, out: Bytes) -> None:
    size = zstd_content_size(stored[:18].tobytes())
    if size is not None:
        _check_size(size, out)
    # a frame may leave out its size; given a destination, nothing is decoded past its end
    _decompressed(_zstd(), stored, out)


@cache
def _zstd() -> Callable[[Bytes, Bytes], object]:
    return optional("numcodecs.zstd", extra="zarr").decompress  # type: ignore[no-any-return]


def zstd_content_size(head: bytes) -> int | None:
    """Return the decoded size that a zstd frame declares, or None if it declares none.

    >>> zstd_content_size(bytes.fromhex("28b52ffd2003"))
    3
    """
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = head[4]
    single = descriptor >> 5 & 1
    width = (single, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or len(head) < start + width:
        return None
    return int.from_bytes(head[start : start + width], "little") + (256 if width == 2 else 0)


@cache
def _deflate() -> Any | None:
    try:
        return optional("deflate", extra="zarr")  # twice as fast as zlib on whole chunks
    except ImportError:
        return None


def _decode_gzip(stored: Bytes, out: Bytes) -> None:
    if stored.size < 18:
        raise BadChunk(f"{stored.size} bytes are too few for a gzip chunk")
    # the decoders stop after the first member of a file; its last bytes hold the size of the last
    _check_size(int.from_bytes(stored[-4:].tobytes(), "little"), out, modulo=1 << 32)
    _inflate(stored, out, fast="gzip_decompress", window_bits=31)


def _decode_zlib(stored: Bytes, out: Bytes) -> None:
    _inflate(stored, out, fast="zlib_decompress", window_bits=15)


def _inflate(stored: Bytes, out: Bytes, *, fast: str, window_bits: int) -> None:
    deflate = _deflate()
    if deflate is not None:
        try:
            whole = getattr(deflate, fast)(stored, out.size)
        except deflate.DeflateError:
            whole = None  # zlib explains what is wrong, or reads what deflate cannot
    if deflate is None or whole is None or len(whole) != out.size:
        whole = _inflate_with_zlib(stored, out.size, window_bits)
    _copy(np.frombuffer(whole, np.uint8), out)


def _inflate_with_zlib(stored: Bytes, size: int, window_bits: int) -> bytes:
    stream = zlib.decompressobj(window_bits)
    try:
        whole = stream.decompress(
            stored.data, size + 1
        )  # one byte more than wanted shows that there is too much
    except zlib.error as error:
        raise BadChunk(str(error)) from error
    if not stream.eof:
        raise BadChunk(f"the stream of {stored.size} bytes is not complete at {size} bytes")
    return whole


_DECODERS: dict[str, Callable[[Bytes, Bytes], None]] = {
    "blosc": _decode_blosc,
    "gzip": _decode_gzip,
    "lz4": _decode_lz4,
    "zlib": _decode_zlib,
    "zstd": _decode_zstd,
}
