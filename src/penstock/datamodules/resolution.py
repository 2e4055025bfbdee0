"""Sequence datasets that are trained at one resolution and evaluated at several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from penstock.arguments import whole_number
from penstock.datamodules.sequence import SequenceDataset
from penstock.errors import ConfigError
from penstock.extras import optional


class ResolutionSequenceDataset(SequenceDataset):
    """A sequence dataset with one training resolution and one or more evaluation resolutions.

    Loaders take ``train_resolution`` (1) and ``eval_resolutions`` ([1]). At a resolution r, x is
    every r-th step along each of its lengths. Evaluation loaders are returned as a dict,
    ``{None: at resolution 1, "2": at 2, ...}``, and batches contain their ``rate``.

    >>> ResolutionSequenceDataset._collate_fn([(torch.arange(6), 1)], resolution=2)
    (tensor([[0, 2, 4]]), tensor([1]), {'rate': 2})
    """

    loader_args: ClassVar[tuple[str, ...]] = ("train_resolution", "eval_resolutions")
    collate_args: ClassVar[Sequence[str]] = ("resolution",)

    @classmethod
    def _collate_callback(cls, x: Any, resolution: Any = None, **collate_args: Any) -> Any:
        """Return x at its resolution: an int strides, a list strides first and then resamples."""
        return strided(x, resolution)

    @classmethod
    def _return_callback(
        cls, batch: tuple[Any, ...], resolution: Any = None, **collate_args: Any
    ) -> tuple[Any, ...]:
        """Return the batch with the rate among the extras."""
        x, y, extras = super()._return_callback(batch)
        return x, y, {**extras, "rate": resolution}

    def _train_dataloader(
        self,
        dataset: Any,
        train_resolution: Any = None,
        eval_resolutions: Any = None,
        **loader: Any,
    ) -> Any:
        resolutions = as_list(train_resolution, 1)
        if len(resolutions) != 1:
            raise ConfigError(f"train_resolution must be one resolution, got {train_resolution!r}")
        return super()._train_dataloader(dataset, resolution=resolutions[0], **loader)

    def _eval_dataloader(
        self,
        dataset: Any,
        *,
        _partition_: str = "test",
        train_resolution: Any = None,
        eval_resolutions: Any = None,
        **loader: Any,
    ) -> Any:
        if dataset is None:
            return None
        evaluate = partial(super()._eval_dataloader, dataset, _partition_=_partition_, **loader)
        return {
            None if each == 1 else str(each): evaluate(resolution=each)
            for each in as_list(eval_resolutions, 1)
        }


class ImageResolutionSequenceDataset(ResolutionSequenceDataset):
    """The same for images: loaders also take ``img_size`` and ``channels_last`` (True).

    Images are resized to ``round(img_size / resolution)`` pixels; everything else is strided.
    """

    collate_args: ClassVar[Sequence[str]] = ("resolution", "img_size", "channels_last")

    @classmethod
    def _collate_callback(
        cls,
        x: Any,
        resolution: Any = None,
        img_size: int | None = None,
        channels_last: bool = True,
        **collate_args: Any,
    ) -> Any:
        """Return images resized, bilinear and antialiased; sequences strided."""
        if img_size is None or x.ndim < 4:
            return strided(x, resolution)
        return resize_images(x, round(img_size / (resolution or 1)), channels_last=channels_last)


# -- arithmetic


def as_list(value: Any, default: Any) -> list[Any]:
    """Return a setting that is None, one value or several as a list.

    >>> as_list(None, 1), as_list(2, 1), as_list([1, 2], 1)
    ([1], [2], [1, 2])
    """
    if value is None:
        return [default]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def strided(x: torch.Tensor, resolution: Any) -> torch.Tensor:
    """Return every r-th step along each length of (B, L) or (B, L0, .., Lk, C).

    Args:
        x: A batch.
        resolution: The stride r; None and 1 return all steps. A list strides by its first entry and
            then resamples to each of the others.

    >>> strided(torch.arange(32).reshape(1, 4, 8, 1), 4)[..., 0]
    tensor([[[0, 4]]])
    """
    check = partial(whole_number, "resolution", minimum=1, error=ConfigError)
    if isinstance(resolution, Sequence) and not isinstance(resolution, str):
        return _resampled(x, [check(value=each) for each in resolution])
    step = 1 if resolution is None else check(value=resolution)
    if x.ndim < 2:
        raise ConfigError(f"resolution {resolution!r} needs sequences, got shape {tuple(x.shape)}")
    lengths = max(1, x.ndim - 2)
    return x[(slice(None), *[slice(None, None, step)] * lengths)] if step > 1 else x


def _resampled(x: torch.Tensor, resolutions: list[int]) -> torch.Tensor:
    """Return (B, L) or (B, L, 1) strided by the first resolution, band-limited to the others."""
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
    """Return square images of ``pixels`` by ``pixels``, bilinear and antialiased, same dtype."""
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
