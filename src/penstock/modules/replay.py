"""Streams that can only be read from their beginning: counted, and resumed by reading again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from torch.utils.data import DataLoader, default_collate, get_worker_info

from penstock.errors import StateError
from penstock.keyed import Reading, announce, current_reading, keyed_generator
from penstock.loaders.base import current_topology
from penstock.loaders.processes import end_workers
from penstock.loaders.sharding import share_of_rank, workers_for

log = logging.getLogger("penstock")

FORMAT: Final = "penstock-replay/1"


class ReplayLoader:
    """Batches of an ``IterableDataset``, torch's or Hugging Face's; resumed by reading it again.

    Such a dataset cannot be sought. A resumed epoch is read from its beginning, and what was
    delivered before is read again and thrown away: exact if the dataset gives the same samples
    whenever it is read in the same epoch (``set_epoch`` is called where it has one), and as slow
    as reading is. A Hugging Face stream's own state would be faster, but loses some of what its
    shuffle buffer holds, so it is not used. The batch size, workers and ranks must stay the same.

    Every ``iter()`` is an epoch; left in its midst, the epoch is over.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        num_workers: int,
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        evaluation: bool = False,
    ) -> None:
        self.dataset, self.batch_size, self.evaluation = dataset, batch_size, evaluation
        self.num_workers = workers_for(dataset, num_workers)
        self._collate, self._seed = collate or default_collate, seed
        self._epoch = self._batches = self._turn = 0
        self._exact = True  # the place was set, not left behind by an abandoned epoch
        self._reading: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """The rest of the current epoch, then stop."""
        if self.evaluation or (self._batches and not self._exact):
            self._epoch, self._batches = 0 if self.evaluation else self._epoch + 1, 0
        self._turn, self._exact = self._turn + 1, True
        return self._deliver(self._turn, self._batches)

    def _deliver(self, turn: int, delivered: int) -> Iterator[Any]:
        for number, batch in enumerate(self._read(self._epoch), start=1):
            if number <= delivered:
                continue
            self._batches, self._exact = number, False
            yield batch
            if turn != self._turn:
                raise StateError("this iterator ended when its loader was moved or iterated anew")
        self._epoch, self._batches, self._exact = self._epoch + 1, 0, True

    def _read(self, epoch: int) -> Iterator[Any]:
        getattr(self.dataset, "set_epoch", lambda _: None)(epoch)
        self._reading = iter(
            DataLoader(
                self._share(),
                self.batch_size,
                num_workers=self.num_workers,
                collate_fn=_Announcing(self._collate, self._seed, epoch),
                generator=keyed_generator(self._seed, "replay", epoch),
            )
        )
        return self._reading

    def _share(self) -> Any:
        return share_of_rank(self.dataset, current_topology(None, None))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens."""
        if epoch != self._epoch or (self._batches and not self._exact):
            self._epoch, self._batches, self._exact = epoch, 0, True
            self._turn += 1

    def state_dict(self) -> dict[str, Any]:
        """How much was delivered, and what that depends on."""
        return {"format": FORMAT, "epoch": self._epoch, "batches": self._batches, **self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after what was delivered, from the next ``iter()`` on."""
        for name, ours in {"format": FORMAT, **self._identity}.items():
            if state.get(name) != ours:
                raise StateError(
                    f"the state has {name} {state.get(name)!r}, this loader {ours!r}: a stream "
                    "without an index resumes only as it was read before"
                )
        self._epoch, self._batches, self._exact = state["epoch"], state["batches"], True
        self._turn += 1
        if self._batches:
            log.info("%d batches are read again before training goes on", self._batches)

    @property
    def _identity(self) -> dict[str, int]:
        world = current_topology(None, None).world
        workers, size = self.num_workers, self.batch_size
        return {"seed": self._seed, "batch_size": size, "num_workers": workers, "world": world}

    def close(self) -> None:
        """End the current iteration and its workers; it may be iterated again."""
        self._turn += 1
        end_workers(self._reading)
        self._reading = None


class _Announcing:
    """A collate function that says what is being read, so that draws differ from batch to batch."""

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
