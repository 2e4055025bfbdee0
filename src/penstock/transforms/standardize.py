"""Standardisation by statistics that were computed before, and sequences of transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import real_number, shown, whole_number
from penstock.errors import BatchError, PlanError
from penstock.order.keys import Keys, derive_key
from penstock.registry import did_you_mean
from penstock.transforms.augmentation import GaussianNoise
from penstock.transforms.base import Transform

Statistic: TypeAlias = float | npt.NDArray[np.float64]

EPSILON: Final = 1e-8  # added to the deviation, only here: constant data stays finite


class Standardize(Transform):
    """``(x - mean) / (std + 1e-8)``, with scalars or one value per channel (the first axis).

    NaN stays NaN, or becomes ``nan``. Integers become float32.

    Args:
        mean: A number, or one for each channel. Or statistics by field, for batches that are dicts:
            the result of ``source.statistics()``, or what ``penstock stats --output`` writes; other
            fields stay as they are.
        std: A number, or one for each channel, at least 0; None with statistics by field.
        axis: The axis of a sample that the channels are along.
        nan: What NaN becomes after standardisation, such as 0.0 for the mean; None leaves it.

    >>> Standardize(mean=2.0, std=4.0)(torch.tensor([2.0, 10.0]))
    tensor([0., 2.])
    >>> by_field = Standardize({"t2m": {"mean": 280.0, "std": 10.0}}, nan=0.0)
    >>> by_field({"t2m": torch.tensor([290.0, torch.nan]), "label": torch.tensor(3)})
    {'t2m': tensor([1., 0.]), 'label': tensor(3)}
    """

    def __init__(
        self,
        mean: npt.ArrayLike | Mapping[str, Any],
        std: npt.ArrayLike | None = None,
        *,
        axis: int = 0,
        nan: float | None = None,
    ) -> None:
        self._axis = whole_number("axis", axis, minimum=0, maximum=31)
        self._nan = None if nan is None else real_number("nan", nan)
        self.takes_fields = isinstance(mean, Mapping)
        self.fields: dict[str, Standardize] = {}
        if isinstance(mean, Mapping):
            if std is not None:
                raise PlanError(
                    "std must be None if mean holds statistics by field: they have their own"
                )
            for name, each in mean.items():
                self.fields[name] = _of_field(name, each, axis, nan)
            return
        self.mean, deviation = _statistic("mean", mean), _statistic("std", std)
        if np.any(np.asarray(deviation) < 0):
            raise PlanError(f"std must be at least 0, got {std!r}")
        self.std: Statistic = deviation + EPSILON
        if np.shape(self.mean) != np.shape(self.std):
            raise PlanError(
                f"mean and std must have one value for each channel, or one for all: "
                f"got shapes {np.shape(self.mean)} and {np.shape(self.std)}"
            )

    def batch(self, batch: Any, keys: Keys) -> Any:
        """Return the samples, standardised; ``keys`` are not used."""
        if isinstance(batch, Mapping) != (self.takes_fields and list(self.fields) != [""]):
            kind = "a dict of fields" if isinstance(batch, Mapping) else "one tensor"
            raise BatchError(
                f"{self} cannot standardise {kind}: pass statistics by field for a dict, and "
                "mean and std for a tensor"
            )
        if isinstance(batch, Mapping):
            for name in self.fields:
                if name not in batch:
                    raise BatchError(f"no field {name!r} in the batch{did_you_mean(name, batch)}")
            return {
                name: self.fields[name].batch(each, keys) if name in self.fields else each
                for name, each in batch.items()
            }
        if self.takes_fields:  # of a source with one array without a name
            return self.fields[""].batch(batch, keys)
        if not batch.is_floating_point():
            batch = batch.to(torch.float32)
        result = (batch - self._like(self.mean, batch)).div_(self._like(self.std, batch))
        return result if self._nan is None else result.masked_fill_(result.isnan(), self._nan)

    def __call__(self, sample: Any, rng: torch.Generator | None = None) -> Any:
        """Return one sample, standardised; ``rng`` is not used."""
        keys = np.zeros(1, np.uint64)
        if not isinstance(sample, Mapping):
            return self.batch(sample.unsqueeze(0), keys).squeeze(0)
        done = self.batch({name: sample[name].unsqueeze(0) for name in sample}, keys)
        return {name: each.squeeze(0) for name, each in done.items()}

    def _like(self, statistic: Statistic, batch: torch.Tensor) -> float | torch.Tensor:
        if isinstance(statistic, float):
            return statistic
        at = self._axis + 1
        if batch.ndim <= at or batch.shape[at] != len(statistic):
            raise BatchError(
                f"statistics of {len(statistic)} channels do not fit samples of shape "
                f"{tuple(batch.shape[1:])}: axis {self._axis} must be the channels"
            )
        return torch.from_numpy(statistic).to(batch).view(-1, *[1] * (batch.ndim - 1 - at))

    def __repr__(self) -> str:
        if self.takes_fields:
            return f"Standardize({self.fields})"
        return f"Standardize(mean={self.mean}, std={self.std})"


def _of_field(name: str, found: Any, axis: int, nan: float | None) -> Standardize:
    """Return the transform of one field, from its `Statistics` or from JSON of them."""
    values = (
        found
        if isinstance(found, Mapping)
        else {key: getattr(found, key, None) for key in ("mean", "std")}
    )
    mean: Any = values.get("mean")
    try:
        return Standardize(mean, values.get("std"), axis=axis, nan=nan)
    except PlanError as error:
        raise PlanError(f"the statistics of field {name!r} cannot be used: {error}") from error


def _statistic(name: str, value: npt.ArrayLike | None) -> Statistic:
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype.kind in "iuf" else np.empty((0, 0))
    except (TypeError, ValueError, RuntimeError, OverflowError):  # ragged, on a device, objects
        array = np.empty((0, 0))
    if array.ndim > 1 or not array.size or not np.isfinite(array).all():
        raise PlanError(
            f"{name} must be a finite number, or one for each channel, got {shown(value)}"
        )
    return array.item() if array.size == 1 else array.copy()  # one channel: one for all


class Compose(Transform):
    """Several transforms in sequence: augment raw samples, then standardise.

    Each transform has keys of its own, by its index. Noise with a clamp after standardisation
    would make half of the values equal, and raises a `PlanError`.

    Args:
        transforms: The transforms, in the order in which they are applied.

    >>> from penstock.transforms import SpecAugment
    >>> Compose([SpecAugment(), GaussianNoise(clamp=(0, 1)), Standardize(0.4, 0.2)])
    Compose([SpecAugment(...), GaussianNoise(...), Standardize(...)])
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        if not isinstance(transforms, list | tuple):
            raise PlanError(f"transforms must be a list of Transform, got {shown(transforms)}")
        for each in transforms:
            if not isinstance(each, Transform):
                raise PlanError(f"transforms must be a list of Transform, got one {shown(each)}")
        self.transforms: tuple[Transform, ...] = tuple(transforms)
        standardized = False
        for transform in self.transforms:
            standardized = standardized or isinstance(transform, Standardize)
            if standardized:
                refuse_clamp(transform)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return the samples after all transforms."""
        for index, transform in enumerate(self.transforms):
            batch = transform.batch(batch, derive_key(keys, index))  # type: ignore[arg-type]
        return batch

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


def refuse_clamp(transform: Transform) -> None:
    """Raise a `PlanError` for noise with a clamp, which does not suit standardised data."""
    for part in getattr(transform, "transforms", (transform,)):
        if isinstance(part, GaussianNoise) and part.clamp is not None:
            raise PlanError(
                f"GaussianNoise(clamp={part.clamp!r}) after standardisation would saturate the "
                "data: augment raw samples and standardise afterwards, or leave out clamp"
            )
