"""The base class of transforms, and the random numbers that they compute from keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import shown
from penstock.errors import BatchError, PlanError
from penstock.order.keys import GAMMA, MASK, Keys, derive_key, mix_array


class Transform(ABC):
    """Base class of transforms, whose randomness comes from one 64-bit key per sample.

    A sample gives the same result, bit by bit, alone and within a batch. Subclasses implement
    `batch`.
    """

    @abstractmethod
    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return a new batch of transformed samples; ``batch`` itself is not changed.

        Args:
            batch: Samples along the first axis.
            keys: One for each sample.
        """

    def __call__(self, sample: torch.Tensor, rng: torch.Generator | None = None) -> torch.Tensor:
        """Return one transformed sample.

        Args:
            sample: A sample, without a batch axis.
            rng: Where to draw from; None for torch's default generator.
        """
        return self.batch(sample.unsqueeze(0), draw_keys(1, rng)).squeeze(0)


def uniforms(keys: Keys, count: int) -> npt.NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each key: splitmix64 starting at the key.

    >>> keys = np.array([5, 6], np.uint64)
    >>> draws = uniforms(keys, 3)
    >>> draws.shape, bool((draws[1] == uniforms(keys[1:], 3)[0]).all())
    ((2, 3), True)
    """
    steps = np.array([GAMMA * (i + 1) & MASK for i in range(count)], np.uint64)
    bits = mix_array(keys[:, None] + steps) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def integers(
    draws: npt.NDArray[np.float64], bounds: int | npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return uniform integers in ``[0, bounds)``, computed from numbers in [0, 1).

    >>> integers(np.array([0.0, 0.5, 0.999]), 10).tolist()
    [0, 5, 9]
    """
    return (draws * bounds).astype(np.int64)


def draw_keys(count: int, rng: torch.Generator | None) -> Keys:
    """Return keys drawn from a generator; None for torch's default one."""
    device = "cpu" if rng is None else rng.device
    drawn = torch.randint(2**63 - 1, (count,), generator=rng, device=device)
    return drawn.cpu().numpy().astype(np.uint64)


Statistic: TypeAlias = float | npt.NDArray[np.float64]

EPSILON: Final = 1e-8  # added to the deviation, only here: constant data stays finite


class Standardize(Transform):
    """``(x - mean) / (std + 1e-8)``, with scalars or one value per channel (the first axis).

    Args:
        mean: A number, or one for each channel.
        std: A number, or one for each channel; at least 0.

    >>> Standardize(mean=2.0, std=4.0)(torch.tensor([2.0, 10.0]))
    tensor([0., 2.])
    """

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
        self.mean, deviation = _statistic("mean", mean), _statistic("std", std)
        if np.any(np.asarray(deviation) < 0):
            raise PlanError(f"std must be at least 0, got {std!r}")
        self.std: Statistic = deviation + EPSILON
        if np.shape(self.mean) != np.shape(self.std):
            raise PlanError(f"mean and std differ: got shapes {np.shape(mean)} and {np.shape(std)}")

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return the samples, standardised; ``keys`` are not used."""
        if not batch.is_floating_point():
            batch = batch.to(torch.float32)
        return (batch - self._like(self.mean, batch)).div_(self._like(self.std, batch))

    def __call__(self, sample: torch.Tensor, rng: torch.Generator | None = None) -> torch.Tensor:
        """Return one sample, standardised; ``rng`` is not used."""
        return self.batch(sample.unsqueeze(0), np.zeros(1, np.uint64)).squeeze(0)

    def _like(self, statistic: Statistic, batch: torch.Tensor) -> float | torch.Tensor:
        if isinstance(statistic, float):
            return statistic
        if batch.ndim < 2 or batch.shape[1] != len(statistic):
            raise BatchError(
                f"statistics of {len(statistic)} channels do not fit samples of shape "
                f"{tuple(batch.shape[1:])}: their first axis must be the channels"
            )
        return torch.from_numpy(statistic).to(batch).view(-1, *[1] * (batch.ndim - 2))

    def __repr__(self) -> str:
        return f"Standardize(mean={self.mean}, std={self.std})"


def _statistic(name: str, value: npt.ArrayLike) -> Statistic:
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype.kind in "iuf" else np.empty((0, 0))
    except (TypeError, ValueError, RuntimeError, OverflowError):  # ragged, on a device, objects
        array = np.empty((0, 0))
    if array.ndim > 1 or not array.size or not np.isfinite(array).all():
        raise PlanError(f"{name} must be a finite number, or one per channel, got {shown(value)}")
    return array.item() if array.size == 1 else array.copy()  # one channel: one for all


class Compose(Transform):
    """Several transforms in sequence: augment raw samples, then standardise.

    Each transform has keys of its own, by its index. Noise with a clamp after standardisation
    would make half of the values equal, and raises a `PlanError`.

    Args:
        transforms: The transforms, in the order in which they are applied.

    >>> from penstock.transforms import GaussianNoise, SpecAugment
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
        clamp = getattr(part, "clamp", None)
        if clamp is not None:
            raise PlanError(
                f"{type(part).__name__}(clamp={clamp!r}) after standardisation would saturate the "
                "data: augment raw samples and standardise afterwards, or leave out clamp"
            )
