"""Which timesteps are for training and which for validation."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.arguments import whole_number
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DataSplit:
    """Two ranges of timesteps that do not overlap; ends are exclusive.

    >>> DataSplit(5120, 972_800, 973_056, 987_648).within(987_736).train_timesteps
    967680
    >>> DataSplit(0, 100, 50, 200)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: training 0:100 and validation 50:200 overlap: ...
    """

    train_start: int
    train_end: int
    validation_start: int
    validation_end: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole_number(field.name, value, minimum=0, error=ConfigError)
        for name in ("train", "validation"):
            start, end = getattr(self, f"{name}_start"), getattr(self, f"{name}_end")
            if end <= start:
                raise ConfigError(f"{name}_end must be after {name}_start {start}, got {end}")
        if self.train_start < self.validation_end and self.validation_start < self.train_end:
            raise ConfigError(
                f"training {self.train_start}:{self.train_end} and validation "
                f"{self.validation_start}:{self.validation_end} overlap: validation would measure "
                "what was trained on"
            )

    @property
    def train_timesteps(self) -> int:
        """Timesteps to train on."""
        return self.train_end - self.train_start

    @property
    def validation_timesteps(self) -> int:
        """Timesteps to validate on."""
        return self.validation_end - self.validation_start

    def within(self, total_timesteps: int) -> DataSplit:
        """This split, if the recording is long enough for it."""
        last = max(self.train_end, self.validation_end)
        if last > total_timesteps:
            raise ConfigError(
                f"the split ends at timestep {last}, the recording at {total_timesteps}"
            )
        return self
