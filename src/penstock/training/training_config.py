"""The settings of a training run, as one value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from penstock.arguments import a_path, mapping, real_number, whole_number
from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.registry import unknown_name

_WHOLE: Final = {  # the smallest value of each; None is accepted where that is a default
    "batch_size": 1,
    "epochs": 1,
    "gradient_accumulation_steps": 1,
    "early_stopping_patience": 1,
    "random_seed": 0,
}
_OPTIONAL: Final = ("random_seed", "max_grad_norm", "early_stopping_patience")


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training run; `validate` reports every invalid value.

    Args:
        batch_size: Samples of a batch.
        epochs: Passes over the data.
        learning_rate: Of the optimizer.
        random_seed: Of the order, the split and the weights; None draws one.
        weight_decay: Of the optimizer.
        max_grad_norm: Largest norm of the gradients; None does not clip them.
        warmup_ratio: Share of all steps during which the learning rate rises.
        gradient_accumulation_steps: Batches of an optimizer step.
        early_stopping_patience: Epochs without a better score; None never stops early.
        validation_split: Share of the samples used for validation.
        checkpoint_dir: Where checkpoints are saved.

    >>> TrainingConfig(batch_size=32).to_dict()["learning_rate"]
    5e-05
    >>> TrainingConfig(batch_size=0, validation_split=1.5).validate()
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: batch_size must be at least 1, got 0; validation_split must be ...
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
        """Refuse values that are invalid, all of them in one error."""
        faults = [fault for each in fields(self) if (fault := self._fault(each.name))]
        if faults:
            raise ConfigError("; ".join(faults))

    def _fault(self, name: str) -> str | None:
        value = getattr(self, name)
        if value is None and name in _OPTIONAL:
            return None
        try:
            if name in _WHOLE:
                whole_number(name, value, minimum=_WHOLE[name], error=ConfigError)
            elif name == "checkpoint_dir":
                a_path(name, value, error=ConfigError)
            else:
                number = real_number(name, value, minimum=0, error=ConfigError)
                if name in ("learning_rate", "max_grad_norm") and number == 0:
                    return f"{name} must be above 0, got {value!r}"
                if name in ("validation_split", "warmup_ratio") and number >= 1:
                    return f"{name} must be in [0, 1), got {value!r}"
        except ConfigError as error:
            return str(error)
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainingConfig:
        """Return the settings in a dict made by `to_dict`; missing ones have their defaults."""
        known = [each.name for each in fields(cls)]
        given = mapping("training settings", data, error=ConfigError)
        for name in given:
            if name not in known:
                raise ConfigError(unknown_name("training setting", name, known))
        return cls(**given)

    def save(self, path: str | Path) -> None:
        """Write the settings as JSON.

        Args:
            path: The file; replaced if it exists.
        """
        replace_text(a_path("path", path, error=ConfigError), json.dumps(self.to_dict(), indent=2))

    @classmethod
    def load(cls, path: str | Path) -> TrainingConfig:
        """Return the settings that `save` wrote, validated."""
        file = a_path("path", path, error=ConfigError)
        try:
            config = cls.from_dict(json.loads(file.read_text(encoding="utf-8")))
            config.validate()
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{str(file)!r} holds no training settings: {why}") from error
        return config
