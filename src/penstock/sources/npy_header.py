"""The first bytes of a ``.npy`` file: shape, dtype and where the data begin."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from penstock.errors import SourceError


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a ``.npy`` file holds; ``nbytes`` is the size the whole file must have at least."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of header and data together."""
        return self.offset + prod(self.shape) * self.dtype.itemsize

    @property
    def as_used(self) -> bool:
        """Whether the stored bytes are those of a C-ordered array of this machine."""
        return self.dtype.isnative and (not self.fortran or len(self.shape) == 1)


def read_header(path: Path) -> NpyHeader:
    """The header of the file, or a sentence about what is wrong with it."""
    try:
        with path.open("rb") as file:
            header = _parse(file)
            size = path.stat().st_size
    except FileNotFoundError as error:
        raise SourceError(f"there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} is not a readable .npy file: {error}") from error
    if not header.shape or header.dtype.hasobject:
        raise SourceError(
            f"{path} holds {len(header.shape)} dimensions of dtype {header.dtype}: "
            "save an array of fixed-size items with a first axis of samples"
        )
    if size < header.nbytes:
        raise SourceError(
            f"{path} has {size} bytes but its header promises {header.nbytes}: "
            "the file is truncated; write or copy it again"
        )
    return header


def _parse(file: BinaryIO) -> NpyHeader:
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = npy_format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = npy_format.read_array_header_2_0(file)
    else:
        raise ValueError(f"version {version} of the format is not supported; save it with numpy")
    return NpyHeader(shape, dtype, fortran, file.tell())
