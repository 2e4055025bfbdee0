"""How much to augment, by how many samples a class has."""

from __future__ import annotations

from typing import Any

from penstock.arguments import flag, image_shape, whole_number

FEW, SOME = 50, 100  # samples per class


def recommended_augmentation(
    samples: int, classes: int, shape: tuple[int, int] = (224, 313), *, aggressive: bool = False
) -> dict[str, dict[str, Any]]:
    """Settings of `SpecAugment` and `GaussianNoise` for this much data.

    The fewer samples a class has, the narrower and rarer the masks.

    Args:
        samples: of the training part.
        classes: they belong to.
        shape: frequency bins and frames of a spectrogram.
        aggressive: more of everything.

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
