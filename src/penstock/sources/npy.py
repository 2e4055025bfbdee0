"""Samples in a ``.npy`` or binary file, read in place from its mapped pages."""

from __future__ import annotations

import io
import os
import warnings
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from penstock.arguments import whole_number
from penstock.errors import SourceError
from penstock.fingerprints import digest
from penstock.sources.base import BaseSource
from penstock.sources.contract import (
    Arrays,
    Field,
    Indices,
    Rows,
    checked_axis,
    sampled_rows,
)
from penstock.sources.storage import StoredFile, read_exactly, reading, stored_file

MOST_DIMENSIONS = 32  # of an array of numpy 1.26
TOKEN_HEADER_BYTES = 1024
HEADER_BYTES = 1 << 16  # read at once; headers have 128 bytes as a rule


class NpySource(BaseSource):
    """One array in a ``.npy`` file: ranges are read, single samples gathered from mapped pages.

    Big-endian data and Fortran order are supported through a converting copy; only data in the
    machine's own format can be viewed in place. If a file was written or replaced since it was
    opened, the next access is an error: its size, inode and modification time are compared. Two
    changes cannot be detected: one within the resolution of that time, and one of a view that was
    returned before. A file that shrinks during an access to its mapped pages ends the process
    (SIGBUS).

    Args:
        path: The file. One on object storage is read by ranges of bytes.
        along: The number of the axis of samples; on object storage, the first one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/x.npy", np.arange(6, dtype="f4").reshape(3, 2))
    ...     NpySource(folder + "/x.npy").view(1, 2)[""].tolist()
    [[2.0, 3.0]]
    """

    def __init__(self, path: str | os.PathLike[str] | StoredFile, *, along: int | str = 0) -> None:
        self._file = stored_file(path)
        self._header = self._read_header()
        shape, dtype = [*self._header.shape], self._header.dtype.newbyteorder("=")
        self._axis = checked_axis(self._file.name, len(shape), along)
        if self._axis and self._file.path is None:
            raise SourceError(
                f"{self._file.name} is read by ranges of bytes, got along={along!r}: save it with "
                "the axis of samples first, or as Zarr"
            )
        shape.insert(0, shape.pop(self._axis))
        super().__init__(shape[0], {"": Field(tuple(shape[1:]), dtype)}, self._file.name)
        self.in_flight = self._file.in_flight

    def _read_header(self) -> NpyHeader:
        file = self._file
        head = file.read_at(0, min(file.size, HEADER_BYTES)).tobytes()
        with reading(file.name, advice="write it again with numpy.save"):
            header = parse_header(io.BytesIO(head))
        if not header.shape or header.dtype.hasobject or not header.dtype.itemsize:
            raise SourceError(
                f"{file.name} holds {len(header.shape)} dimensions of dtype {header.dtype}: "
                "save an array of fixed-size items with a first axis of samples"
            )
        if file.size < header.nbytes:
            raise SourceError(
                f"{file.name} has {file.size} bytes but its header promises {header.nbytes}: "
                "the file is truncated; write or copy it again"
            )
        if file.path is None and header.fortran and len(header.shape) > 1:
            raise SourceError(
                f"{file.name} is in Fortran order, so a sample is scattered: save it again "
                "with numpy.save(path, numpy.ascontiguousarray(array))"
            )
        return header

    def fingerprint(self) -> str:
        """Return an identity of the data: shape, dtype, order and the bytes of a few blocks."""
        head = self._header
        rows = sampled_rows(len(self), self.block_samples, self._rows)
        facts = [list(head.shape), head.dtype.str, head.fortran]
        return digest([*facts, self._axis] if self._axis else facts, rows)

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        path = self._file.path if self._header.is_native and not self._axis else None
        for rows in out.values():
            if path is not None and rows.flags.c_contiguous and rows.size:
                offset = self._header.offset + start * self._fields[""].nbytes
                read_exactly(path, rows.reshape(-1).view(np.uint8), offset)
                self._file.verify()  # afterwards: the file must be the one that was opened
            else:
                np.copyto(rows, self._rows(start, stop))

    def _take(self, indices: Indices, out: Arrays) -> None:
        if self._file.path is None:
            super()._take(indices, out)
            return
        array: Any = self._rows(0, len(self))
        for rows in out.values():
            if self._header.is_native:
                np.take(array, indices, axis=0, out=rows, mode="clip")
            else:
                np.copyto(rows, array[indices])
        self._file.verify()  # also afterwards: pages change with the file

    def _view(self, start: int, stop: int) -> Arrays | None:
        # None where bytes must be fetched or swapped
        is_native = self._header.dtype == self._fields[""].dtype
        return {"": self._rows(start, stop)} if is_native and self._file.path else None

    def _rows(self, start: int, stop: int, name: str = "") -> Rows:
        """Return rows as they are stored: over mapped pages, or fetched."""
        head, each = self._header, self._fields[""].nbytes
        pages = self._file.mapped()
        if pages is not None:
            shape = head.shape[::-1] if head.fortran else head.shape
            array = np.ndarray(shape, head.dtype, pages, head.offset)
            return np.moveaxis(array.T if head.fortran else array, self._axis, 0)[start:stop]
        nbytes = each * (stop - start)
        raw = (
            self._file.read_at(head.offset + start * each, nbytes) if nbytes else np.empty(0, "u1")
        )
        return raw.view(head.dtype).reshape(stop - start, *head.shape[1:])


class BinarySource(NpySource):
    """Items of one dtype in a file without a header, such as the tokens of a ``.bin`` file.

    A sample is one token; ``source.windows(length + 1)`` gives the sequences to train on. The
    header of token files that llm.c and its successors write is recognised and left out.

    Args:
        path: The file.
        dtype: The dtype of the items: ``"uint16"`` for most tokenizers, ``"uint32"`` for a
            vocabulary of more than 65,536 tokens.
        shape: The shape of one sample; ``()`` for single items.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.arange(6, dtype="uint16").tofile(folder + "/train.bin")
    ...     BinarySource(folder + "/train.bin", dtype="uint16").view(1, 3)[""].tolist()
    [1, 2]
    """

    def __init__(
        self, path: str | os.PathLike[str], *, dtype: Any = None, shape: tuple[int, ...] = ()
    ) -> None:
        if not isinstance(shape, tuple | list):
            raise SourceError(f"shape must be a tuple of sizes, got {shape!r}")
        self._shape = tuple(whole_number("shape", n, minimum=1, error=SourceError) for n in shape)
        self._dtype = _item_dtype(path, dtype)
        super().__init__(path)

    def _read_header(self) -> NpyHeader:
        name, size = self._file.name, self._file.size
        head = self._file.read_at(0, min(size, TOKEN_HEADER_BYTES)).tobytes()
        begin = _token_header(name, head, size, self._dtype.itemsize)
        count, rest = divmod(size - begin, prod(self._shape) * self._dtype.itemsize)
        if rest or not count:
            raise SourceError(
                f"{name} has {size} bytes, which is not a whole number of samples of shape "
                f"{self._shape} of {self._dtype}: pass the dtype it was written with, or copy it "
                "again if it is truncated"
            )
        return NpyHeader((count, *self._shape), self._dtype, False, begin)


def _item_dtype(path: object, dtype: Any) -> np.dtype[np.generic]:
    if dtype is None:
        raise SourceError(
            f'{path} stores no dtype: pass its dtype, such as open_source(path, dtype="uint16")'
        )
    try:
        found: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise SourceError(f"dtype={dtype!r} is not a dtype of numpy") from error
    if found.hasobject or not found.itemsize:
        raise SourceError(f"dtype={dtype!r} has no fixed size: pass one such as 'uint16'")
    return found


def _token_header(name: str, head: bytes, size: int, itemsize: int) -> int:
    """Return the size of the header of llm.c, 256 int32 of which only three are set, or else 0.

    They are a magic number, a version and the number of tokens.
    """
    if len(head) < TOKEN_HEADER_BYTES or any(head[12:]):
        return 0
    tokens = int.from_bytes(head[8:12], "little")
    stored, rest = divmod(size - TOKEN_HEADER_BYTES, max(1, tokens))
    if rest or stored not in (1, 2, 4, 8):
        return 0
    if stored != itemsize:
        raise SourceError(
            f"{name} declares {tokens} tokens of {stored} bytes each: pass a dtype of "
            f"that size, such as dtype='uint{8 * stored}'"
        )
    return TOKEN_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Shape, dtype and order of the array in a ``.npy`` file, and the offset of its data."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of header and data together: the minimum size of the file."""
        return self.offset + prod(self.shape) * self.dtype.itemsize

    @property
    def is_native(self) -> bool:
        """Whether the stored bytes are those of a C-ordered array on this machine."""
        return self.dtype.isnative and (not self.fortran or len(self.shape) == 1)


def parse_header(file: BinaryIO) -> NpyHeader:
    """Return the header at the start of a file; raise one of `UNREADABLE` if it has none."""
    version = npy_format.read_magic(file)
    readers = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of the format is not supported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # headers of Python 2 are readable, with a warning
        shape, fortran, dtype = readers[version](file)
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"it has {len(shape)} dimensions")
    for axis, n in enumerate(shape):
        whole_number(f"shape[{axis}]", n, minimum=0, error=ValueError)
    # numpy multiplies like this too, also where one of the sizes is 0
    nbytes = prod(max(1, n) for n in shape) * dtype.itemsize
    whole_number("the size of the array in bytes", nbytes, error=ValueError)
    return NpyHeader(shape, dtype, fortran, file.tell())
