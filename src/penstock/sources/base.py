"""What a source of samples is: a length, fields, and reads straight into given memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Field:
    """Shape and dtype of one sample's part, without the leading axis of samples.

    >>> Field((3, 4), np.dtype("float32")).nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return prod(self.shape) * self.dtype.itemsize


@runtime_checkable
class Source(Protocol):
    """Where samples live. Cheap to build, picklable to its address, opened once per process.

    All methods may be called from several threads at once. A source with one unnamed array has
    the single field ``""``; named arrays are fields of those names, all of the same length.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> shape and dtype of one sample."""
        ...

    @property
    def block_samples(self) -> int:
        """Samples that storage gives most cheaply in one go (its own chunk length)."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def fingerprint(self) -> str:
        """Identity of the data: shape, dtype, chunking, hash of a few stored bytes; no path."""
        ...

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Fill ``out[name][: stop - start]`` with samples ``start:stop``, for names in ``out``."""
        ...

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Fill ``out[name][: len(indices)]`` with those samples, for each name in ``out``."""
        ...


@runtime_checkable
class MappedSource(Source, Protocol):
    """A source whose samples can be looked at in place: no copy before the gather."""

    def view(self, start: int, stop: int) -> Arrays | None:
        """Samples ``start:stop`` as arrays over mapped memory; None where that cannot be.

        Read-only, rows may be strided, alive as long as somebody holds them.
        """
        ...
