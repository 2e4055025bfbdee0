"""Any other array, through zarr-python: other codecs, transposes, filters, structured dtypes."""

from __future__ import annotations

import lzma
import os
import threading
import warnings
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.base import Field
from penstock.sources.fingerprints import digest, row_bytes, sampled_blocks
from penstock.sources.zarr.grid import Crop, sample_shape
from penstock.sources.zarr.stored import Directory, StoredBytes

Rows = npt.NDArray[np.generic]

# what codecs raise at bytes they did not write
UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError),
    *(RuntimeError, TypeError, ValueError, lzma.LZMAError, zlib.error),
)

_LOCKS: dict[int, threading.Lock] = {}


def check_axis(shape: tuple[int, ...], axis: int, name: str) -> None:
    """Refuse an axis of samples that the array does not have.

    >>> check_axis((10, 3), 1, "images")
    """
    if not 0 <= axis < len(shape):
        raise SourceError(
            f"array {name} has shape {shape}: axis={axis} of samples must be one of its axes, "
            f"from 0 to {len(shape) - 1}"
        )


class _RustThreads:
    """Which process has started the threads of ``zarrs``; they do not exist in its children."""

    pid: int | None = None

    @classmethod
    def pipeline(cls) -> str | None:
        """The codec pipeline to ask for here, None for zarr-python's own."""
        try:
            optional("zarrs", extra="zarr")
        except ImportError:
            return None
        cls.pid = cls.pid or os.getpid()
        return "zarrs.ZarrsCodecPipeline" if cls.pid == os.getpid() else None


class GenericArray:
    """One array read by zarr-python, with the ``zarrs`` codec pipeline where that is possible."""

    reader = "zarr-python"

    def __init__(
        self, stored: StoredBytes, key: str, axis: int, why: str, crop: Crop | None = None
    ) -> None:
        self._stored, self._key, self._axis, self.why = stored, key, axis, why
        self._opened: tuple[int, Any] | None = None
        array = _open(stored, key, pipeline=None)
        shape = tuple(array.shape)
        check_axis(shape, axis, stored.name(key))
        self._crop = crop or tuple((0, n) for n in shape)
        self._stored_dtype = np.dtype(array.dtype)
        if self._stored_dtype.hasobject or self._stored_dtype.kind == "T":
            raise SourceError(
                f"array {stored.name(key)} holds items of variable size ({array.dtype}): "
                "choose other arrays with fields=[...]"
            )
        self.samples = shape[axis]
        dtype = self._stored_dtype.newbyteorder("=")
        self.field = Field(sample_shape(shape, axis, self._crop), dtype)
        self.chunk_samples = int(array.chunks[axis])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with samples ``start:stop``, its first axis being that of samples."""
        spans = [*self._crop[: self._axis], (start, stop), *self._crop[self._axis + 1 :]]
        chosen = tuple(slice(first, last) for first, last in spans)
        as_stored = self._axis == 0 and self.field.dtype == self._stored_dtype
        if as_stored and out.flags.c_contiguous:
            self._select(chosen, out)
            return
        rows = np.empty([last - first for first, last in spans], self._stored_dtype)
        self._select(chosen, rows)
        np.copyto(out, np.moveaxis(rows, self._axis, 0))

    def _select(self, chosen: tuple[slice, ...], into: Rows) -> None:
        if not into.size:
            return
        buffer = optional("zarr.buffer", extra="zarr").cpu.NDBuffer(into)
        try:
            self._array().get_basic_selection(chosen, out=buffer)
        except UNREADABLE as error:
            name, samples = self._stored.name(self._key), chosen[self._axis]
            raise SourceError(
                f"zarr-python cannot read {name} at samples {samples.start}:{samples.stop}: {error}"
            ) from error

    def view(self, start: int, stop: int) -> Rows | None:
        """None: what zarr-python decodes cannot be looked at in place."""
        return None

    def fingerprint(self) -> str:
        """Identity of the array: shape, dtype, chunking and a few samples (decoded)."""
        facts = [self.samples, self._crop, self._stored_dtype.str, self.chunk_samples, self._axis]
        row = np.empty((1, *self.field.shape), self.field.dtype)
        parts = []
        for sample in sampled_blocks(self.samples):
            self.read(sample, sample + 1, row)
            parts.append(row_bytes(row))
        return digest(facts, parts)

    def _array(self) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            dtype = self.field.dtype
            # zarrs would open its own connections to a server, without our patience
            local = isinstance(self._stored, Directory)
            plain = local and dtype == self._stored_dtype and dtype.kind in "biufc"
            pipeline = _RustThreads.pipeline() if plain else None
            self._opened = (os.getpid(), _open(self._stored, self._key, pipeline))
        return self._opened[1]


def _opening() -> threading.Lock:
    """One opening at a time: settings are global. Per process: a fork may not inherit it locked."""
    return _LOCKS.setdefault(os.getpid(), threading.Lock())


def _open(stored: StoredBytes, key: str, pipeline: str | None) -> Any:
    zarr = optional("zarr", extra="zarr")
    settings = {} if pipeline is None else {"codec_pipeline.path": pipeline}
    try:
        # the pipeline is chosen when an array is opened; the setting is back at once
        with _opening(), zarr.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how zarrs would do something is nothing to act on
            return zarr.open_array(stored.zarr_store(), path=key.strip("/"), mode="r")
    except UNREADABLE as error:
        raise SourceError(f"zarr-python cannot open {stored.name(key)}: {error}") from error
