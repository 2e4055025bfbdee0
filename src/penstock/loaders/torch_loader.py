"""Loaders that trainers recognise as torch's, and must not rebuild.

accelerate, Lightning and Hugging Face's ``Trainer`` look for a ``DataLoader`` and build another
one from its dataset and samplers: with the first batches skipped, a sampler replaced, or indices
recorded. The position of a Penstock loader would be lost silently. The attributes here either make
them keep the loader as it is, or refuse to be iterated by another loader.
"""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Self

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from penstock.errors import PlanError, StateError
from penstock.loaders.position import Position

log = logging.getLogger("penstock")


def checked_by_trainer(loader: Any) -> bool:
    """Let the adapter of the running trainer check a loader; return whether a trainer runs.

    The adapters are imported by name: they are in a layer above this one.
    """
    found: bool = import_module("penstock.integrations").check_running_trainer(loader)
    return found


class TorchLoader(DataLoader[Any]):
    """A ``DataLoader`` by class and attributes that produces its batches itself."""

    # accelerate does not rebuild a loader with this mark, and saves its state
    _is_accelerate_prepared = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a view of the loader if Lightning's ``predict`` rebuilds it to record indices."""
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
        """Set the attributes of a ``DataLoader``, for trainers to find."""
        sampler.owner = weakref.ref(self)
        own = {name: value for name, value in vars(self).items() if not name.startswith("__")}
        options |= {"sampler": sampler, "drop_last": drop_last}
        DataLoader.__init__(self, dataset, batch_size, **options)
        # not by torch's setter, which refuses it
        vars(self).update(own, batch_sampler=PlannedBatches(sampler, batch_size or 1, drop_last))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.sampler, OwnedSampler):
            self.sampler.owner = weakref.ref(self)

    @abstractmethod
    def peek(self) -> Any:
        """Return the batch the next ``iter()`` begins with; the position does not move."""


class OwnedSampler(DistributedSampler[Any]):
    """What trainers find as ``loader.sampler``: samples already distributed to the ranks.

    It *is* a ``DistributedSampler``, so that Lightning does not replace it. Its `set_epoch` does
    nothing, because trainers call it with numbers that count chunks.
    """

    owner: weakref.ref[Any] | None = None  # not the loader itself, which would be a cycle

    def __init__(self, dataset: Any) -> None:
        Sampler.__init__(self)  # not DistributedSampler's, which fixes the ranks
        self.dataset, self.epoch = dataset, 0

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"owner": None}

    def set_epoch(self, epoch: int) -> None:
        """Do nothing but check: the loader has its own epoch, sent with the indices."""
        owner = None if self.owner is None else self.owner()
        if owner is not None and not checked_by_trainer(owner) and epoch > 0 and owner.is_new:
            log.warning(
                "epoch %d begins, but the loader is at the start of its first epoch: "
                "its position was not restored, or it is a new loader; call load_state_dict, or "
                "loader.set_epoch(%d), which moves the loader as set_epoch of its sampler does not",
                *(epoch, epoch),
            )


class RankSampler(OwnedSampler):
    """What trainers find as ``loader.sampler``: this rank's samples of the next ``iter()``."""

    def __init__(self, dataset: Any, position: Position) -> None:
        super().__init__(dataset)
        self.position = position

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of ranks now."""
        return self.position.plan.steps.world

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This rank."""
        return self.position.plan.rank

    def __iter__(self) -> Iterator[int]:
        position = self.position
        for batch in position.plan.walk(position.start, position.remaining):
            yield from batch.samples.tolist()

    def __len__(self) -> int:
        steps = self.position.plan.steps.of(self.position.start.epoch)
        return min(steps.count * steps.batch, -(-steps.size // steps.world))


class PlannedBatches(BatchSampler):
    """What trainers find as ``loader.batch_sampler``; another loader cannot iterate it."""

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
        """The loader whose batch sampler this is."""
        owner = getattr(self.sampler, "owner", None)
        return None if owner is None else owner()

    def __iter__(self) -> Iterator[list[int]]:
        """Raise `StateError`: a loader built from this would deliver wrong batches."""
        name = type(self.owner).__name__ if self.owner is not None else "loader"
        raise StateError(
            f"cannot iterate the batch sampler of a {name} in another loader, as accelerate's "
            "skip_first_batches and a resumed Hugging Face Trainer do: the loader has its own "
            "position; iterate the loader itself after load_state, and return "
            "TrainerLoader(loader, self) from the Trainer's get_train_dataloader"
        )


class View:
    """A loader for Lightning to iterate; not a ``DataLoader``, so it is not rebuilt again."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
