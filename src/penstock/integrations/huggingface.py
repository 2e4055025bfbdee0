"""Hugging Face's ``Trainer``: a loader it can skip into, and so resume exactly by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset

from penstock.errors import ConfigError
from penstock.loaders import Loader

Address: TypeAlias = tuple[int, int]  # epoch, step


class TrainerLoader(DataLoader[Any]):
    """A loader as ``transformers.Trainer`` needs it: its batches are addressed, not counted.

    A ``Trainer`` resumes by building a stock loader around the dataset and batch sampler it finds,
    with the first batches skipped: around a loader with a place of its own, that would be the
    wrong ones. Here the batch sampler gives addresses, and the dataset delivers what is
    there, seeking where need be: whatever is built around them gets the right batches, read by
    the loader's own workers. Nothing has to be saved: the trainer's step count says where it is.

    ::

        class MyTrainer(Trainer):
            def get_train_dataloader(self):
                return TrainerLoader(module.train_dataloader())
    """

    # accelerate would deal the addresses to the ranks, but a loader has dealt its samples already
    _is_accelerate_prepared = True

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader) or loader.position.chunk is not None:
            raise ConfigError(
                f"a Trainer's epoch is a pass over the data: give a Penstock loader without "
                f"chunk_size, got {type(loader).__name__}"
            )
        self.loader, self._addresses = loader, _Addresses(loader)
        super().__init__(
            _Addressed(loader), batch_sampler=self._addresses, collate_fn=_as_it_is, num_workers=0
        )

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose batches are next."""
        self._addresses.set_epoch(epoch)


class _Addresses:
    """A batch sampler: the addresses of an epoch's batches."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._epoch = loader, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[Address]]:
        epoch = self._epoch
        return ([(epoch, step)] for step in range(len(self)))

    def __len__(self) -> int:
        return len(self._loader)


class _Addressed(Dataset[Any]):
    """A dataset whose one item is the whole batch at an address."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._next: Address | None = None

    def __len__(self) -> int:
        return int(self._loader.position.plan.steps.size)

    def __getitems__(self, addresses: list[Address]) -> Any:
        (address,) = addresses
        if address != self._next or address[1] == 0:
            self._loader.seek(*address)
            self._batches = iter(self._loader)
        self._next = (address[0], address[1] + 1)
        return next(self._batches)


def _as_it_is(batch: Any) -> Any:
    return batch
