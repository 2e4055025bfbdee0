"""The settings of a training run, as one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.registry import unknown_name

LEAST: Final = {
    "batch_size": 1,
    "epochs": 1,
    "gradient_accumulation_steps": 1,
    "early_stopping_patience": 1,
    "weight_decay": 0,
}


@dataclass(frozen=True)
class TrainingConfig:
    """What a run is trained with; `validate` lists everything that cannot be.

    Args:
        random_seed: Of the order, the split and the weights; None draws one.
        epochs: Passes over the data.
        max_grad_norm: Largest norm of the gradients; None leaves them.
        warmup_ratio: Share of all steps in which the learning rate rises.
        early_stopping_patience: Epochs without a better score; None never stops early.
        validation_split: Share of the samples that is validated on.

    >>> TrainingConfig(batch_size=32).to_dict()["learning_rate"]
    5e-05
    >>> TrainingConfig(batch_size=0, validation_split=1.5).validate()
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: batch_size must be 1 or more, got 0; validation_split must be ...
    """

    batch_size: int = 4
    epochs: int = 10
    learning_rate: float = 5e-5
    random_seed: int | None = 42
    weight_decay: float = 0.01
    max_grad_norm: float | None = 1.0
    warmup_ratio: float = 0.1
    gradient_accumulation_steps: int = 1
    early_stopping_patience: int | None = None
    validation_split: float = 0.1
    checkpoint_dir: str = "./checkpoints"

    def validate(self) -> None:
        """Refuse what cannot be, all of it in one error."""
        faults = [
            f"{name} must be {least} or more, got {value!r}"
            for name, least in LEAST.items()
            if (value := getattr(self, name)) is not None and not value >= least
        ]
        for name in ("learning_rate", "max_grad_norm"):
            if (value := getattr(self, name)) is not None and not value > 0:
                faults.append(f"{name} must be above 0, got {value!r}")
        for name in ("validation_split", "warmup_ratio"):
            if not 0 <= getattr(self, name) < 1:
                faults.append(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        if self.random_seed is not None and self.random_seed < 0:
            faults.append(f"random_seed must be 0 or more, got {self.random_seed!r}")
        if faults:
            raise ConfigError("; ".join(faults))

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainingConfig:
        """The settings that `to_dict` described; what is left out gets its default."""
        known = [each.name for each in fields(cls)]
        for name in data:
            if name not in known:
                raise ConfigError(unknown_name("training setting", name, known))
        return cls(**data)

    def save(self, path: str | Path) -> None:
        """Write the settings as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2))

    @classmethod
    def load(cls, path: str | Path) -> TrainingConfig:
        """The settings that `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text()))
