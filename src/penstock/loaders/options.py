"""Checks of loader arguments: torch's and ours, and combinations that are invalid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from os import PathLike
from typing import Any, Final

import numpy as np

from penstock.arguments import choice, flag, function, parse_bytes, real_number, whole_number
from penstock.errors import PlanError
from penstock.order import Cursor, Order
from penstock.order.orders import samples_of
from penstock.order.state import check_format, check_identity, cursor_of, to_state
from penstock.registry import did_you_mean

MOST_WORKERS: Final = 1024  # more would fill the process table before the first batch
MOST_READERS: Final = 16  # threads that tune="online" tries
EXECUTORS: Final = ("inline", "threads", "processes")


def check_context(name: str, context: Any) -> Any:
    """Return a start method or its context; refuse an unknown one."""
    if not isinstance(context, BaseContext):
        choice(name, context, get_all_start_methods())
    return context


_TORCH_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "num_workers": partial(whole_number, minimum=0),
    "prefetch_factor": partial(whole_number, minimum=1, unit="batch"),
    "timeout": partial(real_number, minimum=0),
    "pin_memory": flag,
    "persistent_workers": flag,
    "in_order": flag,
    "collate_fn": function,
    "worker_init_fn": function,
    "multiprocessing_context": check_context,
}


def check_torch_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked arguments of torch's loader, without those that are None (the default)."""
    checked = {
        name: _TORCH_CHECKS[name](name, value) if name in _TORCH_CHECKS else value
        for name, value in options.items()
        if value is not None
    }
    if checked.get("num_workers", 0) > MOST_WORKERS:
        raise PlanError(
            f"num_workers must be at most {MOST_WORKERS:,}, got {checked['num_workers']:,}: "
            "use about as many as there are cores"
        )
    return checked


def refuse_unknown(owner: str, given: Iterable[str], *inits: Callable[..., None]) -> None:
    """Raise ``TypeError`` for arguments that none of these ``__init__`` has.

    >>> from fractions import Fraction
    >>> refuse_unknown("Fraction", ["numerater"], Fraction.__new__)
    Traceback (most recent call last):
    ...
    TypeError: Fraction has no argument 'numerater': did you mean 'numerator'?
    """
    found = [each for init in inits for each in [*signature(init).parameters.values()][1:]]
    known = [each.name for each in found if each.kind is not each.VAR_KEYWORD]
    for name in given:
        if name not in known:
            meant = did_you_mean(name, known, otherwise="it takes")
            raise TypeError(f"{owner} has no argument {name!r}{meant}")


def check_dataset(dataset: Any) -> None:
    """Refuse what can be indexed but is not a dataset: a path, bytes."""
    if isinstance(dataset, str | PathLike):
        raise PlanError(
            f"dataset must be a dataset, got the path {str(dataset)!r}: stream the file with "
            f"StreamLoader({str(dataset)!r}, batch_size), or pass a map-style dataset that reads it"
        )
    if isinstance(dataset, bytes | bytearray | memoryview):
        raise PlanError(
            f"dataset must be a dataset, got {type(dataset).__name__}: pass "
            "np.frombuffer(dataset, np.uint8), with the dtype that the bytes have"
        )


def size_of(dataset: Any) -> int:
    """Return the number of samples; refuse a dataset without a length or an index."""
    kind = type(dataset)
    if not any(hasattr(kind, name) for name in ("__getitem__", "__getitems__", "__getbatch__")):
        raise PlanError(
            f"dataset must be map-style, but {kind.__name__} has no __getitem__: for data that can "
            "only be iterated, pass an IterableDataset"
        )
    try:
        return len(dataset)
    except TypeError as error:
        raise PlanError(
            f"{kind.__name__} has no length ({error}): give it a __len__, or pass a sampler"
        ) from error


def check_order(order: Any, samples: int) -> Order:
    """Return an order of the user; refuse one whose states could not be loaded."""
    if not isinstance(order, Order):
        raise PlanError(
            f"order must be an Order, such as ShuffledOrder({samples}, seed=42), got {order!r}"
        )
    if samples_of(order) != samples:
        raise PlanError(f"the order has {samples_of(order)} samples, the dataset {samples}")
    cursor = Cursor(1, order.size)  # not the start, which an identity might equal by chance
    try:
        state = json.loads(json.dumps(to_state(cursor, order)))
        check_format(state)
        check_identity(state, order)
        if cursor_of(state) != cursor:
            raise ValueError("it overwrites the position")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PlanError(
            f"a state of {type(order).__name__} could never be loaded ({error}): identity() must "
            "return a dict of plain strings and integers, the same at every call, with 'order', "
            f"'samples' (an int, {order.size} or more) and 'seed', and without 'format', 'epoch' "
            "and 'position'"
        ) from error
    return order


def check_executor(executor: str | None, num_workers: int) -> str:
    """Return the executor; by default the one that fits the number of workers."""
    if executor is None:
        return "processes" if num_workers else "inline"
    choice("executor", executor, EXECUTORS)
    if (executor == "processes") != (num_workers > 0):
        raise PlanError(
            f"executor={executor!r} with num_workers={num_workers}: only executor='processes' "
            "uses worker processes"
        )
    return executor


def check_threads(threads: int | None, executor: str) -> int | None:
    """Return the number of threads; refuse it for another executor."""
    if threads is None:
        return None
    if executor != "threads":
        raise PlanError(
            f"threads={threads!r} with executor={executor!r}: give 1 or more threads to "
            "executor='threads', or leave it out"
        )
    return whole_number("threads", threads, minimum=1)


def check_budget(memory_budget: int | str) -> int:
    """Return a limit in bytes; raise `PlanError` for one that leaves no memory for a batch."""
    size = parse_bytes(memory_budget, "memory_budget")
    if not size:
        raise PlanError("memory_budget=0 leaves no memory for a batch: pass at least 1 byte")
    return size


def check_tune(tune: Any, executor: str = "threads") -> bool:
    """Return whether a loader is tuned while it is used; refuse it where there are no threads."""
    if tune is None:
        return False
    choice("tune", tune, ("online",))
    if executor != "threads":
        raise PlanError(
            f"tune={tune!r} changes the number of threads, and executor is {executor!r}: pass "
            "executor='threads', or find the number of workers before with penstock.tune"
        )
    return True


def check_epoch(epoch: int) -> int:
    """Return the epoch; refuse one below 0."""
    return whole_number("epoch", epoch, minimum=0)


def check_batch_size(batch_size: int | None) -> int:
    """Return the batch size; refuse one below one sample."""
    return whole_number("batch_size", batch_size, minimum=1, unit="sample")


def check_chunk_size(chunk_size: Any, name: str = "chunk_size") -> int:
    """Return the chunk size; refuse one below one batch."""
    if name == "chunk_size" and isinstance(chunk_size, bool | np.bool_):
        # torch's third argument is shuffle
        raise PlanError(
            f"{name} must be a number of batches, got {chunk_size!r}: "
            f"to set the shuffle, pass shuffle={chunk_size!r} by keyword"
        )
    return whole_number(name, chunk_size, minimum=1, unit="batch")


def check_limit(limit: int | float) -> int | float:
    """Return a number of batches, or a share of them (a float)."""
    if isinstance(limit, float | np.floating):
        return real_number("limit_batches", limit)
    return whole_number("limit_batches", limit, minimum=0, unit="batch")


def share_of(batches: int, share: float) -> int:
    """Return a share of a number of batches, rounded down as in Lightning."""
    if not 0 <= share <= 1:
        raise PlanError(f"limit_batches as a share must be in [0, 1], got {share!r}")
    limit = int(batches * share)
    if share and not limit:
        raise PlanError(
            f"limit_batches={share!r} of {batches} batches is less than one: "
            f"use at least {1 / batches:.3g}, or a number of batches"
        )
    return limit
