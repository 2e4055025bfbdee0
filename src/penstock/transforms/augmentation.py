"""Random augmentation: masks over spectrograms, and noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import flag, image_shape, real_number, shown, whole_number
from penstock.errors import BatchError, PlanError
from penstock.order.keys import Keys, derive_key
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
        masks = partial(whole_number, minimum=0, maximum=MOST_MASKS)
        self.num_time_masks = masks("num_time_masks", num_time_masks)
        self.num_freq_masks = masks("num_freq_masks", num_freq_masks)
        self.mask_value = real_number("mask_value", mask_value)
        self.p = real_number("p", p, minimum=0, maximum=1)

    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Return the spectrograms, each with the masks of its own key."""
        if batch.ndim < 3:
            shape = tuple(batch.shape[1:])
            raise BatchError(f"SpecAugment needs spectrograms, got samples of shape {shape}")
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
            raise BatchError(f"noise needs floats, got {batch.dtype}: scale them to [0, 1]")
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
