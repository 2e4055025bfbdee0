"""Batches of datasets that can only be iterated; resumed from their own state, or by rereading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from penstock.arguments import flag, function, shown, whole_number
from penstock.errors import PlanError, StateError
from penstock.keyed import Reading, announce, current_reading, keyed_generator
from penstock.loaders.base import Measured
from penstock.loaders.batch_transport import collate_and_pack
from penstock.loaders.pass_through import (
    first_of,
    preserve_random_state,
    restores_itself,
    share_of_rank,
    workers_for,
)
from penstock.loaders.torch_loader import OwnedSampler, TorchLoader, checked_by_trainer
from penstock.loaders.workers import WorkerContext, starting_workers
from penstock.metrics import Probe
from penstock.ranks import Seed, current_topology, ranks

log = logging.getLogger("penstock")

FORMAT: Final = "penstock-replay/1"


def check_state_format(state_dict: Any, expected: str) -> None:
    """Raise `StateError` unless ``state_dict`` is a state of that format.

    >>> check_state_format({"format": "other/1"}, "penstock-module/1")
    Traceback (most recent call last):
    ...
    penstock.errors.StateError: state_dict must have the format 'penstock-module/1', got 'other/1'
    """
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise StateError(f"state_dict must be a dict that state_dict() returned, got {kind}")
    found = state_dict.get("format")
    if found != expected:
        raise StateError(f"state_dict must have the format {expected!r}, got {found!r}")


class ReplayLoader(Measured, TorchLoader):
    """Batches of an ``IterableDataset`` of torch or Hugging Face, with an exact resume.

    Such a dataset cannot seek. If it has ``state_dict`` and ``load_state_dict``, its own state is
    saved with the position, one for each worker, and a resumed epoch continues there. Otherwise the
    epoch is read from its beginning, and the batches that were delivered before are discarded: this
    takes as long as reading them, and is exact if the dataset yields the same samples in every pass
    of the same epoch (its ``set_epoch`` is called if it has one). The same happens with a Hugging
    Face stream that has a shuffle buffer, whose content is missing in its own state, and on a rank
    that loads the state of another one. Batch size, workers and ranks must stay the same.

    Every ``iter()`` is an epoch. After a ``break`` the next ``iter()`` starts the next epoch. The
    class is a torch ``DataLoader`` without a length, so that trainers recognise it.

    Args:
        dataset: An iterable of samples.
        batch_size: Samples of a batch.
        num_workers: Worker processes; at most the number of shards of the dataset.
        collate_fn: Makes a batch of a list of samples; None for torch's default.
        seed: Seed of random numbers drawn during collation; None draws one for all ranks.
        evaluation: Every ``iter()`` is epoch 0 from its start.
        collate: An older name of ``collate_fn``.

    >>> class Numbers(IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(10))
    >>> loader = ReplayLoader(Numbers(), batch_size=4)
    >>> batches = iter(loader)
    >>> next(batches), loader.state_dict()["batches"]
    (tensor([0, 1, 2, 3]), 1)
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        seed: Seed | int | None = 42,
        evaluation: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        **unknown: Any,  # refused below; Lightning's predict rebuilds a DataLoader with them
    ) -> None:
        for name in unknown:
            raise TypeError(f"ReplayLoader takes no argument {name!r}")
        if not hasattr(dataset, "__iter__"):
            raise PlanError(f"dataset must be iterable, got {shown(dataset)}")
        batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample")
        num_workers = whole_number("num_workers", num_workers, minimum=0)
        self._data, self.evaluation = dataset, flag("evaluation", evaluation)
        self.num_workers = workers_for(dataset, num_workers)
        self._collate = function("collate_fn", collate_fn) or function("collate", collate)
        self._seed = Seed.of(seed)
        self._iteration, self._iterating = 0, False
        self._workers: WorkerContext | None = None  # of the newest iteration
        self._move(0)
        seen = Unindexed(dataset)
        self._present(seen, batch_size, StreamSampler(seen), drop_last=False)

    def _move(self, epoch: int, batches: int = 0, own: dict[str, Any] | None = None) -> None:
        """Have the next ``iter()`` begin there; ``own`` is what the dataset saved there."""
        self._epoch, self._batches, self._own = epoch, batches, own
        self._exact = True  # the position was set; False after a break

    @property
    def is_new(self) -> bool:
        """Whether nothing was delivered for training."""
        return self._epoch == 0 and self._batches <= 1  # Lightning reads one batch ahead

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate's ``save_state`` saves the position of this loader."""
        return not self.evaluation

    def __len__(self) -> int:
        """Raise ``TypeError``: the number of batches is unknown before they are read."""
        raise TypeError(f"a loader of {type(self._data).__name__} has no length")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the rest of the current epoch."""
        if self.evaluation or (self._batches and not self._exact):
            self._move(0 if self.evaluation else self._epoch + 1)
        self._iteration, self._exact = self._iteration + 1, True
        return self._deliver(self._iteration)

    def _deliver(self, iteration: int) -> Iterator[Any]:
        delivered, own, here = self._batches, self._usable(self._own), current_topology(None, None)
        marks = [(0, None)] * max(1, self.num_workers) if own is None else list(own["workers"])
        number = 0 if own is None else delivered
        reading, self._iterating = self._read(self.num_workers, own), True
        coming = _not_delivered(reading, marks, number, delivered)
        workers = self._workers
        self._seed.settle("batches were delivered")
        self.metrics.pause()
        try:
            while (came := self._next(coming)) is not None:
                number, worker, mark, batch = came
                self._batches, self._exact = number, False
                if mark[1] is not None:
                    self._own = {"rank": here.rank, "last": worker, "workers": list(marks)}
                yield batch
                if iteration != self._iteration:
                    raise StateError(
                        "this iterator ended when its loader was moved or iterated again: call "
                        "iter(loader) again"
                    )
            self._move(self._epoch + 1)
        finally:
            if workers is not None:
                workers.end()
            self._iterating = self._iterating and iteration != self._iteration

    def _next(self, coming: Iterator[_Came]) -> _Came | None:
        """Return the next batch, measured; the first includes those that are read again."""
        at = self._epoch, self._batches
        try:
            return self.metrics.timed(partial(_probed, coming), self.batch_size or 1, at)
        except StopIteration:
            return None

    def _usable(self, own: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what the dataset saved, unless it was saved on another rank."""
        return own if own is not None and own["rank"] == current_topology(None, None).rank else None

    def _read(self, num_workers: int, own: dict[str, Any] | None) -> Iterator[Any]:
        epoch = 0 if self.evaluation else self._epoch
        getattr(self._data, "set_epoch", lambda _: None)(epoch)
        seed = self._seed.for_ranks(ranks())
        data = share_of_rank(self._data, current_topology(None, None))
        collate = self._collate or default_collate
        part = _Part(data, collate, seed, epoch, size=self.batch_size or 1, own=own)
        options: dict[str, Any] = {"collate_fn": part.collate, "num_workers": num_workers}
        context = None
        if num_workers:
            # torch's own workers outlive a process that is killed as it starts them
            context = self._workers = WorkerContext(None)
            options["multiprocessing_context"] = context
            options["worker_init_fn"] = context.initializer(None)
            options["collate_fn"] = partial(collate_and_pack, part.collate)
        generator = keyed_generator(seed, "replay", epoch)
        loader = DataLoader(part, self.batch_size, generator=generator, **options)
        with starting_workers():
            batches = iter(loader)
            if context is not None:
                context.batches = batches
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; do nothing if the loader is inside that epoch already.

        Args:
            epoch: The epoch, counted from 0.
        """
        epoch = whole_number("epoch", epoch, minimum=0)
        checked_by_trainer(self)
        left = self._batches and not self._exact and not self._iterating
        if epoch != self._epoch or left:
            self._move(epoch)
            self._iteration += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the settings it depends on, and the dataset's own state, if any."""
        state = {"format": FORMAT, "epoch": self._epoch, "batches": self._batches, **self._identity}
        return state if self._own is None else state | {"dataset": deepcopy(self._own)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved position from the next ``iter()`` on.

        Args:
            state_dict: A result of `state_dict` with the same batch size, workers and ranks.
        """
        check_state_format(state_dict, FORMAT)
        if not self._seed.given and isinstance(state_dict.get("seed"), int):
            self._seed.restore(state_dict["seed"])
        for name, ours in self._identity.items():
            if state_dict.get(name) != ours:
                raise StateError(
                    f"the state has {name} {state_dict.get(name)!r}, this loader {ours!r}: a "
                    "stream without an index can only resume with the same settings"
                )
        epoch, batches = (
            whole_number(name, state_dict.get(name), minimum=0, error=StateError)
            for name in ("epoch", "batches")
        )
        own = None
        if restores_itself(self._data) and state_dict.get("dataset") is not None:
            own = _checked_own(state_dict["dataset"], max(1, self.num_workers))
        self._move(epoch, batches, own)
        self._iteration += 1
        if batches and self._usable(own) is None:
            log.info("reading %d batches again before training continues", batches)

    @property
    def _identity(self) -> dict[str, int | None]:
        world = ranks()
        sizes = {"batch_size": self.batch_size, "num_workers": self.num_workers, "world": world}
        return {"seed": self._seed.for_ranks(world), **sizes}

    def peek(self) -> Any:
        """Return the first batch of the epoch, read in this process; the position does not change.

        Workers alternate between shards, so with workers another batch may be the first.
        """
        with preserve_random_state():
            return first_of(self._read(0, None))[2]

    def close(self) -> None:
        """Stop the current iteration and its workers; the loader can be iterated again."""
        self._iteration += 1
        if self._workers is not None:
            self._workers.end()


def _checked_own(own: Any, workers: int) -> dict[str, Any]:
    """Return what a dataset saved in a state, with one entry for each worker."""
    try:
        marks = [(whole_number("batches", n, minimum=0), deepcopy(s)) for n, s in own["workers"]]
        rank, last = (whole_number(name, own[name], minimum=0) for name in ("rank", "last"))
    except (TypeError, ValueError, KeyError) as error:
        raise StateError(f"the state of the dataset cannot be read: {error!r}") from error
    if len(marks) != workers:
        raise StateError(f"the state of the dataset is for {len(marks)} workers, not {workers}")
    if last >= workers:
        raise StateError(f"the state of the dataset names worker {last} of {workers}")
    return {"rank": rank, "last": last, "workers": marks}


class _Part(IterableDataset[Any]):
    """The part of a dataset that one process reads in an epoch: batches (worker, mark, batch).

    A mark is the number of batches that the worker has delivered, and the state of the dataset
    after them. Workers deliver in turn. Where a resume begins inside a turn, those that have had
    their turn send an empty batch first, whose mark is None.

    Args:
        dataset: The rank's part of the dataset.
        collate_fn: Makes a batch of a list of samples.
        seed: Seed of random numbers drawn during collation.
        epoch: The epoch.
        size: Samples of a batch.
        own: Where to continue; None for the beginning.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any],
        seed: int,
        epoch: int,
        *,
        size: int,
        own: dict[str, Any] | None,
    ) -> None:
        self._restores = restores_itself(dataset)
        # a copy: a state that was loaded or reached does not change the next epoch
        self._dataset = copy(dataset) if self._restores else dataset
        self._collate, self._seed, self._epoch = collate_fn, seed, epoch
        self._size, self._own, self._batches = size, own, 0

    def __iter__(self) -> Iterator[Any]:
        if self._own is not None:
            worker = _worker()[0]
            self._batches, state = self._own["workers"][worker]
            if worker <= self._own["last"] < _worker()[1] - 1:
                yield from repeat(_HAD_ITS_TURN, self._size)
            if state is not None:
                self._dataset.load_state_dict(state)
        yield from self._dataset

    def collate(self, samples: list[Any]) -> tuple[int, tuple[int, Any] | None, Any]:
        """Return a batch; keys of random draws are set, so that they differ by batch."""
        worker, workers = _worker()
        if samples[0] is _HAD_ITS_TURN:
            return worker, None, None
        outer = current_reading()
        first = (self._batches * workers + worker) << 20  # batches are shorter than that
        self._batches += 1
        announce(Reading(self._seed, self._epoch, np.arange(first, first + len(samples))))
        try:
            with Probe("collate"):
                batch = self._collate(samples)
        finally:
            announce(outer)
        state = deepcopy(self._dataset.state_dict()) if self._restores else None
        return worker, (self._batches, state), batch


_HAD_ITS_TURN: Final = object()  # a sample of an empty batch; made and found in one process


def _worker() -> tuple[int, int]:
    """Return the number of this worker process, and of how many; 0 of 1 without workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


_Came = tuple[int, int, Any, Any]  # number of a batch, its worker, the worker's mark, the batch


def _not_delivered(
    reading: Iterator[Any], marks: list[Any], number: int, delivered: int
) -> Iterator[_Came]:
    """Yield the batches after those that were delivered, and keep the marks of all of them."""
    for worker, mark, batch in reading:
        if mark is None:
            continue
        number, marks[worker] = number + 1, mark
        if number > delivered:
            yield number, worker, mark, batch


def _probed(coming: Iterator[_Came]) -> _Came:
    with Probe("read"):
        return next(coming)


class Unindexed:
    """The dataset as ``loader.dataset``: with its attributes, but not its class.

    accelerate and Hugging Face's ``Trainer`` skip batches of an ``IterableDataset`` themselves, in
    the wrong epoch; with this class, they do not recognise one.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)


class StreamSampler(OwnedSampler):
    """The ``loader.sampler`` that trainers find: without indices and without a length."""

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a stream has no indices")

    def __len__(self) -> int:
        raise TypeError("a stream has no length")
