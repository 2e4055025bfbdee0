"""Refusals that transforms share."""

from __future__ import annotations

from penstock.errors import PlanError


def check_count(name: str, value: int) -> int:
    """``value``, refused unless it is an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanError(f"{name} must be an integer of at least 0, got {value!r}")
    return value


def check_probability(p: float) -> float:
    """``p``, refused outside of [0, 1]."""
    if not 0 <= p <= 1:
        raise PlanError(f"p must be a probability in [0, 1], got {p!r}")
    return p
