"""Sequences of different lengths in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

IGNORED = -100  # what torch's cross-entropy leaves out


@dataclass(frozen=True, slots=True)
class PaddedCollation:
    """Batches ``(x, y, {"lengths": ...})`` of ``(x, y)`` of different lengths.

    x is padded to the next power of two, or to ``limit`` if that is shorter; y along with it, so
    that both still end together. Lengths are those of x before.

    Args:
        zero: What x is padded with.
        limit: Steps no batch need exceed; None: none.
        lead_steps: By which every y is shorter than its x.
        ignored: What y is padded with.

    >>> samples = [(torch.tensor([1, 2, 3]), torch.tensor([[2], [3], [4]]))] * 2
    >>> x, y, extras = PaddedCollation(zero=128)(samples)
    >>> x[0], y[0, :, 0], extras["lengths"]
    (tensor([  1,   2,   3, 128]), tensor([   2,    3,    4, -100]), tensor([3, 3]))
    """

    zero: float
    limit: int | None = None
    lead_steps: int = 0
    ignored: int = IGNORED

    def __call__(self, samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """The batch of ``samples``."""
        x, y = zip(*samples, strict=True)
        lengths = torch.tensor([len(each) for each in x])
        steps = self.width(int(lengths.max()))
        targets = max(steps - self.lead_steps, *(len(each) for each in y))
        return padded(x, steps, self.zero), padded(y, targets, self.ignored), {"lengths": lengths}

    def width(self, longest: int) -> int:
        """Steps of a batch whose longest x has so many.

        >>> [PaddedCollation(0, limit=100).width(steps) for steps in (5, 8, 70)]
        [8, 8, 100]
        """
        power = 1 << (longest - 1).bit_length()
        return max(longest, power if self.limit is None else min(power, self.limit))


def padded(rows: Sequence[torch.Tensor], steps: int, fill: float) -> torch.Tensor:
    """Rows (L, ...) as one tensor (B, steps, ...), filled at their ends."""
    out = rows[0].new_full((len(rows), steps, *rows[0].shape[1:]), fill)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out
