"""Decoding of a chunk into the output: one decompression, checked before and after."""

from __future__ import annotations

import ctypes
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.extras import optional
from penstock.native import native
from penstock.sources.thread_buffers import Bytes

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]


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

    def decode(self, stored: Bytes, out: Bytes, wanted: int | None = None) -> None:
        """Fill ``out`` with decoded bytes, or raise ``BadChunk``.

        Args:
            stored: The stored bytes.
            out: The output, of the size of the chunk.
            wanted: How many of its first bytes are needed; all if None.
        """
        if self.checksum:
            stored = _verified(stored)
        if self.compressor is None:
            _copy(stored, out)
        elif self.compressor == "zstd":
            _decode_zstd(stored, out, out.size if wanted is None else wanted)
        else:
            _DECODERS[self.compressor](stored, out)

    def decoder(self) -> _Zstd | None:
        """Return an object that decodes several chunks in one call; None if there is none."""
        plain = self.compressor == "zstd" and not self.checksum
        return _zstd_native() if plain and native is not None else None

    def decodes_first(self, chunk_bytes: int) -> bool:
        """Return whether a chunk is decoded only up to the last byte that is needed."""
        large = self.compressor == "zstd" and chunk_bytes > ZSTD_BLOCK
        return large and _zstd_native() is not None

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
    if known != "zstd" and known not in _DECODERS:
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


def _decode_zstd(stored: Bytes, out: Bytes, wanted: int) -> None:
    native = _zstd_native()
    if native is None:
        _check_content(stored, out)
        # a frame may leave out its size; given a destination, nothing is decoded past its end
        _decompressed(optional("numcodecs.zstd", extra="zarr").decompress, stored, out)
    elif wanted + ZSTD_BLOCK < out.size and not (stored[4:5] & ZSTD_CHECKSUM).any():
        native.decode_first(stored, out, wanted)
    else:
        native.decode(stored, out)


def _check_content(stored: Bytes, out: Bytes) -> None:
    size = zstd_content_size(stored[:18].tobytes())
    if size is not None:
        _check_size(size, out)


ZSTD_BLOCK = 1 << 17  # most bytes that zstd decodes at a time
ZSTD_CHECKSUM = 4  # in the fifth byte of a frame: its last bytes are a checksum of all of it


class _Zstd(threading.local):
    """The library inside of numcodecs, with a context for each thread.

    The function of numcodecs makes a context for each chunk, which is a fifth of the time of a
    chunk of 48 KB, and always decodes a whole chunk.

    Raises:
        AttributeError: The library does not export its functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        size, address = ctypes.c_size_t, ctypes.c_void_p

        def function(name: str, found: Any, *arguments: Any) -> Any:
            each = library["ZSTD_" + name]  # a new object: other threads have their own
            each.restype, each.argtypes = found, arguments
            return each

        copied = (address, address, size, address, size)
        self._decode = function("decompressDCtx", size, *copied)
        self._address = ctypes.cast(self._decode, address).value
        self._next = function("decompressContinue", size, *copied)
        self._begin = function("decompressBegin", size, address)
        self._stored_bytes = function("nextSrcSizeToDecompress", size, address)
        self._is_error = function("isError", ctypes.c_uint, size)
        self._error = function("getErrorName", ctypes.c_char_p, size)
        self._memory = np.empty(function("estimateDCtxSize", size)(), np.uint8)
        new_context = function("initStaticDCtx", address, address, size)
        self._context = new_context(self._memory.ctypes.data, self._memory.size)

    def decode(self, stored: Bytes, out: Bytes) -> None:
        """Fill ``out``."""
        begin, into = stored.ctypes.data, out.ctypes.data
        done = self._decode(self._context, into, out.size, begin, stored.size)
        if done != out.size:
            _check_content(stored, out)
            _check_size(self._checked(done), out)

    def decode_all(
        self, stored: Bytes, begins: Numbers, sizes: Numbers, outs: Numbers, nbytes: int
    ) -> int:
        """Decode chunks of one size; return how many were decoded before an invalid one.

        Args:
            stored: The stored bytes of all chunks.
            begins: Where each begins.
            sizes: The bytes of each.
            outs: The address where each goes.
            nbytes: The bytes of a decoded chunk.
        """
        assert native is not None
        table = np.array([begins, sizes, outs], np.int64)
        where = table.ctypes.data
        return native.decode(
            self._address, self._context, stored.ctypes.data, where, where + 8 * len(outs),
            where + 16 * len(outs), nbytes, len(outs),
        )  # fmt: skip

    def decode_first(self, stored: Bytes, out: Bytes, wanted: int) -> None:
        """Fill at least the first ``wanted`` bytes of ``out``."""
        _check_content(stored, out)
        begin, into, done, at = stored.ctypes.data, out.ctypes.data, 0, 0
        self._checked(self._begin(self._context))
        while done < wanted:
            nbytes, left = self._stored_bytes(self._context), out.size - done
            if nbytes == 0:  # the chunk is in several frames
                return self.decode(stored, out)
            if nbytes > stored.size - at:
                raise BadChunk(f"its {stored.size} compressed bytes end too early")
            part = self._next(self._context, into + done, left, begin + at, nbytes)
            done, at = done + self._checked(part), at + nbytes
        return None

    def _checked(self, done: int) -> int:
        if self._is_error(done):
            raise BadChunk(self._error(done).decode())
        return done


@cache
def _zstd_native() -> _Zstd | None:
    try:
        return _Zstd(ctypes.CDLL(optional("numcodecs.zstd", extra="zarr").__file__))
    except (AttributeError, OSError):
        return None


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
}
