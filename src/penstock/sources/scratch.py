"""Memory for bytes in passing, one set of buffers per thread, reused from read to read."""

from __future__ import annotations

import threading
from math import prod

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_use: dict[str, Bytes] = {}


_BUFFERS = _Buffers()


def scratch(use: str, nbytes: int) -> Bytes:
    """``nbytes`` of this thread's buffer for ``use``: valid until this thread asks again.

    A fresh allocation per chunk would cost a page fault every 4 KB, as much as decoding itself.

    >>> scratch("stored", 10).size
    10
    >>> np.shares_memory(scratch("stored", 10), scratch("stored", 5))
    True
    """
    buffer = _BUFFERS.by_use.get(use)
    if buffer is None or buffer.size < nbytes:
        _BUFFERS.by_use.pop(use, None)  # free the small one before making the large one
        buffer = _BUFFERS.by_use[use] = np.empty(_roomy(nbytes), np.uint8)
    return buffer[:nbytes]


def _roomy(nbytes: int) -> int:
    """Some more than asked for; from 4 MB on, numpy asks for huge pages, which decode faster."""
    return nbytes + nbytes // 8 if nbytes < 1 << 20 else max(nbytes + nbytes // 8, 4 << 20)


def scratch_array(
    use: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> npt.NDArray[np.generic]:
    """The same memory as an array of that shape and dtype.

    >>> scratch_array("rows", (2, 3), np.dtype("f4")).shape
    (2, 3)
    """
    nbytes = prod(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, scratch(use, nbytes))
