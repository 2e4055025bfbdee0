"""Lightning takes no data module that is not of its own class: so ours are, where it is used."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

T = TypeVar("T")

PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same library, under two names


def flavoured(cls: type[T]) -> type[T]:
    """``cls`` as a ``LightningDataModule`` of every Lightning that is imported; else ``cls``."""
    imported = (getattr(sys.modules.get(name), "LightningDataModule", None) for name in PACKAGES)
    bases = tuple(base for base in imported if base is not None and not issubclass(cls, base))
    if not bases:
        return cls
    if (cls, bases) not in _joined:
        _joined[cls, bases] = _join(cls, bases)
    found: type[T] = _joined[cls, bases]
    return found


_joined: dict[Any, Any] = {}  # so that two modules are of one class


def _join(cls: type[Any], bases: tuple[type[Any], ...]) -> type[Any]:
    # the name stays: Lightning's checkpoints know a data module by it
    names = ("__module__", "__qualname__", "__doc__")
    return type(cls.__name__, (cls, *bases), {name: getattr(cls, name) for name in names})
