"""Settings of a Trainer that are others while it fits, and as they were after that."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError

LIMITS = ("limit_train_batches", "limit_val_batches")


class TrainerSettings:
    """What was set on a Trainer for the time of a fit."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._before = trainer, dict[str, Any]()

    def set(self, name: str, value: Any) -> None:
        """Another value, until `restore`."""
        self._before.setdefault(name, getattr(self._trainer, name))
        setattr(self._trainer, name, value)

    def before(self, name: str) -> Any:
        """The value that the user gave."""
        return self._before.get(name, getattr(self._trainer, name))

    def restore(self, *names: str) -> None:
        """The user's values again: of these, or of all."""
        for name in names or tuple(self._before):
            if name in self._before:
                setattr(self._trainer, name, self._before.pop(name))

    def lift_limits(self) -> dict[str, str]:
        """Chunk sizes beat ``limit_*_batches``; those that are ignored now, in words.

        A limit of 0 switches training or validation off, and stays. A debugging run
        (``fast_dev_run``) is as short as it was asked to be.
        """
        if self._trainer.overfit_batches:
            raise ConfigError(
                f"overfit_batches={self._trainer.overfit_batches!r} trains on the same batches "
                "again and again, chunks on the next ones: leave one of them out"
            )
        if self._trainer.fast_dev_run:
            return {}
        found = {name: getattr(self._trainer, name) for name in LIMITS}
        limits = {name: value for name, value in found.items() if is_a_limit(value)}
        for name in limits:
            self.set(name, 1.0)
        return {name: f"{name}={value!r}" for name, value in limits.items()}

    def fit_interval(self, batches: int) -> None:
        """A chunk that is shorter than ``val_check_interval`` is validated at its end."""
        asked = self.before("val_check_interval")
        if isinstance(asked, int) and self._trainer.check_val_every_n_epoch is not None:
            self.set("val_check_interval", min(asked, max(1, batches)))


def is_a_limit(value: int | float) -> bool:
    """Does this leave some batches out? 0 leaves out all, and means something else."""
    return bool(value) and not (isinstance(value, float) and value == 1.0)
