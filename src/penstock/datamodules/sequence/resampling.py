"""Batches at another resolution: strided, resampled, resized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.errors import ConfigError
from penstock.extras import optional


def as_list(value: Any, default: Any) -> list[Any]:
    """A setting that may be one value, several or none, as a list.

    >>> as_list(None, 1), as_list(2, 1), as_list([1, 2], 1)
    ([1], [2], [1, 2])
    """
    if value is None:
        return [default]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def strided(x: torch.Tensor, resolution: Any) -> torch.Tensor:
    """Every r-th step along each length of (B, L), or of (B, L0, .., Lk, C); None and 1: all.

    A list keeps every first-th step and resamples to each of the others in turn.

    >>> strided(torch.arange(32).reshape(1, 4, 8, 1), 4)[..., 0]
    tensor([[[0, 4]]])
    """
    if isinstance(resolution, Sequence) and not isinstance(resolution, str):
        return _resampled(x, [check_resolution(each) for each in resolution])
    step = 1 if resolution is None else check_resolution(resolution)
    if x.ndim < 2:
        raise ConfigError(
            f"resolution {resolution!r} needs sequences, got a batch of shape {tuple(x.shape)}"
        )
    lengths = max(1, x.ndim - 2)
    return x[(slice(None), *[slice(None, None, step)] * lengths)] if step > 1 else x


def check_resolution(resolution: Any) -> int:
    """A resolution, refused if it is not a whole number of steps."""
    if not isinstance(resolution, int) or isinstance(resolution, bool) or resolution < 1:
        raise ConfigError(f"a resolution must be a whole number of 1 or more, got {resolution!r}")
    return resolution


def _resampled(x: torch.Tensor, resolutions: list[int]) -> torch.Tensor:
    """(B, L) or (B, L, 1), of every first-th step, band-limited to the other resolutions."""
    soxr = optional("soxr", extra="audio")
    flat = x.squeeze(-1) if x.ndim > 2 else x
    length = flat.shape[1]
    wave = flat[:, :: resolutions[0]].to(torch.float32).T.contiguous().numpy()
    rate = length // resolutions[0]
    for resolution in resolutions[1:]:
        wave = soxr.resample(wave, rate, length // resolution)
        rate = length // resolution
    return torch.from_numpy(wave).T.contiguous().unsqueeze(-1)


def resize_images(x: torch.Tensor, pixels: int, *, channels_last: bool) -> torch.Tensor:
    """Square images of so many pixels a side, bilinear and antialiased, of the same type."""
    images = x.movedim(-1, 1) if channels_last else x
    flat = images.reshape(-1, *images.shape[-3:])
    exact = flat if flat.is_floating_point() else flat.to(torch.float32)
    resized = torch.nn.functional.interpolate(
        exact, size=(pixels, pixels), mode="bilinear", antialias=True, align_corners=False
    )
    if not flat.is_floating_point():
        resized = resized.round().to(x.dtype)
    resized = resized.reshape(*images.shape[:-2], pixels, pixels)
    return resized.movedim(1, -1) if channels_last else resized
