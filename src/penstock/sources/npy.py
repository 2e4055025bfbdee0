"""Samples in a ``.npy`` file, over its mapped pages."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import SourceError
from penstock.fingerprints import digest, row_bytes, sampled_blocks
from penstock.sources.base import Arrays, Field
from penstock.sources.files import read_exactly
from penstock.sources.memory import samples_per_block
from penstock.sources.npy_header import NpyHeader, read_header
from penstock.sources.requests import check_range, checked_indices, checked_path, destinations


class NpySource:
    """One array in a ``.npy`` file: ranges are read, single samples gathered from mapped pages.

    Big-endian data and Fortran order are read too, by a converting copy; only what is stored as
    it is used can be looked at in place. A file that has shrunk is an error at the next access;
    one that shrinks during an access to its mapped pages ends the process (SIGBUS).

    Args:
        path: The file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/x.npy", np.arange(6, dtype="f4").reshape(3, 2))
    ...     NpySource(folder + "/x.npy").view(1, 2)[""].tolist()
    [[2.0, 3.0]]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = checked_path(path)
        self._header = read_header(self._path)
        shape, dtype = self._header.shape, self._header.dtype.newbyteorder("=")
        self._fields = {"": Field(shape[1:], dtype)}
        self._pages: tuple[mmap.mmap, npt.NDArray[np.generic]] | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        return self._fields

    @property
    def block_samples(self) -> int:
        """Samples in about a megabyte."""
        return samples_per_block(len(self), self._fields[""].nbytes)

    def __len__(self) -> int:
        return self._header.shape[0]

    def __repr__(self) -> str:
        return f"NpySource({str(self._path)!r}, {len(self)} samples)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pages": None}

    def fingerprint(self) -> str:
        """Identity of the data: shape, dtype, order and the bytes of a few blocks."""
        block = self.block_samples
        starts = [i * block for i in sampled_blocks(-(-len(self) // block))]
        head = self._header
        facts = [list(head.shape), head.dtype.str, head.fortran]
        return digest(facts, (row_bytes(self._mapped()[s : s + block]) for s in starts))

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[""][: stop - start]`` with samples ``start:stop``."""
        check_range(len(self), start, stop)
        for _, rows in destinations(self._fields, out, stop - start):
            if self._header.as_used and rows.flags.c_contiguous and rows.size:
                offset = self._header.offset + start * self._fields[""].nbytes
                read_exactly(self._path, rows.reshape(-1).view(np.uint8), offset)
            else:
                np.copyto(rows, self._mapped()[start:stop])

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[""][: len(indices)]`` with those samples."""
        chosen = checked_indices(len(self), indices)
        for _, rows in destinations(self._fields, out, len(chosen)):
            if self._header.as_used:
                np.take(self._mapped(), chosen, axis=0, out=rows, mode="clip")
            else:
                np.copyto(rows, self._mapped()[chosen])

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` over mapped pages; None where bytes must be swapped."""
        check_range(len(self), start, stop)
        if self._header.dtype != self._fields[""].dtype:
            return None
        return {"": self._mapped()[start:stop]}

    def _mapped(self) -> npt.NDArray[np.generic]:
        # a race between threads maps the file twice and keeps one: harmless, and no lock to fork
        pages = self._pages or _map(self._path, self._header)
        self._pages = pages
        mapping, array = pages
        if mapping.size() < self._header.nbytes:  # touching pages past the end would be SIGBUS
            raise SourceError(
                f"{self._path} has shrunk to {mapping.size()} bytes of {self._header.nbytes} "
                "while it was read: restore the file"
            )
        return array


def _map(path: Path, header: NpyHeader) -> tuple[mmap.mmap, npt.NDArray[np.generic]]:
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot map {path}: {error}") from error
    if mapping.size() < header.nbytes:
        raise SourceError(f"{path} is shorter than its header says: restore the file")
    shape = header.shape[::-1] if header.fortran else header.shape
    array = np.ndarray(shape, header.dtype, mapping, header.offset)
    return mapping, array.T if header.fortran else array
