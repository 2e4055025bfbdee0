"""Loaders that trainers recognise as torch's, and must not rebuild.

accelerate, Lightning and Hugging Face's ``Trainer`` look for a ``DataLoader`` and build another
one around its dataset and samplers: with the first batches skipped, a sampler replaced, or indices
noted. The place of a Penstock loader would be lost in that, silently. What they find here either
keeps the loader as it is, or refuses to be iterated by another one.
"""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from penstock.errors import PlanError, StateError

log = logging.getLogger("penstock")


class TorchLoader(DataLoader[Any]):
    """A ``DataLoader`` by class and attributes, which delivers batches in its own way."""

    # accelerate keeps a loader with this mark as it is, and saves its place
    _is_accelerate_prepared = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a view of the loader where Lightning's ``predict`` rebuilds it to note indices."""
        batches = getattr(kwargs.get("batch_sampler"), "_batch_sampler", None)
        if isinstance(batches, PlannedBatches):
            return View(batches.owner)  # type: ignore[return-value]  # so __init__ is not called
        return object.__new__(cls)

    def _present(
        self,
        dataset: Any,
        batch_size: int | None,
        sampler: OwnedSampler,
        *,
        drop_last: bool,
        **options: Any,
    ) -> None:
        """Set what a ``DataLoader`` has, for trainers to find."""
        sampler.owner = weakref.ref(self)
        own = {name: kept for name, kept in vars(self).items() if not name.startswith("__")}
        options |= {"sampler": sampler, "drop_last": drop_last}
        DataLoader.__init__(self, dataset, batch_size, **options)
        # not by torch's setter, which refuses it
        vars(self).update(own, batch_sampler=PlannedBatches(sampler, batch_size or 1, drop_last))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.sampler, OwnedSampler):
            self.sampler.owner = weakref.ref(self)

    @property
    @abstractmethod
    def _is_new(self) -> bool:
        """Whether it is where it was when it was made."""

    @property
    @abstractmethod
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate's ``save_state`` saves the place of this loader."""

    @abstractmethod
    def peek(self) -> Any:
        """The batch the next ``iter()`` begins with: nothing moves."""


class OwnedSampler(DistributedSampler[Any]):
    """What trainers find as ``loader.sampler``: samples already dealt to the ranks.

    It *is* a ``DistributedSampler``, so Lightning does not put one in its place; and its
    `set_epoch` does nothing, because trainers call it with numbers that count chunks.
    """

    owner: weakref.ref[TorchLoader] | None = None  # not the loader itself, which would be a cycle

    def __init__(self, dataset: Any) -> None:
        Sampler.__init__(self)  # not DistributedSampler's, which fixes the ranks once and for all
        self.dataset, self.epoch = dataset, 0

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"owner": None}

    def set_epoch(self, epoch: int) -> None:
        """Move nothing: the epoch is the loader's, and travels with the indices."""
        owner = None if self.owner is None else self.owner()
        if epoch > 0 and owner is not None and owner._is_new:
            log.warning(
                "epoch %d begins with a loader at its start, where training was before epoch 0: "
                "its position was not restored, or it is a new loader; use ChunkedTraining in "
                "Lightning, or load_state_dict",
                epoch,
            )


class PlannedBatches(BatchSampler):
    """What trainers find as ``loader.batch_sampler``: not for another loader to iterate."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(sampler, OwnedSampler):
            raise PlanError(
                f"cannot put a {type(sampler).__name__} into a loader that has its own order (as "
                "Lightning's overfit_batches=n does): pass limit_train_batches=n, and a loader "
                "with evaluation=True, which begins with the same batches each time"
            )
        super().__init__(sampler, batch_size, drop_last)

    @property
    def owner(self) -> Any:
        """The loader it belongs to."""
        owner = getattr(self.sampler, "owner", None)
        return None if owner is None else owner()

    def __iter__(self) -> Iterator[list[int]]:
        """Refuse: whoever iterates this built another loader, whose batches would be wrong."""
        name = type(self.owner).__name__ if self.owner is not None else "loader"
        raise StateError(
            f"cannot iterate the batch sampler of a {name} in another loader, as accelerate's "
            "skip_first_batches and a resumed Hugging Face Trainer do: the loader keeps its own "
            "place; iterate the loader itself after load_state, and return TrainerLoader(loader) "
            "from the Trainer's get_train_dataloader"
        )


def refuse_torchs(loader: str, options: dict[str, Any]) -> None:
    """Refuse arguments of torch's loader that have another name here, or no meaning."""
    for name in options:
        hint = _INSTEAD.get(name, "")
        raise TypeError(f"{loader} takes no argument {name!r}{hint and f': {hint}'}")


_INSTEAD = {
    "num_workers": "it reads by threads; leave it out",
    "persistent_workers": "it reads by threads; leave it out",
    "prefetch_factor": "it reads ahead as far as memory_budget allows; leave it out",
    "pin_memory": "pass device=, and batches are copied there from pinned memory",
    "collate_fn": "pass collate=, a function of the whole batch",
    "sampler": "pass shuffle= and seed=; only ChunkedDataLoader takes a sampler",
    "batch_sampler": "pass shuffle= and seed=; only ChunkedDataLoader takes a batch_sampler",
    "generator": "pass seed=",
}


class View:
    """A loader for Lightning to iterate, which is no ``DataLoader`` to rebuild again."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
