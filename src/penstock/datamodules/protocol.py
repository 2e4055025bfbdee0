"""The interface of a data module, and what all data modules of Penstock share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, Protocol, Self, TypeVar, runtime_checkable

T = TypeVar("T")

LIGHTNING_PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")  # one library, two names


@runtime_checkable
class DataModuleProtocol(Protocol):
    """Anything that returns loaders for training and validation.

    Data modules of Penstock and of Lightning satisfy it, and so can your own class.

    >>> class Mine:
    ...     def train_dataloader(self): return [1, 2, 3]
    ...     def val_dataloader(self): return None
    >>> isinstance(Mine(), DataModuleProtocol)
    True
    """

    def train_dataloader(self) -> Any:
        """Return the batches to train on."""
        ...

    def val_dataloader(self) -> Any | None:
        """Return the batches to validate on; None if there are none."""
        ...


class ClosableModule:
    """A data module that releases its loaders at the end of a ``with`` block or of a fit."""

    _loaders: Any  # by name

    def close(self) -> None:
        """Stop all threads and processes of the loaders; they can be iterated again."""
        for loader in flat_loaders(self._loaders):
            getattr(loader, "close", lambda: None)()

    def teardown(self, stage: str | None = None) -> None:
        """Close the loaders; Lightning calls this at the end of a stage."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _for_trainer(self, loader: T | None) -> T | list[Any] | None:
        """Return ``loader``; an empty list instead of None if Lightning asks, as it requires."""
        return [] if loader is None and getattr(self, "trainer", None) is not None else loader


def flat_loaders(loaders: Any) -> list[Any]:
    """Return all loaders of a nested structure as a list; none for None.

    >>> flat_loaders({"a": 1, "b": [2, (3,)]}), flat_loaders(None)
    ([1, 2, 3], [])
    """
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, list | tuple):
        return [each for value in loaders for each in flat_loaders(value)]
    return [] if loaders is None else [loaders]


def lightning_class(cls: type[T]) -> type[T]:
    """Return a subclass of ``cls`` that is also a ``LightningDataModule``.

    Lightning accepts only data modules of its own class. Without Lightning, or if Lightning is not
    imported yet, returns ``cls`` itself.
    """
    modules = (sys.modules.get(name) for name in LIGHTNING_PACKAGES)
    imported = (getattr(module, "LightningDataModule", None) for module in modules)
    bases = tuple(base for base in imported if base is not None and not issubclass(cls, base))
    if not bases:
        return cls
    if (cls, bases) not in _lightning_classes:
        # the name stays the same: Lightning's checkpoints identify a data module by it
        names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
        _lightning_classes[cls, bases] = type(cls.__name__, (cls, *bases), names)
    found: type[T] = _lightning_classes[cls, bases]
    return found


_lightning_classes: dict[Any, Any] = {}  # cached, so that two modules have the same class
