"""Durations, summed up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, deviation and percentiles of durations, as plain numbers.

    >>> summarize([0.1, 0.1, 0.4])["p50"]
    0.1
    """
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]).tolist()
    return {
        "mean_batch_time": float(np.mean(seconds)),
        "std_batch_time": float(np.std(seconds)),
        "p50": p50,
        "p95": p95,
        "p99": p99,
    }
