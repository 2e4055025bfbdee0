"""Rows of unequal length, joined into one array and spread over a rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.collate.columns import at
from penstock.collate.errors import CollateError
from penstock.collate.stacking import describe

Tokens: TypeAlias = npt.NDArray[np.int64]
Lengths: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Side: TypeAlias = Literal["right", "left"]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of tokens, one after the other, and the length of each."""

    flat: Tokens
    lengths: Lengths

    def starts(self) -> Lengths:
        """Where each row begins in ``flat``."""
        return np.cumsum(self.lengths) - self.lengths

    def positions(self) -> Lengths:
        """The place of every token in its own row."""
        return np.arange(len(self.flat)) - np.repeat(self.starts(), self.lengths)


def ragged(
    rows: Sequence[Any], path: str, *, limit: int | None = None, side: Side = "right"
) -> Ragged:
    """Lists, arrays or tensors of integers as one `Ragged`.

    A row longer than ``limit`` is cut, on ``side``.

    >>> ragged([[1, 2, 3], [], [4]], "input_ids")
    Ragged(flat=array([1, 2, 3, 4]), lengths=array([3, 0, 1]))
    """
    lengths = _lengths(rows, path)
    if limit is not None and len(lengths) and int(lengths.max()) > limit:
        rows = [_cut(row, limit, side) for row in rows]
        lengths = np.minimum(lengths, limit)
    return Ragged(_flat(rows, int(lengths.sum()), path), lengths)


def _lengths(rows: Sequence[Any], path: str) -> Lengths:
    try:
        return np.fromiter(map(len, rows), np.int64, len(rows))
    except TypeError as error:
        for number, row in enumerate(rows):
            if not hasattr(row, "__len__") or getattr(row, "ndim", 1) == 0:
                raise CollateError(
                    f"{at(path, number)} is {describe(row)}, expected a sequence of tokens"
                ) from error
        raise


def _cut(row: Any, limit: int, side: Side) -> Any:
    return row[:limit] if side == "right" else row[max(len(row) - limit, 0) :]


def _flat(rows: Sequence[Any], count: int, path: str) -> Tokens:
    try:
        if all(type(row) is list and (not row or type(row[0]) is int) for row in rows):
            return np.fromiter(chain.from_iterable(rows), np.int64, count)
        arrays = [np.asarray(row) for row in rows]
        joined = np.concatenate([each for each in arrays if each.size] or [np.empty(0, np.int64)])
        if joined.ndim == 1 and joined.dtype.kind in "biu":
            return joined.astype(np.int64, copy=False)
    except (TypeError, ValueError) as error:
        raise _not_tokens(rows, path) from error
    raise _not_tokens(rows, path)


def _not_tokens(rows: Sequence[Any], path: str) -> CollateError:
    for number, row in enumerate(rows):
        array = np.asarray(row, dtype=object) if isinstance(row, list) else np.asarray(row)
        if array.ndim != 1 or not all(
            isinstance(each, int | np.integer) for each in array.tolist()
        ):
            return CollateError(
                f"{at(path, number)} is {describe(row)} with values other than integers or of "
                "more than one dimension, expected one row of token ids"
            )
    return CollateError(f"{path!r} is not made of rows of token ids")


def width_of(lengths: Lengths, multiple: int | None) -> int:
    """The longest row, rounded up to a multiple."""
    longest = int(lengths.max())
    return longest if multiple is None else -(-longest // multiple) * multiple


def real_places(lengths: Lengths, width: int, side: Side) -> Mask:
    """Where a padded batch holds a token: counted from lengths, never from what the token is.

    >>> real_places(np.array([2, 1]), 2, "left").tolist()
    [[True, True], [False, True]]
    """
    places = np.arange(width)
    if side == "right":
        return places < lengths[:, None]
    return places >= width - lengths[:, None]


def spread(flat: Tokens, real: Mask, fill: int) -> Tokens:
    """The rectangle with ``flat`` at its real places, in order, and ``fill`` elsewhere."""
    out = np.full(real.shape, fill, np.int64)
    out[real] = flat
    return out
