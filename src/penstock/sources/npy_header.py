"""The first bytes of a ``.npy`` file: shape, dtype and where the data begin."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from penstock.arguments import whole_number
from penstock.errors import SourceError

MOST_DIMENSIONS = 32  # of an array of numpy 1.26


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


# what numpy raises at a header that it did not write, and Python's parser below it
UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError),
    *(SyntaxError, TokenError, TypeError, ValueError),
)


def read_header(path: Path) -> NpyHeader:
    """The header of the file, or a sentence about what is wrong with it."""
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about headers of Python 2, which are read all the same
            header = _parse(file)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise SourceError(f"there is no file {path}") from error
    except UNREADABLE as error:
        first_line = str(error).partition("\n")[0]
        why = first_line or type(error).__name__
        raise SourceError(
            f"{path} is not a readable .npy file ({why[:200]}): write it again with numpy.save"
        ) from error
    if not header.shape or header.dtype.hasobject or not header.dtype.itemsize:
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
        raise ValueError(f"version {version} of the format is not supported")
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"it has {len(shape)} dimensions")
    sizes = tuple(
        whole_number(f"shape[{axis}]", n, minimum=0, error=ValueError)
        for axis, n in enumerate(shape)
    )
    # numpy counts bytes so, also where one of the sizes is 0
    nbytes = prod(max(1, n) for n in sizes) * dtype.itemsize
    whole_number("the size of the array in bytes", nbytes, error=ValueError)
    return NpyHeader(sizes, dtype, fortran, file.tell())
