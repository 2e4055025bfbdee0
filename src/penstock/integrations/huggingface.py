"""Hugging Face's ``Trainer``: a loader in which it can skip batches, so that it resumes exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset

from penstock.errors import ConfigError
from penstock.loaders import Loader

Address: TypeAlias = tuple[int, int]  # epoch, step


class TrainerLoader(DataLoader[Any]):
    """A Penstock loader in the form that ``transformers.Trainer`` can resume.

    A ``Trainer`` resumes by building a torch loader around the dataset and batch sampler it finds,
    and skips the first batches. With a loader that has its own position, these would be the wrong
    ones. Here the batch sampler yields addresses (epoch, step), and the dataset returns the batch
    at an address, seeking if needed. A loader built around them delivers the right batches, read by
    the workers of the Penstock loader. Nothing has to be saved besides the trainer's step count.

    Args:
        loader: A loader without ``chunk_size``.

    ::

        class MyTrainer(Trainer):
            def get_train_dataloader(self):
                return TrainerLoader(module.train_dataloader())
    """

    # else accelerate would split the addresses between ranks, and the loader does so already
    _is_accelerate_prepared = True

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Loader) or loader.position.chunk is not None:
            found = type(loader).__name__
            raise ConfigError(f"give a Penstock loader without chunk_size, got {found}")
        self.loader, self._addresses = loader, _Addresses(loader)
        super().__init__(
            _Addressed(loader), batch_sampler=self._addresses, collate_fn=_unchanged, num_workers=0
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        Args:
            epoch: The epoch, counted from 0.
        """
        self._addresses.set_epoch(epoch)


class _Addresses:
    """A batch sampler that yields the addresses of the batches of an epoch."""

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
    """A dataset whose items are whole batches, by their addresses."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._next: Address | None = None

    def __len__(self) -> int:
        return int(self._loader.plan.steps.size)

    def __getitems__(self, addresses: list[Address]) -> Any:
        (address,) = addresses
        if address != self._next or address[1] == 0:
            self._loader.seek(*address)
            self._batches = iter(self._loader)
        self._next = (address[0], address[1] + 1)
        return next(self._batches)


def _unchanged(batch: Any) -> Any:
    return batch
