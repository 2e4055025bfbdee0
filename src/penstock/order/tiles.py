"""Tiles: spans that cover a recording once."""

from __future__ import annotations

import numpy as np

from penstock.errors import PlanError
from penstock.order.permutation import Permutation


def tiles(total: int, chunk: int, key: int, align: int = 1) -> list[tuple[int, int]]:
    """Exactly ``ceil(total / chunk)`` spans that cover ``range(total)`` once, shuffled.

    They begin at a keyed offset, which only uses the slack: else one more would be needed.
    ``align``: starts are multiples of it (where ``chunk`` is one).

    >>> sorted(tiles(10, 4, key=3))
    [(0, 4), (4, 8), (8, 10)]
    """
    if min(total, chunk, align) < 1:
        raise PlanError(f"total, chunk and align must be at least 1, got {(total, chunk, align)}")
    count = -(-total // chunk)
    if count == 1:
        return [(0, total)]
    slack = (count * chunk - total) // align
    back = key % (slack + 1) * align if chunk % align == 0 else 0
    spans = [(max(0, i * chunk - back), min(total, (i + 1) * chunk - back)) for i in range(count)]
    return [spans[i] for i in Permutation(count, key)(np.arange(count)).tolist()]
