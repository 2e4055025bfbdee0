"""Durations of deliveries, summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CLOCK_SECONDS = 1e-9  # what a clock can tell apart: nothing took no time


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch: how long it took to come, and what was in it."""

    seconds: float
    samples: int
    nbytes: int


def summarize(deliveries: Sequence[Delivery]) -> dict[str, float]:
    """Mean, deviation and percentiles of the batches after the first, as plain numbers.

    The first, with which workers start and files open, is told apart. Where it is the only one,
    the figures are its own.

    >>> figures = summarize([Delivery(0.9, 8, 64), Delivery(0.1, 8, 64), Delivery(0.3, 8, 64)])
    >>> figures["first_batch_time"], figures["mean_batch_time"], figures["samples_per_second"]
    (0.9, 0.2, 40.0)
    """
    steady = deliveries[1:] or deliveries
    seconds = [each.seconds for each in steady]
    total = max(sum(seconds), CLOCK_SECONDS)
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]).tolist()
    return {
        "mean_batch_time": float(np.mean(seconds)),
        "std_batch_time": float(np.std(seconds)),
        "first_batch_time": deliveries[0].seconds,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "samples_per_second": sum(each.samples for each in steady) / total,
        "bytes_per_second": sum(each.nbytes for each in steady) / total,
    }
