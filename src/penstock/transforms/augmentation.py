"""Augmentation and standardisation of samples, and sequences of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import flag, image_shape, real_number, shown, whole_number
from penstock.errors import BatchError, PlanError
from penstock.order.permutation import Keys, derive_key
from penstock.registry import did_you_mean
from penstock.transforms.base import Transform, integers, uniforms

Spans = npt.NDArray[np.int64]
MOST_MASKS = 1000  # each is drawn for every sample
FEW, SOME = 50, 100  # samples per class


class SpecAugment(Transform):
    """Masks over spectrograms ``(..., frequency, time)``, keyed by sample.

    The width of a mask is uniform in ``[0, param]``, and its start uniform over the axis. There
    are no masks over an axis of at most ``param`` elements. Apply it to raw spectrograms, where
    ``mask_value=0`` is silence: after standardisation, 0 is the mean.

    Args:
        time_mask_param: Frames of the widest time mask.
        freq_mask_param: Bins of the widest frequency mask.
        num_time_masks: Time masks per sample.
        num_freq_masks: Frequency masks per sample.
        mask_value: The value of masked elements.
        p: Probability that a sample is masked at all.

    >>> from penstock.keyed import keyed_generator
    >>> masked = SpecAugment(p=1.0)(torch.ones(1, 224, 313), keyed_generator(7))
    >>> masked.shape, bool((masked == 0).any())
    (torch.Size([1, 224, 313]), True)
    """

    def __init__(
        self,
        time_mask_param: int = 40,
        freq_mask_param: int = 15,
        num_time_masks: int = 1,
        num_freq_masks: int = 1,
        mask_value: float = 0.0,
        p: float = 0.8,
    ) -> None:
        self.time_mask_param = whole_number("time_mask_param", time_mask_param, minimum=0)
        self.freq_mask_param = whole_number("freq_mask_param", freq_mask_param, minimum=0)
        self.num_time_masks = whole_number(
            "num_time_masks", num_time_masks, minimum=0, maximum=MOST_MASKS
        )
        self.num_freq_masks = whole_number(
            "num_freq_masks", num_freq_masks, minimum=0, maximum=MOST_MASKS
        )
        self.mask_value = real_number("mask_value", mask_value)
        self.p = real_number("p", p, minimum=0, maximum=1)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return the spectrograms, each with the masks of its own key."""
        if batch.ndim < 3:
            raise BatchError(
                f"SpecAugment needs samples (frequency, time) or (channel, frequency, time), "
                f"got samples of shape {tuple(batch.shape[1:])}"
            )
        masked = batch.clone()
        bands, spans = self.spans(keys, batch.shape[-2], batch.shape[-1])
        for row in range(len(keys)):  # slices: a boolean mask would touch every value
            for start, stop in bands[row].tolist():
                masked[row, ..., start:stop, :] = self.mask_value
            for start, stop in spans[row].tolist():
                masked[row, ..., start:stop] = self.mask_value
        return masked

    def spans(self, keys: Keys, bins: int, frames: int) -> tuple[Spans, Spans]:
        """Return ``[start, stop)`` of the frequency masks and of the time masks of each key.

        >>> bands, spans = SpecAugment(num_time_masks=2).spans(np.zeros(5, np.uint64), 224, 313)
        >>> bands.shape, spans.shape
        ((5, 1, 2), (5, 2, 2))
        """
        freq, time = self.num_freq_masks, self.num_time_masks
        draws = uniforms(keys, 1 + 2 * (freq + time))
        applies = draws[:, :1] < self.p
        cut = 1 + 2 * freq
        bands = _spans(draws[:, 1:cut], self.freq_mask_param, bins)
        spans = _spans(draws[:, cut:], self.time_mask_param, frames)
        return bands * applies[..., None], spans * applies[..., None]

    def __repr__(self) -> str:
        return (
            f"SpecAugment(time_mask_param={self.time_mask_param}, "
            f"freq_mask_param={self.freq_mask_param}, num_time_masks={self.num_time_masks}, "
            f"num_freq_masks={self.num_freq_masks}, mask_value={self.mask_value}, p={self.p})"
        )


def _spans(draws: npt.NDArray[np.float64], param: int, length: int) -> Spans:
    """Return ``[start, stop)`` of each mask, from two draws; no masks if the axis is too short."""
    if length <= param:
        return np.zeros((len(draws), 0, 2), np.int64)
    widths = integers(draws[:, 0::2], param + 1)
    starts = integers(draws[:, 1::2], length - widths + 1)
    return np.stack([starts, starts + widths], axis=-1)


class GaussianNoise(Transform):
    """Normal noise added to samples, keyed by sample.

    By default nothing is clamped. ``clamp=(0, 1)`` suits raw spectrograms and images, and would
    destroy standardised data, half of which is below 0.

    Args:
        std: Standard deviation of the noise, in units of the data.
        p: Probability that a sample gets noise at all.
        clamp: Lowest and highest value of a sample with noise; None for no limits.

    >>> from penstock.keyed import keyed_generator
    >>> noisy = GaussianNoise(std=0.5, p=1.0)(torch.zeros(10_000), keyed_generator(7))
    >>> round(noisy.std().item(), 1)
    0.5
    """

    def __init__(
        self, std: float = 0.02, p: float = 0.8, clamp: tuple[float, float] | None = None
    ) -> None:
        self.std = real_number("std", std, minimum=0)
        self.p = real_number("p", p, minimum=0, maximum=1)
        self.clamp = None if clamp is None else _range(clamp)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return the samples, each with the noise of its own key."""
        if not batch.is_floating_point():
            raise BatchError(
                f"noise needs floating point samples, got {batch.dtype}: scale them to [0, 1] first"
            )
        noisy = batch.clone()
        applies = uniforms(keys, 1)[:, 0] < self.p
        # reseeding a generator for each row is eight times faster than numbers from counters
        rng, seeds = torch.Generator(), derive_key(keys, "noise")
        for row, seed in enumerate(seeds.tolist()):  # type: ignore[union-attr]
            if applies[row]:
                noise = torch.randn(batch.shape[1:], generator=rng.manual_seed(seed))
                noisy[row].add_(noise.to(batch), alpha=self.std)
                if self.clamp is not None:
                    noisy[row].clamp_(*self.clamp)
        return noisy

    def __repr__(self) -> str:
        return f"GaussianNoise(std={self.std}, p={self.p}, clamp={self.clamp})"


def _range(clamp: Any) -> tuple[float, float]:
    if not isinstance(clamp, tuple | list) or len(clamp) != 2:
        raise PlanError(f"clamp must be (lowest, highest), got {shown(clamp)}")
    lowest, highest = (real_number("clamp", edge) for edge in clamp)
    if not lowest < highest:
        raise PlanError(f"clamp must be (lowest, highest), got {clamp!r}")
    return lowest, highest


def recommended_augmentation(
    samples: int, classes: int, shape: tuple[int, int] = (224, 313), *, aggressive: bool = False
) -> dict[str, dict[str, Any]]:
    """Return settings of `SpecAugment` and `GaussianNoise` for a dataset of this size.

    With fewer samples per class, masks are narrower and rarer.

    Args:
        samples: Number of training samples.
        classes: Number of classes.
        shape: Frequency bins and frames of a spectrogram.
        aggressive: Whether to mask more samples and add more noise.

    >>> recommended_augmentation(samples=3100, classes=31)["spec_augment_params"]
    {'time_mask_param': 50, 'freq_mask_param': 18, 'num_time_masks': 2, 'num_freq_masks': 1,
     'p': 0.9}
    """
    whole_number("samples", samples, minimum=1, unit="sample")
    whole_number("classes", classes, minimum=1)
    flag("aggressive", aggressive)
    (bins, frames), per_class = image_shape("shape", shape), samples / classes
    if per_class < FEW:
        time, freq, time_masks, p = min(25, frames // 12), min(10, bins // 20), 1, 0.6
    elif per_class < SOME:
        time, freq, time_masks, p = min(40, frames // 8), min(15, bins // 15), 1, 0.8
    else:
        time, freq, time_masks, p = min(50, frames // 6), min(20, bins // 12), 2, 0.9
    return {
        "spec_augment_params": {
            "time_mask_param": time,
            "freq_mask_param": freq,
            "num_time_masks": time_masks,
            "num_freq_masks": 1,
            "p": min(0.95, round(p + 0.1, 2)) if aggressive else p,
        },
        "gaussian_noise_params": {"std": 0.03, "p": 0.9} if aggressive else {"std": 0.02, "p": 0.8},
    }


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
            return self.batch(torch.as_tensor(sample).unsqueeze(0), keys).squeeze(0)
        fields = {name: torch.as_tensor(sample[name]).unsqueeze(0) for name in sample}
        done = self.batch(fields, keys)
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
