"""Seeds: given, or drawn once and said."""

from __future__ import annotations

import logging
import secrets

from penstock.order.orders import check_seed

log = logging.getLogger("penstock")


def resolve_seed(seed: int | None) -> int:
    """``seed`` itself, checked; for None, one drawn from the system, logged.

    >>> resolve_seed(42)
    42
    """
    if seed is None:
        seed = secrets.randbits(32)
        log.info("seed=%d (drawn; give it to repeat this run)", seed)
    return check_seed(seed)
