"""Two channels as one sequence."""

from __future__ import annotations

import re

import torch

from penstock.arguments import shown
from penstock.errors import PlanError


def check_strategy(strategy: str) -> str:
    """A strategy that `interleave` knows."""
    if isinstance(strategy, str) and strategy in ("temporal", "blocking"):
        return strategy
    if isinstance(strategy, str) and re.fullmatch(r"blocking-[1-9]\d*", strategy):
        return strategy
    raise PlanError(
        "interleaving_strategy must be 'temporal', 'blocking' or 'blocking-<n>', "
        f"got {shown(strategy)}"
    )


def interleave(wave: torch.Tensor, strategy: str) -> torch.Tensor:
    """Left and right of shape (L, 2) as one sequence of shape (2L, 1).

    ``temporal``: L, R, L, R, ...; ``blocking``: all of L, then all of R; ``blocking-n``: blocks
    of n in turns, the last ones shorter.

    >>> wave = torch.tensor([[1, 5], [2, 6], [3, 7]])
    >>> interleave(wave, "temporal").flatten().tolist()
    [1, 5, 2, 6, 3, 7]
    >>> interleave(wave, "blocking-2").flatten().tolist()
    [1, 2, 5, 6, 3, 7]
    """
    if strategy == "temporal":
        return wave.reshape(-1, 1)
    block = len(wave) if strategy == "blocking" else int(strategy.removeprefix("blocking-"))
    return torch.cat([part.T.reshape(-1, 1) for part in torch.split(wave, max(1, block))])
