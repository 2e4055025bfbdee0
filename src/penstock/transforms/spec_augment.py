"""SpecAugment: bands of frequencies and spans of time, masked."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import real_number, whole_number
from penstock.errors import BatchError
from penstock.order.keys import Keys
from penstock.transforms.base import Transform
from penstock.transforms.draws import integers, uniforms

Spans = npt.NDArray[np.int64]
MOST_MASKS = 1000  # each is drawn for every sample


class SpecAugment(Transform):
    """Masks over spectrograms ``(..., frequency, time)``, keyed by sample.

    A mask's width is uniform in ``[0, param]``, its place uniform among those that fit; masks
    over an axis not longer than ``param`` are left out. Apply it to raw spectrograms, where
    ``mask_value`` 0 is silence: after standardisation 0 is the mean.

    Args:
        time_mask_param: frames of the widest time mask.
        freq_mask_param: bins of the widest frequency mask.
        num_time_masks: time masks of a sample.
        num_freq_masks: frequency masks of a sample.
        mask_value: what is put in their place.
        p: share of samples that are masked at all.

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
        """Every spectrogram with the masks of its own key."""
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
        """``[start, stop)`` of each key's frequency masks, then of its time masks.

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
    """Out of two draws a mask, its ``[start, stop)``; nothing where the axis is too short."""
    if length <= param:
        return np.zeros((len(draws), 0, 2), np.int64)
    widths = integers(draws[:, 0::2], param + 1)
    starts = integers(draws[:, 1::2], length - widths + 1)
    return np.stack([starts, starts + widths], axis=-1)
