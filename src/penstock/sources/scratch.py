"""Memory that is used again: for bytes in passing, and for arrays that nobody looks at any more."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def borrowed(spare: list[dict[str, Bytes]]) -> Iterator[None]:
    """Within, this thread has the buffers of one that went before: threads may come and go.

    >>> spare = []
    >>> for _ in range(2):
    ...     with borrowed(spare):
    ...         kept = scratch("stored", 10)
    >>> len(spare), np.shares_memory(kept, spare[0]["stored"])
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


class Reused:
    """Memory for arrays of about one size; that of one which is gone is used for the next.

    As long as somebody looks at an array, or at a part of it, its memory is his. At most one
    spare piece is kept, and none that is much larger than the last two arrays asked for.

    >>> memory = Reused()
    >>> part = memory.empty((4, 3), np.dtype("f4"))[1:]
    >>> np.shares_memory(memory.empty((4, 3), np.dtype("f4")), part)
    False
    """

    def __init__(self) -> None:
        self._asked = self._common = 0  # bytes, the last time, and the less of the last two times
        self._spare: list[Bytes] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
        """An array with nothing in particular in it."""
        nbytes = prod(shape) * dtype.itemsize
        self._asked, self._common = nbytes, min(nbytes, self._asked)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = np.empty(nbytes, np.uint8)
        if memory.size < nbytes:
            memory = np.empty(nbytes, np.uint8)
        lent = _Lent(memory)
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return np.asarray(lent)[:nbytes].view(dtype).reshape(shape)

    def _take_back(self, memory: Bytes) -> None:
        """Nobody looks at this memory any more; runs in any thread, and takes no lock."""
        if not self._spare and memory.size <= 2 * self._common:
            self._spare.append(memory)


class _Lent:
    """What all arrays over a piece of memory hold: it is gone with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, memory: Bytes) -> None:
        self.__array_interface__ = memory.__array_interface__
