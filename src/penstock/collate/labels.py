"""Targets of a batch: found under their usual names, kept as what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.collate.columns import Columns, at
from penstock.collate.default import collate_values
from penstock.collate.errors import CollateError
from penstock.collate.task_spec import TaskSpec


def take_target(columns: Columns, task_spec: TaskSpec | None) -> list[Any] | None:
    """The column of targets, taken out of ``columns``; None if the samples have none.

    It is the task's ``target_field``, else ``labels``, else ``label``.
    """
    wanted = task_spec.target_field if task_spec is not None else None
    for name in (wanted, "labels", "label"):
        if name is not None and name in columns:
            return columns.pop(name)
    return None


def is_sequence(value: Any) -> bool:
    """Is this a sequence of tokens or of choices, rather than one class or number?"""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def label_tensor(values: Sequence[Any], *, multilabel: bool = False) -> torch.Tensor:
    """Classes as int64, numbers as float32, one row per sample; multilabel always float32.

    >>> label_tensor([1, 0])
    tensor([1, 0])
    >>> label_tensor([[0, 1], [1, 1]], multilabel=True)
    tensor([[0., 1.],
            [1., 1.]])
    """
    rows = [np.asarray(each) for each in values] if isinstance(values[0], list | tuple) else values
    labels = collate_values(rows, "labels")
    if not isinstance(labels, torch.Tensor):
        raise CollateError(
            f"{at('labels', 0)} is {values[0]!r}: labels must be numbers; map the classes to "
            "integers first"
        )
    if multilabel and labels.ndim != 2:
        raise CollateError(
            f"multilabel targets are one 0 or 1 per class, got labels of shape "
            f"{tuple(labels.shape[1:])} a sample"
        )
    if multilabel or labels.dtype == torch.float64:
        return labels.to(torch.float32)
    return labels if labels.is_floating_point() or labels.is_complex() else labels.to(torch.int64)
