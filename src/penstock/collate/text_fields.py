"""Which field of a sample is the text, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.collate.columns import Columns
from penstock.collate.errors import CollateError
from penstock.collate.labels import is_sequence
from penstock.collate.tokenizing import encode


def tokenised(
    columns: Columns,
    tokenizer: Any,
    *,
    text_field: str | None,
    input_fields: Sequence[str],
    limit: int | None,
) -> Columns:
    """The columns with ``input_ids`` among them; raw text is replaced by its tokens."""
    if text_field is None and "input_ids" in columns and is_sequence(columns["input_ids"][0]):
        return columns
    wanted = [*input_fields, "text", "input_ids"] if text_field is None else [text_field]
    for name in wanted:
        if name in columns and isinstance(columns[name][0], str):
            rest = {key: values for key, values in columns.items() if key != name}
            return rest | encode(tokenizer, columns[name], limit=limit)
    for name in wanted:
        if name in columns and name != "attention_mask" and is_rows_of_ints(columns[name]):
            rest = {key: values for key, values in columns.items() if key != name}
            return rest | {"input_ids": columns[name]}
    raise CollateError(
        f"no tokens or text in samples with the fields {sorted(map(str, columns))}: give "
        f"'input_ids', or name the text with text_field= (looked for {wanted})"
    )


def is_rows_of_ints(values: Sequence[Any]) -> bool:
    """Does every sample have a row of integers here?"""
    return all(_is_row_of_ints(each) for each in values)


def _is_row_of_ints(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "biu"
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, list | tuple) and all(isinstance(each, int) for each in value[:1])
