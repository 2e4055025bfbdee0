"""A loader for one side of the data: training, validation or test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from penstock.collate import Collator
from penstock.datamodules.kinds import is_source, is_stream
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.replay import ReplayLoader
from penstock.seeds import Seed
from penstock.tuning import DataLoaderConfig
from penstock.tuning.factory import build_loader, stack_tensors

SideLoader: TypeAlias = ChunkedDataLoader | StreamLoader | ReplayLoader


def loader_of(
    data: Any, config: DataLoaderConfig, collate: Collator | None, seed: Seed
) -> SideLoader:
    """Training batches of any kind of data."""
    if is_source(data) or is_stream(data):
        return _special(data, config, collate, seed, evaluation=False)
    data = stack_tensors(data) if collate is None else data
    options = config.options() | {"collate_fn": collate, "seed": seed}
    return build_loader(data, options, reason="as configured")


def evaluation_loader_of(
    data: Any, config: DataLoaderConfig, collate: Collator | None, seed: Seed
) -> SideLoader:
    """The same batches each time, in order, nothing left out."""
    if is_source(data) or is_stream(data):
        return _special(data, config, collate, seed, evaluation=True)
    data = stack_tensors(data) if collate is None else data
    options = config.options() | {"collate_fn": collate, "seed": seed}
    options |= {"shuffle": False, "evaluation": True}
    return build_loader(data, options, reason="for evaluation")


def _special(
    data: Any, config: DataLoaderConfig, collate: Collator | None, seed: Seed, *, evaluation: bool
) -> SideLoader:
    if is_source(data):
        return StreamLoader(
            data,
            config.batch_size,
            seed=seed,
            drop_last=config.drop_last,
            shuffle=not evaluation,
            evaluation=evaluation,
            collate_fn=None if collate is None else BySample(collate),
        )
    return ReplayLoader(
        data,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        collate=collate,
        seed=seed,
        evaluation=evaluation,
    )


class BySample:
    """Gives a collator, which takes samples, the samples of a batch that was read in one go.

    >>> BySample(len)({"x": torch.zeros(3, 2), "y": torch.zeros(3)})
    3
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, batch: torch.Tensor | dict[str, torch.Tensor]) -> Any:
        """What the collator makes of the samples of ``batch``."""
        if isinstance(batch, torch.Tensor):
            return self._collate(list(batch))
        rows = zip(*batch.values(), strict=True)
        return self._collate([dict(zip(batch, row, strict=True)) for row in rows])
