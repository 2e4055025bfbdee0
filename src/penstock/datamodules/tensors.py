"""Lists of tensors that differ in length."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from penstock.errors import ConfigError


def is_ragged(data: Any) -> bool:
    """Is it a list of tensors of which some differ in shape?"""
    return (
        isinstance(data, list | tuple)
        and all(isinstance(each, torch.Tensor) for each in data)
        and len({each.shape for each in data}) > 1
    )


def check_padding(data: list[torch.Tensor]) -> None:
    """Refuse tensors that padding along the first axis cannot make equal."""
    kinds = {(each.shape[1:], each.dtype) if each.ndim else None: i for i, each in enumerate(data)}
    if len(kinds) > 1 or None in kinds:
        places = sorted(kinds.values())[:2]
        shown = ", ".join(f"sample {i} is {tuple(data[i].shape)} {data[i].dtype}" for i in places)
        raise ConfigError(
            f"tensors of a batch may differ in their first axis alone: {shown}; give a "
            "data_collator that takes them"
        )


def padded(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor, with zeros after the end of shorter samples, and their lengths.

    >>> padded([torch.tensor([1, 2, 3]), torch.tensor([4])])
    [tensor([[1, 2, 3],
            [4, 0, 0]]), tensor([3, 1])]
    """
    lengths = torch.tensor([len(each) for each in samples])
    return [pad_sequence(samples, batch_first=True), lengths]
