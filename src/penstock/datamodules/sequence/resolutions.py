"""Sequence datasets trained at one resolution and evaluated at several."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from penstock.datamodules.sequence.base import SequenceDataset
from penstock.datamodules.sequence.collation import ImageResolutionCollation, ResolutionCollation
from penstock.datamodules.sequence.resampling import as_list
from penstock.errors import ConfigError


class ResolutionSequenceDataset(SequenceDataset, ResolutionCollation):
    """Batches at ``train_resolution``, and one evaluation loader for each of several.

    A loader takes ``train_resolution`` (1) and ``eval_resolutions`` ([1]). Evaluation loaders come
    as a dict, ``{None: at resolution 1, "2": at 2, ...}``, and batches tell their ``rate``.
    """

    loader_args: ClassVar[tuple[str, ...]] = ("train_resolution", "eval_resolutions")

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
        _side_: str = "test",
        train_resolution: Any = None,
        eval_resolutions: Any = None,
        **loader: Any,
    ) -> Any:
        if dataset is None:
            return None
        evaluate = partial(super()._eval_dataloader, dataset, _side_=_side_, **loader)
        return {
            None if each == 1 else str(each): evaluate(resolution=each)
            for each in as_list(eval_resolutions, 1)
        }


class ImageResolutionSequenceDataset(ResolutionSequenceDataset, ImageResolutionCollation):
    """The same for images: a loader also takes ``img_size`` and ``channels_last`` (True)."""
