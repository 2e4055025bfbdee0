"""Streams that can only be read from their beginning: counted, and resumed by reading again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from torch.utils.data import DataLoader, default_collate, get_worker_info

from penstock.arguments import flag, function, whole_number
from penstock.errors import StateError
from penstock.keyed import Reading, announce, current_reading, keyed_generator
from penstock.loaders.pass_through import first_of, preserve_random_state
from penstock.loaders.sharding import share_of_rank, workers_for
from penstock.loaders.states import check_mapping
from penstock.loaders.torch_loader import OwnedSampler, TorchLoader, refuse_torchs
from penstock.loaders.workers import end_workers
from penstock.ranks import current_topology, ranks
from penstock.seeds import Seed

log = logging.getLogger("penstock")

FORMAT: Final = "penstock-replay/1"


class ReplayLoader(TorchLoader):
    """Batches of an ``IterableDataset``, torch's or Hugging Face's; resumed by reading it again.

    Such a dataset cannot be sought. A resumed epoch is read from its beginning, and what was
    delivered before is read again and thrown away: exact if the dataset gives the same samples
    whenever it is read in the same epoch (``set_epoch`` is called where it has one), and as slow
    as reading is. A Hugging Face stream's own state would be faster, but loses some of what its
    shuffle buffer holds, so it is not used. The batch size, workers and ranks must stay the same.

    Every ``iter()`` is an epoch; if the loop is left before its end, the next ``iter()`` begins the
    next epoch. It is a torch ``DataLoader`` by class, so trainers recognise it, without a length.

    Args:
        dataset: Can be iterated, and only that.
        batch_size: Samples of a batch.
        num_workers: Worker processes; no more than the dataset has shards.
        collate: Makes a batch of a list of samples; None for torch's default.
        seed: For what is drawn while samples are collated; None draws one for all ranks.
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
        **unknown: Any,  # a DataLoader is built again with further arguments by Lightning's predict
    ) -> None:
        refuse_torchs("ReplayLoader", unknown)
        batch_size = whole_number("batch_size", batch_size, minimum=1, unit="sample")
        num_workers = whole_number("num_workers", num_workers, minimum=0)
        self._data, self.evaluation = dataset, flag("evaluation", evaluation)
        self.num_workers = workers_for(dataset, num_workers)
        function("collate", collate)
        self._collate, self._seed = collate or default_collate, Seed.of(seed)
        self._epoch = self._batches = self._turn = 0
        self._exact = True  # the place was set, not left behind by an abandoned epoch
        self._iterating = False
        self._reading: Iterator[Any] | None = None
        seen = Unindexed(dataset)
        self._present(seen, batch_size, StreamSampler(seen), drop_last=False)

    @property
    def _is_new(self) -> bool:
        return self._epoch == 0 and self._batches <= 1  # Lightning has fetched one by then

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate's ``save_state`` saves the place of this loader."""
        return not self.evaluation

    def __len__(self) -> int:
        """Refuse: how many batches there are is known when they were read."""
        raise TypeError(f"a loader of {type(self._data).__name__} has no length")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The rest of the current epoch, then stop."""
        if self.evaluation or (self._batches and not self._exact):
            self._epoch, self._batches = 0 if self.evaluation else self._epoch + 1, 0
        self._turn, self._exact = self._turn + 1, True
        return self._deliver(self._turn, self._batches)

    def _deliver(self, turn: int, delivered: int) -> Iterator[Any]:
        self._reading, self._iterating = self._read(self._epoch, self.num_workers), True
        self._seed.settle("batches were delivered")
        try:
            for number, batch in enumerate(self._reading, start=1):
                if number <= delivered:
                    continue
                self._batches, self._exact = number, False
                yield batch
                if turn != self._turn:
                    raise StateError(
                        "this iterator ended when its loader was moved or iterated again: call "
                        "iter(loader) again"
                    )
            self._epoch, self._batches, self._exact = self._epoch + 1, 0, True
        finally:
            self._iterating = self._iterating and turn != self._turn

    def _read(self, epoch: int, num_workers: int) -> Iterator[Any]:
        getattr(self._data, "set_epoch", lambda _: None)(epoch)
        seed = self._seed.for_ranks(ranks())
        return iter(
            DataLoader(
                self._share(),
                self.batch_size,
                num_workers=num_workers,
                collate_fn=_Announcing(self._collate, seed, epoch),
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
            self._turn += 1

    def state_dict(self) -> dict[str, Any]:
        """How much was delivered, and what that depends on."""
        return {"format": FORMAT, "epoch": self._epoch, "batches": self._batches, **self._identity}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after what was delivered, from the next ``iter()`` on.

        Args:
            state_dict: What `state_dict` returned, with the same batch size, workers and ranks.
        """
        check_mapping(state_dict, FORMAT)
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
        self._turn += 1
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
        """The first batch of the epoch, read in this process: nothing moves.

        Workers read shards by turns: with them, another batch may be the first.
        """
        with preserve_random_state():
            return first_of(self._read(0 if self.evaluation else self._epoch, num_workers=0))

    def close(self) -> None:
        """End the current iteration and its workers; it may be iterated again."""
        self._turn += 1
        end_workers(self._reading)
        self._reading = None


class Unindexed:
    """A dataset that can only be iterated, as ``loader.dataset``: its attributes, not its class.

    accelerate and Hugging Face's ``Trainer`` skip batches of an ``IterableDataset`` by themselves,
    in whatever epoch it is: what they do with this is refused.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)


class StreamSampler(OwnedSampler):
    """What trainers find as ``loader.sampler`` of a stream: no indices, and no length."""

    _warned = False

    def set_epoch(self, epoch: int) -> None:
        """Move nothing. Lightning calls this before every epoch."""
        super().set_epoch(epoch)
        if not self._warned and {"lightning.pytorch", "pytorch_lightning"} & sys.modules.keys():
            self._warned = True
            log.warning(
                "Lightning reads a loader without a length one batch ahead, and its checkpoints "
                "count that batch as trained: a run resumed inside an epoch leaves it out"
            )

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a stream has no indices")

    def __len__(self) -> int:
        raise TypeError("a stream has no length")


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
