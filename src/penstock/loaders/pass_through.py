"""Pass-through: loaders whose order torch decides, shares of iterable datasets, first batches."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.errors import BatchError, PlanError, StateError
from penstock.extras import optional
from penstock.loaders.base import Loader
from penstock.loaders.options import check_epoch, share_of, size_of
from penstock.order import Topology
from penstock.ranks import current_topology

if TYPE_CHECKING:
    from penstock.loaders.chunked import ChunkedDataLoader

log = logging.getLogger("penstock")

EXACT_STATES: Final = (5, 1)  # earlier datasets repeat or lose rows of `map` and `filter`


class PassThrough:
    """The behaviour of torch's own ``DataLoader``, where only torch knows the order.

    A `ChunkedDataLoader` chooses this once, at construction. Methods take the loader
    as an argument: a reference to it would be a cycle, and workers of a loader in a cycle end only
    when garbage is collected.

    Args:
        reason: The argument that makes torch decide the order.
        dataset: The dataset as it was passed in.
        limit: Batches of an iteration at most: a number or a share; None for all.
    """

    def __init__(self, reason: str, dataset: Any, limit: int | float | None) -> None:
        self.reason, self._dataset, self._limit = reason, dataset, limit

    def refuse_position(self, loader: ChunkedDataLoader) -> NoReturn:
        """Raise `StateError`: an order that torch decides has no position."""
        advice = "leave it out, and use seed= and order= instead"
        if isinstance(self._dataset, IterableDataset):
            advice = f"use ReplayLoader(dataset, batch_size={loader.batch_size}) instead"
        raise StateError(
            f"this loader has no state: with {self.reason}, torch decides the order, which "
            f"cannot be known in advance; {advice}"
        )

    def split_iterable(self, loader: ChunkedDataLoader) -> None:
        """Give this rank, and each of its workers, its own part of an iterable dataset."""
        if isinstance(self._dataset, IterableDataset):
            check_workers(self._dataset, loader.num_workers, loader.worker_init_fn)
            share = share_of_rank(self._dataset, current_topology(None, None))
            if share is not self._dataset:
                object.__setattr__(loader, "dataset", share)  # torch's own setter refuses it

    def iterate(self, loader: ChunkedDataLoader) -> Iterator[Any]:
        """Return torch's iterator, limited and timed."""
        self.split_iterable(loader)
        limit = self.length(loader) if isinstance(self._limit, float) else self._limit
        return TimedIterator(loader, partial(DataLoader.__iter__, loader), limit)

    def length(self, loader: ChunkedDataLoader) -> int:
        """Return the number of batches that torch counts, limited."""
        batches = DataLoader.__len__(loader)
        if isinstance(self._limit, float):
            return share_of(batches, self._limit)
        return batches if self._limit is None else min(batches, self._limit)

    def set_epoch(self, loader: ChunkedDataLoader, epoch: int) -> None:
        """Call the sampler's ``set_epoch`` if it has one."""
        getattr(loader.sampler, "set_epoch", lambda _: None)(check_epoch(epoch))

    def peek(self, loader: ChunkedDataLoader) -> Any:
        """Return the first batch, read in this process; no random number is drawn."""
        self.split_iterable(loader)
        return first_of_torch(loader)

    def summary(self, loader: ChunkedDataLoader) -> str:
        """Return one line for ``repr``."""
        what = f"{type(loader.dataset).__name__}, batch_size={loader.batch_size}"
        return f"<{type(loader).__name__}: {what}, order of torch ({self.reason})>"

    def describe(self) -> str:
        """Return one line: there is nothing more to know in advance."""
        return f"ChunkedDataLoader: torch's own loader, because of {self.reason}"


def pass_through_reason(
    dataset: Any, batch_size: int | None, options: dict[str, Any], *, shuffle: bool, chunked: bool
) -> str | None:
    """Return the argument that makes torch decide the order; None for our own order."""
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


def refuse_planned_arguments(reason: str, given: dict[str, Any]) -> None:
    """Refuse chunks, orders, ranks and executors, which need an order known in advance."""
    for name, value in given.items():
        if value is not None:
            raise PlanError(
                f"{name}={value!r} needs an order that is known in advance, and {reason} has none: "
                f"leave out {name}, or pass a map-style dataset without {reason}"
            )


class TimedIterator(Iterator[Any]):
    """An iterator that notes in ``loader.metrics`` how long its batches take.

    An error is raised unchanged, and the next call continues as the wrapped iterator does.

    Args:
        loader: The loader whose waiting time is counted, including the time to open.
        open: Returns the wrapped iterator; its attributes are available here too.
        limit: Batches at most, including those that raise; None for all.
    """

    def __init__(
        self, loader: Loader, open: Callable[[], Iterator[Any]], limit: int | None = None
    ) -> None:
        self._loader = loader
        self._limit = self._left = limit
        loader.metrics.pause()
        self._batches = loader.metrics.timed(open, 0)

    def __len__(self) -> int:
        batches = len(self._batches)  # type: ignore[arg-type]
        return batches if self._limit is None else min(batches, self._limit)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._left is not None:
            if self._left == 0:
                raise StopIteration
            self._left -= 1
        samples = getattr(self._loader, "batch_size", None) or 1
        return self._loader.metrics.timed(self._batches.__next__, samples)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)


# -- first batches, read without a trace


@contextmanager
def preserve_random_state(*generators: torch.Generator | None) -> Iterator[None]:
    """Return a context that restores the global random generators, and these, at its end.

    >>> with preserve_random_state():
    ...     first = torch.rand(1)
    >>> bool(torch.rand(1) == first)
    True
    """
    own = [(generator, generator.get_state()) for generator in generators if generator is not None]
    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        torch.set_rng_state(saved[2])
        for generator, state in own:
            generator.set_state(state)


def first_of_torch(loader: DataLoader[Any]) -> Any:
    """Return the first batch of torch's own loader, read here: no worker, no random draw."""
    options: dict[str, Any] = {"collate_fn": loader.collate_fn}
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        options["batch_sampler"] = loader.batch_sampler
    else:
        options |= {"batch_size": None, "sampler": loader.sampler}
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    drawing = (loader.generator, *(getattr(sampler, "generator", None) for sampler in samplers))
    with preserve_random_state(*drawing):
        return first_of(DataLoader(loader.dataset, generator=loader.generator, **options))


def first_of(batches: Any) -> Any:
    """Return the first of some batches.

    Raises:
        BatchError: There is none.
    """
    for batch in batches:
        return batch
    raise BatchError(
        "the loader has no batches: it is empty, or drop_last drops the only one; "
        "use a smaller batch size, or drop_last=False"
    )


# -- iterable datasets: torch gives the whole dataset to every worker process and every rank; unless
# -- the dataset splits itself, each sample is delivered once per worker and rank


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
    codes = (getattr(each, "__code__", None) for each in [*methods, init])
    return any("get_worker_info" in _names_in(code) for code in codes)


def has_position(loader: Any) -> bool:
    """Return whether this is a loader of Penstock with a state, not one whose order torch decides.

    Args:
        loader: Any loader.
    """
    try:
        return isinstance(loader, Loader) and loader.position is not None
    except StateError:
        return False


def restores_itself(dataset: Any) -> bool:
    """Return whether a dataset's own state is exact: not if it leaves out a shuffle buffer."""
    names = ("state_dict", "load_state_dict")
    if not all(callable(getattr(dataset, name, None)) for name in names):
        return False
    if not _is_hugging_face(dataset):
        return True
    release = tuple(int(part) for part in version("datasets").split(".")[:2])
    return release >= EXACT_STATES and not _buffers(getattr(dataset, "_ex_iterable", None))


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


def _names_in(code: Any) -> set[str]:
    """Return the names that code uses, including those of functions inside it."""
    if not isinstance(code, CodeType):
        return set()
    return set(code.co_names).union(*map(_names_in, code.co_consts))
