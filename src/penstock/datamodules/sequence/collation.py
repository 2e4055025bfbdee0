"""Samples ``(x, y, *extras)`` become batches ``(x, y, {name: extra})``, as S4's codebase has it.

Collation is made of class methods, so that it goes to worker processes by the name of its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from penstock.collate import CollateError, stack, unequal
from penstock.datamodules.sequence.resampling import resize_images, strided


class SequenceCollation:
    """How samples form a batch; a subclass overrides one of the hooks.

    >>> SequenceCollation._collate_fn([(torch.zeros(3), 1), (torch.ones(3), 0)])
    (tensor([[0., 0., 0.],
            [1., 1., 1.]]), tensor([1, 0]), {})
    """

    _collate_arg_names: ClassVar[Sequence[str]] = ()  # of what a sample has beyond x and y
    collate_args: ClassVar[Sequence[str]] = ()  # arguments of a loader that are meant for here

    @classmethod
    def _collate_callback(cls, x: Any, **collate_args: Any) -> Any:
        """What is done with x once it is a batch; nothing."""
        return x

    @classmethod
    def _return_callback(cls, batch: tuple[Any, ...], **collate_args: Any) -> tuple[Any, ...]:
        """The batch as it is handed out: what is beyond x and y in a dict, by name."""
        x, y, *extras = batch
        if len(extras) != len(cls._collate_arg_names):
            raise CollateError(
                f"samples have {len(extras)} values beyond x and y, {cls.__name__} names "
                f"{list(cls._collate_arg_names)!r}: give _collate_arg_names one name for each"
            )
        return x, y, dict(zip(cls._collate_arg_names, extras, strict=True))

    @classmethod
    def _collate(cls, values: Sequence[Any], **collate_args: Any) -> Any:
        """One tensor of the values of a batch."""
        if isinstance(values[0], torch.Tensor):
            return cls._collate_callback(stack(values, "x"), **collate_args)
        try:
            arrays = isinstance(values[0], np.ndarray)
            return torch.tensor(np.stack(values) if arrays else values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise unequal(values, "x") from error

    @classmethod
    def _collate_fn(cls, samples: Sequence[Any], **collate_args: Any) -> tuple[Any, ...]:
        """The batch of ``samples``."""
        x, y, *extras = zip(*samples, strict=True)
        batch = (
            cls._collate(x, **collate_args),
            cls._collate(y),
            *(cls._collate(extra) for extra in extras),
        )
        return cls._return_callback(batch, **collate_args)


class ResolutionCollation(SequenceCollation):
    """Every r-th step of x only, along each of its lengths; the batch tells the rate.

    >>> ResolutionCollation._collate_fn([(torch.arange(6), 1)], resolution=2)
    (tensor([[0, 2, 4]]), tensor([1]), {'rate': 2})
    """

    collate_args: ClassVar[Sequence[str]] = ("resolution",)

    @classmethod
    def _collate_callback(cls, x: Any, resolution: Any = None, **collate_args: Any) -> Any:
        """X at its resolution: an int strides, a list strides by its first and then resamples."""
        return strided(x, resolution)

    @classmethod
    def _return_callback(
        cls, batch: tuple[Any, ...], resolution: Any = None, **collate_args: Any
    ) -> tuple[Any, ...]:
        """The batch, with the rate beside the other extras."""
        x, y, extras = super()._return_callback(batch)
        named: Mapping[str, Any] = extras
        return x, y, {**named, "rate": resolution}


class ImageResolutionCollation(ResolutionCollation):
    """Images of ``round(img_size / resolution)`` pixels a side; what is no image is strided."""

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
        """Images resized, bilinear and antialiased; sequences strided."""
        if img_size is None or x.ndim < 4:
            return strided(x, resolution)
        return resize_images(x, round(img_size / (resolution or 1)), channels_last=channels_last)
