"""Iterable datasets on several workers and ranks: which one reads which part.

torch gives every worker process, and every rank, the whole of an ``IterableDataset``. Unless the
dataset splits itself, each sample is delivered once per worker and rank.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any

from penstock.errors import PlanError
from penstock.extras import optional
from penstock.order import Topology

log = logging.getLogger("penstock")


def check_workers(dataset: Any, num_workers: int, worker_init_fn: Any = None) -> None:
    """Refuse several workers for a dataset that would be read in full by each of them."""
    if num_workers > 1 and not splits_over_workers(dataset, worker_init_fn):
        raise PlanError(
            f"num_workers={num_workers} would deliver every sample {num_workers} times, because "
            f"each worker reads all of {type(dataset).__name__}: use num_workers=1, split it by "
            "torch.utils.data.get_worker_info() in __iter__, or set dataset.sharded = True if it "
            "is split elsewhere"
        )


def workers_for(dataset: Any, num_workers: int) -> int:
    """Return the useful number of workers: one for a dataset that does not split itself."""
    if _is_hugging_face(dataset):
        return min(num_workers, int(dataset.num_shards))
    if num_workers > 1 and not splits_over_workers(dataset):
        log.warning(
            "num_workers=1 instead of %d, because each worker would read all of %s: set "
            "dataset.sharded = True if it splits itself over workers and ranks",
            *(num_workers, type(dataset).__name__),
        )
        return 1
    return num_workers


def share_of_rank(dataset: Any, topology: Topology) -> Any:
    """Return the part of an iterable dataset that a rank reads; refuse one that cannot be split.

    A Hugging Face dataset is split by its own ``split_dataset_by_node``, unless it was already.
    """
    if topology.world == 1 or getattr(dataset, "sharded", False):
        return dataset
    if _is_hugging_face(dataset):
        if getattr(dataset, "_distributed", None) is not None:
            return dataset
        by_node = optional("datasets.distributed", extra="arrow")
        return by_node.split_dataset_by_node(dataset, topology.rank, topology.world)
    raise PlanError(
        f"{topology.world} ranks would deliver every sample {topology.world} times, because each "
        f"rank reads all of {type(dataset).__name__}: split it by rank (and by worker) in "
        "__iter__ and set dataset.sharded = True, or use a map-style dataset"
    )


def splits_over_workers(dataset: Any, worker_init_fn: Any = None) -> bool:
    """Return whether a dataset is marked as split, or its code asks for the worker."""
    if getattr(dataset, "sharded", False) or _is_hugging_face(dataset):
        return True
    methods = [value for kind in type(dataset).__mro__ for value in vars(kind).values()]
    init = worker_init_fn.func if isinstance(worker_init_fn, partial) else worker_init_fn
    return any("get_worker_info" in names for names in map(_names_in, [*methods, init]))


def restores_itself(dataset: Any) -> bool:
    """Return whether a dataset's own state is exact: not where a shuffle buffer is left out."""
    names = ("state_dict", "load_state_dict")
    if not all(callable(getattr(dataset, name, None)) for name in names):
        return False
    return not (_is_hugging_face(dataset) and _buffers(getattr(dataset, "_ex_iterable", None)))


def _buffers(examples: Any) -> bool:
    """Return whether a part of a Hugging Face stream has a buffer, or is of an unknown kind."""
    if examples is None:
        return True
    inner = [getattr(examples, "ex_iterable", ()), *getattr(examples, "ex_iterables", ())]
    kinds = {kind.__name__ for kind in type(examples).__mro__}
    if "BufferShuffledExamplesIterable" in kinds or "_BaseExamplesIterable" not in kinds:
        return True
    return any(_buffers(each) for each in inner if each != ())


def _is_hugging_face(dataset: Any) -> bool:
    return any(
        (kind.__module__, kind.__name__) == ("datasets.iterable_dataset", "IterableDataset")
        for kind in type(dataset).__mro__
    )


def _names_in(function: Any) -> set[str]:
    """Return the names a function uses, including those of functions inside it."""
    code = getattr(function, "__code__", None)
    return {name for each in _codes(code) for name in each.co_names}


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    if isinstance(code, CodeType):
        yield code
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from _codes(inner)
