"""Copies of rows and boxes between blocks and batches, in C if that was compiled.

Without the compiled file numpy does the same, slower.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from penstock.native import native
from penstock.order import Indices

GIL_ITEMS = 500  # numpy keeps the interpreter's lock while it copies up to this many items
LONG_BYTES = 1 << 16  # a copy of this size should not be made under the interpreter's lock
PIECE_BYTES = 1 << 20  # numpy gathers into a temporary array: bound its size
LINE_BYTES = 64  # of the processor's cache
LONG_ROW_BYTES = 512  # for longer rows, cache lines shared by two rows do not matter
CACHE_BYTES = 16 << 20  # larger memory is not in the cache any more when it is read


COMPILED = native is not None


def as_items(
    array: npt.NDArray[np.generic], count: int, item: np.dtype[np.void]
) -> npt.NDArray[np.void]:
    r"""Return ``count`` overlapping items: item i has as many rows as fit into it, from row i on.

    >>> as_items(np.arange(4, dtype=np.int8), count=3, item=np.dtype("V2")).tolist()
    [b'\x00\x01', b'\x01\x02', b'\x02\x03']
    """
    stored = np.ascontiguousarray(array)
    return np.ndarray((count,), item, stored, 0, (array.nbytes // len(array),))


def bypasses_cache(rows: npt.NDArray[np.void]) -> bool:
    """Return whether writing past the cache is faster: much memory, in rows of whole lines."""
    size = rows.itemsize
    return (
        COMPILED
        and rows.nbytes >= CACHE_BYTES
        and (size % LINE_BYTES == 0 or size >= LONG_ROW_BYTES)
    )


def scatter(items: npt.NDArray[np.void], rows: npt.NDArray[np.void], targets: Indices) -> None:
    """Do ``rows[targets] = items``, without the interpreter's lock if it takes long."""
    if bypasses_cache(rows):
        copy_past_cache(items, rows, targets)
    elif len(items) > GIL_ITEMS or items.nbytes < LONG_BYTES:
        rows[targets] = items
    else:  # few large items: numpy releases the lock for rows of bytes
        rows[:, None].view(np.uint8)[targets] = items[:, None].view(np.uint8)


def gather(
    items: npt.NDArray[np.void], index: Indices, rows: npt.NDArray[np.void], targets: Indices
) -> None:
    """Do ``rows[targets] = items[index]``; items may overlap. Both arrays are contiguous int64."""
    if COMPILED:
        copy_past_cache(items, rows, targets, index, past=rows.itemsize >= LONG_ROW_BYTES)
        return
    step = max(1, PIECE_BYTES // rows.itemsize)
    for at in range(0, len(index), step):
        scatter(items[index[at : at + step]], rows, targets[at : at + step])


def copy_past_cache(
    items: npt.NDArray[np.void],
    rows: npt.NDArray[np.void],
    targets: Indices,
    index: Indices | None = None,
    *,
    past: bool = True,
) -> None:
    """Do ``rows[targets] = items[index]`` in C, without the interpreter's lock.

    Args:
        items: The items to copy.
        rows: The rows to fill.
        targets: The row of each item.
        index: The items; None for all of them.
        past: Write past the cache.

    Raises:
        IndexError: A target is not a row, or an index not an item; the items before it are written.
    """
    assert native is not None and rows.flags.c_contiguous and items.dtype == rows.dtype
    targets = np.ascontiguousarray(targets, np.int64)
    chosen = None if index is None else np.ascontiguousarray(index, np.int64)
    assert targets.shape == (items.shape if chosen is None else chosen.shape)
    done = native.copy(
        rows.ctypes.data, len(rows), targets.ctypes.data, items.ctypes.data, len(items),
        None if chosen is None else chosen.ctypes.data,
        items.strides[0], len(targets), rows.itemsize, past,
    )  # fmt: skip
    if done < len(targets):
        if 0 <= targets[done] < len(rows):
            raise IndexError(f"item {chosen[done]} is out of range")  # type: ignore[index]
        raise IndexError(f"row {targets[done]} is out of range: there are {len(rows)} rows")


def gather_boxes(
    held: npt.NDArray[np.uint8], table: Indices, rows: npt.NDArray[np.generic], targets: Indices
) -> None:
    """Copy boxes out of larger arrays: ``rows[targets[i], j] = box j of item i``.

    Args:
        held: The memory of the arrays.
        table: For each item the first byte of each of its boxes, then the strides of each in bytes.
        rows: Of shape ``(n, steps, *shape of a box)``.
        targets: The row of each item.
    """
    steps, shape = rows.shape[1], rows.shape[2:]
    if COMPILED:
        assert native is not None and rows.flags.c_contiguous
        sizes, table = np.array(shape, np.int64), np.ascontiguousarray(table, np.int64)
        targets = np.ascontiguousarray(targets, np.int64)
        done = native.copy_boxes(
            rows.ctypes.data, len(rows), targets.ctypes.data, held.ctypes.data, held.nbytes,
            table.ctypes.data, len(table), steps, len(shape), sizes.ctypes.data, rows.itemsize,
            rows.nbytes >= CACHE_BYTES and shape[-1] * rows.itemsize >= 4 * LINE_BYTES,
        )  # fmt: skip
        if done < len(table):
            raise IndexError(f"box {done} of {len(table)} is out of range")
        return
    for target, numbers in zip(targets.tolist(), table, strict=True):
        strides = numbers[steps:].reshape(steps, -1).tolist()
        for step, start in enumerate(numbers[:steps].tolist()):
            rows[target, step] = np.ndarray(shape, rows.dtype, held, start, strides[step])


def copy_bytes(begins: Indices, sizes: Indices, to: int) -> None:
    """Write pieces of memory one after the other.

    Args:
        begins: The address of each piece.
        sizes: The bytes of each piece.
        to: The address of memory for all of them.
    """
    if COMPILED:
        assert native is not None
        native.join(to, begins.ctypes.data, sizes.ctypes.data, len(begins))
        return
    for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(to, begin, size)
        to += size
