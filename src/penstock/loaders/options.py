"""What a loader may be asked for: torch's arguments and ours, and what cannot be together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from os import PathLike
from typing import Any, Final

from torch.utils.data import IterableDataset

from penstock.arguments import choice, flag, function, real_number, whole_number
from penstock.errors import PlanError
from penstock.order import Cursor, Order
from penstock.order.state import check_format, check_identity, cursor_of, to_state

MOST_WORKERS: Final = 1024  # more would fill the process table before the first batch
EXECUTORS: Final = ("inline", "threads", "processes")


def torchs_own(
    dataset: Any, batch_size: int | None, options: dict[str, Any], *, shuffle: bool, chunked: bool
) -> str | None:
    """What makes this torch's own loader, in words; None for a loader with our order."""
    for name in ("sampler", "batch_sampler", "generator"):
        if options.get(name) is not None:
            return name
    if isinstance(dataset, IterableDataset):
        return "an IterableDataset"
    if batch_size is None:
        return "batch_size=None"
    if not (shuffle or chunked) and size_of(dataset) == 0:
        return "an empty dataset"
    if options.get("in_order") is False:
        return "in_order=False"
    return None


def refuse_ours(what: str, ours: dict[str, Any]) -> None:
    """Chunks, orders and ranks are arithmetic: they cannot be had of what only torch knows."""
    for name, value in ours.items():
        if value is not None:
            raise PlanError(
                f"{name}={value!r} needs an order that is known in advance, which {what} has not: "
                f"leave out {name}, or give a map-style dataset without {what}"
            )


def check_context(name: str, context: Any) -> Any:
    """A start method or its context, as torch takes it."""
    if not isinstance(context, BaseContext):
        choice(name, context, get_all_start_methods())
    return context


_TORCHS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
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


def check_torchs(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of torch's loader, checked; None stands for the default, as it does there."""
    checked = {
        name: _TORCHS[name](name, value) if name in _TORCHS else value
        for name, value in options.items()
        if value is not None
    }
    if checked.get("num_workers", 0) > MOST_WORKERS:
        raise PlanError(
            f"num_workers must be at most {MOST_WORKERS:,}, got {checked['num_workers']:,}: "
            "use about as many as there are cores"
        )
    return checked


def check_dataset(dataset: Any) -> None:
    """Refuse what can be indexed but is no dataset: a path would be one of letters."""
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
    """The number of samples, refused where a dataset has none or gives no samples by index."""
    kind = type(dataset)
    if not any(hasattr(kind, name) for name in ("__getitem__", "__getitems__", "__getbatch__")):
        raise PlanError(
            f"dataset must be map-style, but {kind.__name__} has no __getitem__: stream a source "
            "with StreamLoader(source, batch_size), or make what is only iterated an "
            "IterableDataset"
        )
    try:
        return len(dataset)
    except TypeError as error:
        raise PlanError(
            f"{kind.__name__} has no length ({error}): give it a __len__, or pass a sampler"
        ) from error


def check_order(order: Any, samples: int) -> Order:
    """An order of the caller's own, refused where it or its states would be of no use."""
    if not isinstance(order, Order):
        raise PlanError(
            f"order must be an Order, such as ShuffledOrder({samples}, seed=42), got {order!r}"
        )
    if order.size != samples:
        raise PlanError(f"the order has {order.size} samples, the dataset {samples}")
    place = Cursor(1, samples)  # not the start, which an identity might have by chance
    try:
        state = json.loads(json.dumps(to_state(place, order)))
        check_format(state)
        check_identity(state, order)
        survives = cursor_of(state) == place
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _lost_identity(order, error) from error
    if not survives:
        raise _lost_identity(order, "it overwrites the position")
    return order


def _lost_identity(order: Order, why: object) -> PlanError:
    return PlanError(
        f"a state of {type(order).__name__} could never be loaded ({why}): identity() must return "
        "a dict of plain strings and integers, the same at every call, with 'order', 'samples' "
        f"(an int, {order.size} or more) and 'seed', and without 'format', 'epoch' and 'position'"
    )


def check_executor(executor: str | None, num_workers: int) -> str:
    """The executor asked for, or what the number of workers says."""
    if executor is None:
        return "processes" if num_workers else "inline"
    choice("executor", executor, EXECUTORS)
    if (executor == "processes") != (num_workers > 0):
        raise PlanError(
            f"executor={executor!r} with num_workers={num_workers}: worker processes are for "
            "executor='processes' alone"
        )
    return executor


def check_threads(threads: int | None, executor: str) -> int | None:
    """The number of threads asked for, refused where none read."""
    if threads is None:
        return None
    if executor != "threads":
        raise PlanError(
            f"threads={threads!r} with executor={executor!r}: give 1 or more threads to "
            "executor='threads', or leave it out"
        )
    return whole_number("threads", threads, minimum=1)
