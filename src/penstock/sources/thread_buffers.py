"""Memory that is reused: buffers of each thread, and arrays that are no longer referenced."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Rows: TypeAlias = npt.NDArray[np.generic]


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_use: dict[str, Bytes] = {}


_BUFFERS = _Buffers()


def thread_buffer(use: str, nbytes: int) -> Bytes:
    """Return ``nbytes`` of this thread's buffer for ``use``, valid until the thread asks again.

    A new allocation for each chunk would cost a page fault every 4 KB, as much as decoding.

    >>> thread_buffer("stored", 10).size
    10
    >>> np.shares_memory(thread_buffer("stored", 10), thread_buffer("stored", 5))
    True
    """
    buffer = _BUFFERS.by_use.get(use)
    if buffer is None or buffer.size < nbytes:
        _BUFFERS.by_use.pop(use, None)  # free the small one before making the large one
        # slightly more than requested; from 4 MB on numpy uses huge pages, which decode faster
        size = nbytes + nbytes // 8
        size = size if nbytes < 1 << 20 else max(size, 4 << 20)
        buffer = _BUFFERS.by_use[use] = np.empty(size, np.uint8)
    return buffer[:nbytes]


def thread_array(use: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Rows:
    """Return this thread's buffer for ``use`` as an array of that shape and dtype.

    >>> thread_array("rows", (2, 3), np.dtype("f4")).shape
    (2, 3)
    """
    return np.ndarray(shape, dtype, thread_buffer(use, prod(shape) * dtype.itemsize))


@contextmanager
def borrowed_buffers(spare: list[dict[str, Bytes]]) -> Iterator[None]:
    """Give this thread the buffers of an earlier one: for pools whose threads come and go.

    >>> spare = []
    >>> for _ in range(2):
    ...     with borrowed_buffers(spare):
    ...         buffer = thread_buffer("stored", 10)
    >>> len(spare), np.shares_memory(buffer, spare[0]["stored"])
    (1, True)
    """
    own = _BUFFERS.by_use
    try:
        _BUFFERS.by_use = spare.pop()
    except IndexError:
        _BUFFERS.by_use = {}
    try:
        yield
    finally:
        spare.append(_BUFFERS.by_use)
        _BUFFERS.by_use = own


class ReusedMemory:
    """Memory for arrays of about one size; that of an unreferenced array serves the next one.

    An array, and every view of it, keeps its memory. At most one spare piece is held, and none
    that is much larger than the last two arrays.

    >>> memory = ReusedMemory()
    >>> part = memory.empty((4, 3), np.dtype("f4"))[1:]
    >>> np.shares_memory(memory.empty((4, 3), np.dtype("f4")), part)
    False
    """

    def __init__(self) -> None:
        self._last_bytes = self._usual_bytes = 0  # of the last array; the smaller of the last two
        self._spare: list[Bytes] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Rows:
        """Return an uninitialized array."""
        nbytes = prod(shape) * dtype.itemsize
        self._last_bytes, self._usual_bytes = nbytes, min(nbytes, self._last_bytes)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = np.empty(nbytes, np.uint8)
        if memory.size < nbytes:
            memory = np.empty(nbytes, np.uint8)
        lease = _Lease(memory)
        weakref.finalize(lease, self._take_back, memory).atexit = False
        return np.asarray(lease)[:nbytes].view(dtype).reshape(shape)

    def _take_back(self, memory: Bytes) -> None:
        # runs in any thread when the last view is gone, so it must not take a lock
        if not self._spare and memory.size <= 2 * self._usual_bytes:
            self._spare.append(memory)


class _Lease:
    """The base object of all arrays over a piece of memory: collected with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, memory: Bytes) -> None:
        self.__array_interface__ = memory.__array_interface__
