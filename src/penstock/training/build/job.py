"""What a trainer needs, all made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """A module, its data, and what goes to the Trainer with them.

    ``data`` is a ``LightningDataModule`` whose loaders are made when they are first asked for, and
    stay the same ones; None where the module brings its own. Without ``loggers`` the run has its
    own.
    """

    module: Any
    data: Any
    callbacks: tuple[Any, ...]
    loggers: tuple[Any, ...]
    trainer_kwargs: dict[str, Any]
