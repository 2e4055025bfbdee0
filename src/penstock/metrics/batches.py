"""Batches: their arrays, samples and bytes, and statistics of how long they take to arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from penstock.arguments import real_number, whole_number
from penstock.errors import BatchError

Array: TypeAlias = torch.Tensor | np.ndarray[Any, Any]

CLOCK_SECONDS = 1e-9  # the resolution of the clock: avoids dividing by zero


def arrays_of(batch: Any) -> Iterator[Array]:
    """Iterate over the tensors and arrays of a batch or sample, at any depth.

    Args:
        batch: Arrays in mappings, lists, tuples and dataclasses. Other values are skipped.
    """
    if isinstance(batch, torch.Tensor | np.ndarray):
        yield batch
        return
    values: Any = ()
    if isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, list | tuple):
        values = batch
    elif is_dataclass(batch) and not isinstance(batch, type):
        values = (getattr(batch, field.name) for field in fields(batch))
    for value in values:
        yield from arrays_of(value)


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the rows of its first array, or its length.

    Args:
        batch: As for `arrays_of`.

    >>> samples_of({"x": torch.zeros(4, 2), "y": torch.zeros(4)}), samples_of(["a", "b", "c"])
    (4, 3)
    """
    for array in arrays_of(batch):
        return len(array) if array.ndim else 1
    return len(batch) if isinstance(batch, list | tuple) else 1


def bytes_of(batch: Any) -> int:
    """Return the size of all arrays in a batch or sample, in bytes.

    Args:
        batch: As for `arrays_of`.

    >>> bytes_of((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    64
    """
    return sum(int(array.nbytes) for array in arrays_of(batch))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch: how long it took to arrive, and how large it is.

    Args:
        seconds: Time from the request to the arrival.
        samples: Number of samples in the batch.
        nbytes: Size of its arrays, in bytes.
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
    """Return the deliveries from which the throughput of a loader can be computed.

    A loader that reads ahead delivers in bursts: ready batches arrive in almost no time. A batch
    that the caller had to wait for marks a moment at which none was ready. Between two such
    moments the loader reads as much as it delivers, so only the batches between the first and the
    last of them count.

    Args:
        deliveries: In order of arrival, starting with the first batch.
        ahead: Number of batches requested before the first one arrived; these never count.

    >>> burst = [Delivery(4.0, 1, 8), Delivery(0.0, 1, 8)]
    >>> counted = steady([*burst, *burst, *burst])
    >>> sum(each.samples for each in counted) / sum(each.seconds for each in counted)
    0.5
    """
    after = deliveries[ahead:]
    if not after:
        return list(deliveries)
    seconds = [each.seconds for each in after]
    # the mean of equal values may be rounded up, and then no batch would reach it
    mean = min(sum(seconds) / len(seconds), max(seconds))
    indices = range(ahead - 1, len(deliveries))
    waited = [index for index in indices if deliveries[index].seconds >= mean]
    counted = deliveries[waited[0] + 1 : waited[-1] + 1]
    return list(counted or after)


def summarize(deliveries: Sequence[Delivery]) -> dict[str, float]:
    """Return mean, standard deviation, percentiles and rates of the batches after the first.

    The first batch includes the start of workers and the opening of files, and is reported
    separately. If there is only one batch, the figures are those of that batch.

    Args:
        deliveries: One or more, in order of arrival.

    Raises:
        BatchError: There are no deliveries.

    >>> figures = summarize([Delivery(0.9, 8, 64), Delivery(0.1, 8, 64), Delivery(0.3, 8, 64)])
    >>> figures["first_batch_time"], figures["mean_batch_time"], figures["samples_per_second"]
    (0.9, 0.2, 40.0)
    """
    if not deliveries:
        raise BatchError("there are no deliveries to summarize: measure at least one batch")
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
