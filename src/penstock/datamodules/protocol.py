"""What a data module is to a training loop, and what it reads from a training configuration."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class DataModuleProtocol(Protocol):
    """Anything that gives loaders for training and validation: ours, Lightning's, your own.

    >>> class Mine:
    ...     def train_dataloader(self): return [1, 2, 3]
    ...     def val_dataloader(self): return None
    >>> isinstance(Mine(), DataModuleProtocol)
    True
    """

    def train_dataloader(self) -> Any:
        """Batches to train on."""
        ...

    def val_dataloader(self) -> Any | None:
        """Batches to validate on; None where there are none."""
        ...


class BatchSettings(Protocol):
    """What of a training configuration concerns the data."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""
        ...

    @property
    def random_seed(self) -> int | None:
        """Seed of the order and of the split."""
        ...

    @property
    def validation_split(self) -> float:
        """Share of the samples that is validated on."""
        ...
