"""Batches of datasets that can only be iterated; resumed by reading from the beginning."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from torch.utils.data import DataLoader, default_collate, get_worker_info

from penstock.arguments import flag, function, whole_number
from penstock.errors import StateError
from penstock.keyed import Reading, announce, current_reading, keyed_generator
from penstock.loaders.pass_through import first_of, preserve_random_state
from penstock.loaders.sharding import share_of_rank, workers_for
from penstock.loaders.torch_loader import OwnedSampler, TorchLoader, refuse_torchs
from penstock.loaders.workers import end_workers
from penstock.ranks import current_topology, ranks
from penstock.seeds import Seed

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


class ReplayLoader(TorchLoader):
    """Batches of an ``IterableDataset`` of torch or Hugging Face; resumes by reading it again.

    Such a dataset cannot seek. A resumed epoch is read from its beginning, and the batches that
    were delivered before are read and discarded. This is exact if the dataset yields the same
    samples in every pass of the same epoch (its ``set_epoch`` is called if it has one), and takes
    as long as reading them. The state of a Hugging Face stream would be faster, but it loses part
    of the shuffle buffer, so it is not used. Batch size, workers and ranks must stay the same.

    Every ``iter()`` is an epoch. After a ``break`` the next ``iter()`` starts the next epoch. The
    class is a torch ``DataLoader`` without a length, so that trainers recognise it.

    Args:
        dataset: An iterable of samples.
        batch_size: Samples of a batch.
        num_workers: Worker processes; at most the number of shards of the dataset.
        collate: Makes a batch of a list of samples; None for torch's default.
        seed: Seed of random numbers drawn during collation; None draws one for all ranks.
        evaluation: Every ``iter()`` is epoch 0 from its start.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        num_workers: int,
        collate: Callable[[list[Any]], Any] | None,
        seed: Seed | int | None,
        evaluation: bool = False,
        **unknown: Any,  # refused below; Lightning's predict rebuilds a DataLoader with them
    ) -> None:
        refuse_torchs("ReplayLoader", unknown)
        batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample")
        num_workers = whole_number("num_workers", num_workers, minimum=0)
        self._data, self.evaluation = dataset, flag("evaluation", evaluation)
        self.num_workers = workers_for(dataset, num_workers)
        function("collate", collate)
        self._collate, self._seed = collate or default_collate, Seed.of(seed)
        self._epoch = self._batches = self._iteration = 0
        self._exact = True  # the position was set; False after a break
        self._iterating = False
        self._reading: Iterator[Any] | None = None
        seen = Unindexed(dataset)
        self._present(seen, batch_size, StreamSampler(seen), drop_last=False)

    @property
    def _is_new(self) -> bool:
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
            self._epoch, self._batches = 0 if self.evaluation else self._epoch + 1, 0
        self._iteration, self._exact = self._iteration + 1, True
        return self._deliver(self._iteration, self._batches)

    def _deliver(self, iteration: int, delivered: int) -> Iterator[Any]:
        self._reading, self._iterating = self._read(self._epoch, self.num_workers), True
        self._seed.settle("batches were delivered")
        try:
            for number, batch in enumerate(self._reading, start=1):
                if number <= delivered:
                    continue
                self._batches, self._exact = number, False
                yield batch
                if iteration != self._iteration:
                    raise StateError(
                        "this iterator ended when its loader was moved or iterated again: call "
                        "iter(loader) again"
                    )
            self._epoch, self._batches, self._exact = self._epoch + 1, 0, True
        finally:
            self._iterating = self._iterating and iteration != self._iteration

    def _read(self, epoch: int, num_workers: int) -> Iterator[Any]:
        getattr(self._data, "set_epoch", lambda _: None)(epoch)
        seed = self._seed.for_ranks(ranks())
        return iter(
            DataLoader(
                self._share(),
                self.batch_size,
                num_workers=num_workers,
                collate_fn=_KeyedCollate(self._collate, seed, epoch),
                generator=keyed_generator(seed, "replay", epoch),
            )
        )

    def _share(self) -> Any:
        return share_of_rank(self._data, current_topology(None, None))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens.

        Args:
            epoch: The epoch, counted from 0.
        """
        epoch = whole_number("epoch", epoch, minimum=0)
        left = self._batches and not self._exact and not self._iterating
        if epoch != self._epoch or left:
            self._epoch, self._batches, self._exact = epoch, 0, True
            self._iteration += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the settings it depends on."""
        return {"format": FORMAT, "epoch": self._epoch, "batches": self._batches, **self._identity}

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
                    "stream without an index resumes only as it was read before"
                )
        epoch, batches = (
            whole_number(name, state_dict.get(name), minimum=0, error=StateError)
            for name in ("epoch", "batches")
        )
        self._epoch, self._batches, self._exact = epoch, batches, True
        self._iteration += 1
        if batches:
            log.info("reading %d batches again before training continues", batches)

    @property
    def _identity(self) -> dict[str, int | None]:
        world = ranks()
        workers, size = self.num_workers, self.batch_size
        return {
            "seed": self._seed.for_ranks(world),
            "batch_size": size,
            "num_workers": workers,
            "world": world,
        }

    def peek(self) -> Any:
        """Return the first batch of the epoch, read in this process; the position does not change.

        Workers alternate between shards, so with workers another batch may be the first.
        """
        with preserve_random_state():
            return first_of(self._read(0 if self.evaluation else self._epoch, num_workers=0))

    def close(self) -> None:
        """Stop the current iteration and its workers; the loader can be iterated again."""
        self._iteration += 1
        end_workers(self._reading)
        self._reading = None


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

    _warned = False

    def set_epoch(self, epoch: int) -> None:
        """Do nothing; Lightning calls this before every epoch."""
        super().set_epoch(epoch)
        if not self._warned and {"lightning.pytorch", "pytorch_lightning"} & sys.modules.keys():
            self._warned = True
            log.warning(
                "Lightning reads a loader without a length one batch ahead, and its checkpoints "
                "count that batch as trained: a run resumed inside an epoch skips it"
            )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a stream has no indices")

    def __len__(self) -> int:
        raise TypeError("a stream has no length")


class _KeyedCollate:
    """A collate function that sets the key of random draws, so that they differ by batch."""

    def __init__(self, collate: Callable[[list[Any]], Any], seed: int, epoch: int) -> None:
        self._collate, self._seed, self._epoch, self._calls = collate, seed, epoch, 0

    def __call__(self, samples: list[Any]) -> Any:
        info, outer = get_worker_info(), current_reading()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        first = (self._calls * lanes + lane) << 20  # batches are shorter than that
        self._calls += 1
        announce(Reading(self._seed, self._epoch, np.arange(first, first + len(samples))))
        try:
            return self._collate(samples)
        finally:
            announce(outer)
