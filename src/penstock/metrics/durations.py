"""Durations of deliveries, summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from penstock.arguments import real_number, whole_number
from penstock.errors import BatchError

CLOCK_SECONDS = 1e-9  # what a clock can tell apart: nothing took no time


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch: how long it took to arrive, and what was in it.

    Args:
        seconds: From the request to the arrival.
        samples: Samples in the batch.
        nbytes: Bytes of its arrays.
    """

    seconds: float
    samples: int
    nbytes: int

    def __post_init__(self) -> None:
        real_number("seconds", self.seconds, minimum=0, error=BatchError)
        whole_number("samples", self.samples, minimum=0, error=BatchError)
        whole_number("nbytes", self.nbytes, minimum=0, error=BatchError)


Timed = TypeVar("Timed", bound=Delivery)


def steady(deliveries: Sequence[Timed], ahead: int = 1) -> list[Timed]:
    """The deliveries that tell the throughput of a loader that reads ahead.

    Batches that are ready when they are asked for arrive in no time, one burst after the other. A
    batch that is waited for marks a moment at which nothing was ready. Between two such moments
    as much is read as is delivered: what arrives between the first and the last of them counts.

    Args:
        deliveries: In the order of arrival, from the first batch on.
        ahead: Batches that were requested before the first one arrived; they never count.

    >>> burst = [Delivery(4.0, 1, 8), Delivery(0.0, 1, 8)]
    >>> counted = steady([*burst, *burst, *burst])
    >>> sum(each.samples for each in counted) / sum(each.seconds for each in counted)
    0.5
    """
    after = deliveries[ahead:]
    if not after:
        return list(deliveries)
    seconds = [each.seconds for each in after]
    usual = min(sum(seconds) / len(seconds), max(seconds))  # a sum of equals may be rounded up
    places = range(ahead - 1, len(deliveries))
    waited = [place for place in places if deliveries[place].seconds >= usual]
    counted = deliveries[waited[0] + 1 : waited[-1] + 1]
    return list(counted or after)


def summarize(deliveries: Sequence[Delivery]) -> dict[str, float]:
    """Mean, deviation and percentiles of the batches after the first, as plain numbers.

    The first batch, for which workers start and files open, is reported apart. If it is the only
    one, the figures are those of the first.

    Args:
        deliveries: One or more, in the order of arrival.

    >>> figures = summarize([Delivery(0.9, 8, 64), Delivery(0.1, 8, 64), Delivery(0.3, 8, 64)])
    >>> figures["first_batch_time"], figures["mean_batch_time"], figures["samples_per_second"]
    (0.9, 0.2, 40.0)
    """
    if not deliveries:
        raise BatchError("there are no deliveries to sum up: measure one batch or more")
    counted = deliveries[1:] or deliveries
    seconds = [each.seconds for each in counted]
    total = max(sum(seconds), CLOCK_SECONDS)
    p50, p95, p99 = np.percentile(seconds, [50, 95, 99]).tolist()
    return {
        "mean_batch_time": float(np.mean(seconds)),
        "std_batch_time": float(np.std(seconds)),
        "first_batch_time": float(deliveries[0].seconds),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "samples_per_second": sum(each.samples for each in counted) / total,
        "bytes_per_second": sum(each.nbytes for each in counted) / total,
    }
