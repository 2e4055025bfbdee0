"""Rows copied to their places past the processor's cache, where `past_cache.c` was compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.order import Indices

LINE = 64  # bytes that a cache keeps together
LONG_ROW = 512  # bytes, from which on sharing the lines at its ends costs a row little
CACHED = 16 << 20  # bytes of which a cache may still hold some when they are read


def _load() -> Callable[..., int] | None:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("libpast_cache.so")))
    except OSError:
        return None
    scatter = library.penstock_scatter
    address, number = ctypes.c_void_p, ctypes.c_int64
    scatter.argtypes = [address, number, address, address, number, number, number]
    scatter.restype = number
    return scatter


_scatter = _load()
COMPILED = _scatter is not None  # at installation: see hatch_build.py


def pays(rows: npt.NDArray[np.void]) -> bool:
    """Is there more memory than a cache holds, in rows that fill its lines?"""
    size = rows.itemsize
    return COMPILED and rows.nbytes >= CACHED and (size % LINE == 0 or size >= LONG_ROW)


def scatter_past_cache(
    items: npt.NDArray[np.void], rows: npt.NDArray[np.void], targets: Indices
) -> None:
    """``rows[targets] = items``, without the interpreter's lock.

    Raises:
        IndexError: A target is none of the rows; those before it are in place.
    """
    assert _scatter is not None and rows.flags.c_contiguous
    assert items.dtype == rows.dtype and items.shape == targets.shape
    targets = np.ascontiguousarray(targets, np.int64)
    done = _scatter(
        rows.ctypes.data, len(rows), targets.ctypes.data, items.ctypes.data,
        items.strides[0], len(items), rows.itemsize,
    )  # fmt: skip
    if done < len(items):
        raise IndexError(f"row {targets[done]} is asked for; there are {len(rows)}")
