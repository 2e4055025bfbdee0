"""Tiles: spans that cover a recording once."""

from __future__ import annotations

import numpy as np

from penstock.errors import PlanError
from penstock.order.permutation import Permutation


def tiles(total: int, chunk: int, key: int, align: int = 1) -> list[tuple[int, int]]:
    """Exactly ``ceil(total / chunk)`` spans that cover ``range(total)`` once, shuffled.

    Their lengths are equal but for one unit of ``align``, so that equal batches per span weigh
    every timestep equally; which of them are longer is keyed. Starts are multiples of ``align``
    (where ``chunk`` is one).

    >>> tiles(10, 4, key=3)
    [(6, 10), (3, 6), (0, 3)]
    """
    if min(total, chunk, align) < 1:
        raise PlanError(f"total, chunk and align must be at least 1, got {(total, chunk, align)}")
    count = -(-total // chunk)
    unit = align if chunk % align == 0 else 1
    units, shift = -(-total // unit), key % count
    borders = [min((i * units + shift) // count * unit, total) for i in range(count)]
    spans = list(zip(borders, [*borders[1:], total], strict=True))
    return [spans[i] for i in Permutation(count, key)(np.arange(count)).tolist()]
