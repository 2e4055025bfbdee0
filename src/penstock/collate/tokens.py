"""Rows of tokens: taken from samples or a tokenizer, joined into one array, and padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from penstock.collate.default import CollateError, Columns, at, describe, is_sequence
from penstock.errors import ConfigError
from penstock.ragged import Ragged

Tokens: TypeAlias = npt.NDArray[np.int64]
Lengths: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Side: TypeAlias = Literal["right", "left"]

# -- rows of unequal length


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of tokens, concatenated, and the length of each row."""

    flat: Tokens
    lengths: Lengths

    def starts(self) -> Lengths:
        """Return the index of each row's first token in ``flat``."""
        return np.cumsum(self.lengths) - self.lengths

    def positions(self) -> Lengths:
        """Return the position of every token in its own row."""
        return np.arange(len(self.flat)) - np.repeat(self.starts(), self.lengths)

    def padded_mask(self, side: Side, multiple: int | None) -> Mask:
        """Return where a padded batch holds tokens: computed from lengths, not from token ids.

        Args:
            side: The side that is padded.
            multiple: The width of the batch is a multiple of it.

        >>> rows = TokenRows(np.array([7, 8, 9]), np.array([2, 1]))
        >>> rows.padded_mask("left", None).tolist()
        [[True, True], [False, True]]
        """
        width = int(self.lengths.max())
        return token_mask(self.lengths, -(-width // (multiple or 1)) * (multiple or 1), side)


def token_mask(lengths: Lengths, width: int, side: Side) -> Mask:
    """Return the mask of a batch of ``width`` columns: True where a row has a token."""
    columns = np.arange(width)
    if side == "right":
        return columns < lengths[:, None]
    return columns >= width - lengths[:, None]


def fill_mask(flat: Tokens, mask: Mask, fill: int) -> Tokens:
    """Return an array with the values of ``flat`` where ``mask`` is True, else ``fill``."""
    out = np.full(mask.shape, fill, np.int64)
    out[mask] = flat
    return out


def token_rows(
    rows: Sequence[Any], path: str, *, limit: int | None = None, side: Side = "right"
) -> TokenRows:
    """Return lists, arrays or tensors of integers as `TokenRows`.

    Args:
        rows: One per sample.
        path: Name of the field in error messages.
        limit: Longer rows are cut.
        side: The side on which they are cut.

    >>> token_rows([[1, 2, 3], [], [4]], "input_ids")
    TokenRows(flat=array([1, 2, 3, 4]), lengths=array([3, 0, 1]))
    """
    if isinstance(rows, Ragged):
        return _ragged_tokens(rows, path, limit, side)
    try:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    except TypeError as error:
        for number, row in enumerate(rows):
            if not hasattr(row, "__len__") or getattr(row, "ndim", 1) == 0:
                raise CollateError(
                    f"{at(path, number)} is {describe(row)}, expected a sequence of tokens"
                ) from error
        raise
    if limit is not None and len(lengths) and int(lengths.max()) > limit:
        cut = [slice(limit) if side == "right" else slice(max(n - limit, 0), None) for n in lengths]
        rows = [row[part] for row, part in zip(rows, cut, strict=True)]
        lengths = np.minimum(lengths, limit)
    return TokenRows(_flat(rows, int(lengths.sum()), path), lengths)


def _ragged_tokens(rows: Ragged, path: str, limit: int | None, side: Side) -> TokenRows:
    if not _is_token_row(rows.values):
        raise CollateError(
            f"{path!r} has rows of {rows.dtype}, expected rows of integers: token ids"
        )
    flat, lengths = rows.values.cpu().numpy().astype(np.int64), rows.lengths.cpu().numpy()
    tokens = TokenRows(flat, lengths)
    if limit is None or not len(lengths) or int(lengths.max()) <= limit:
        return tokens
    from_end = np.repeat(lengths, lengths) - 1 - tokens.positions()
    kept = (tokens.positions() if side == "right" else from_end) < limit
    return TokenRows(flat[kept], np.minimum(lengths, limit))


def is_text(values: Sequence[Any]) -> bool:
    """Return whether the values are strings, also as rows of bytes (uint8)."""
    if isinstance(values, Ragged):
        return values.dtype == torch.uint8 and values.values.ndim == 1
    return isinstance(values[0], str)


def strings_of(values: Sequence[Any]) -> Sequence[str]:
    """Return strings; rows of bytes are decoded."""
    return values.strings() if isinstance(values, Ragged) else values


def _flat(rows: Sequence[Any], count: int, path: str) -> Tokens:
    problem = None
    try:
        if all(type(row) is list and (not row or type(row[0]) is int) for row in rows):
            return np.fromiter(chain.from_iterable(rows), np.int64, count)
        arrays = [np.asarray(row) for row in rows]
        joined = np.concatenate([each for each in arrays if each.size] or [np.empty(0, np.int64)])
        if joined.ndim == 1 and joined.dtype.kind in "biu":
            return joined.astype(np.int64, copy=False)
    except (TypeError, ValueError) as error:
        problem = error
    for number, row in enumerate(rows):
        array = np.asarray(row, dtype=object) if isinstance(row, list) else np.asarray(row)
        if array.ndim != 1 or not all(isinstance(v, int | np.integer) for v in array.tolist()):
            raise CollateError(
                f"{at(path, number)} is {describe(row)} with values other than integers or of "
                "more than one dimension, expected one row of token ids"
            ) from problem
    raise CollateError(f"{path!r} is not made of rows of token ids") from problem


def are_token_rows(values: Sequence[Any]) -> bool:
    """Return whether every value is a row of integers."""
    if isinstance(values, Ragged):
        return _is_token_row(values.values)
    return all(_is_token_row(each) for each in values)


def _is_token_row(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "biu"
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, list | tuple) and all(isinstance(each, int) for each in value[:1])


# -- tokenizers


def tokenize_columns(
    columns: Columns,
    tokenizer: Any,
    *,
    text_field: str | None,
    input_fields: Sequence[str],
    limit: int | None,
) -> Columns:
    """Return the columns with ``input_ids``; a field of raw text is replaced by its tokens.

    Args:
        columns: Values by field.
        tokenizer: Encodes raw text.
        text_field: The only field to look at; None looks at the next ones.
        input_fields: Fields to look at before ``text`` and ``input_ids``.
        limit: Tokens per row.
    """
    if text_field is None and "input_ids" in columns and is_sequence(columns["input_ids"][0]):
        return columns
    wanted = [*input_fields, "text", "input_ids"] if text_field is None else [text_field]
    found = [name for name in wanted if name in columns]
    for name in found:
        if is_text(columns[name]) and (name != "input_ids" or isinstance(columns[name], list)):
            rest = {key: values for key, values in columns.items() if key != name}
            return rest | encode(tokenizer, strings_of(columns[name]), limit=limit)
    for name in found:
        if name != "attention_mask" and are_token_rows(columns[name]):
            rest = {key: values for key, values in columns.items() if key != name}
            return rest | {"input_ids": columns[name]}
    raise CollateError(
        f"no tokens or text in samples with the fields {sorted(map(str, columns))}: give "
        f"'input_ids', or name the text with text_field= (looked for {wanted})"
    )


def encode(
    tokenizer: Any, texts: Sequence[str], *, limit: int | None, target: bool = False
) -> Columns:
    """Return the columns that a tokenizer makes of raw strings.

    A Hugging Face tokenizer (recognised by its ``model_max_length``) gets all texts in one call
    and truncates them itself, so that its closing tokens are not cut off. Any other tokenizer is
    called with one text at a time.

    Args:
        tokenizer: Can be called with a text, or has ``encode``.
        texts: One per sample.
        limit: Tokens per row.
        target: Whether the texts are the targets of a seq2seq model.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise CollateError(f"sample {number} has {text!r} where sample 0 has text")
    if callable(tokenizer) and hasattr(tokenizer, "model_max_length"):
        options = {} if limit is None else {"truncation": True, "max_length": limit}
        if target:
            return dict(tokenizer(text_target=list(texts), **options))
        return dict(tokenizer(list(texts), **options))
    call = tokenizer if callable(tokenizer) else getattr(tokenizer, "encode", None)
    if not callable(call):
        raise ConfigError(
            f"samples are raw text, but {type(tokenizer).__name__} is not callable and has no "
            "encode(): give a tokenizer that can encode, or tokenise first"
        )
    return {"input_ids": [_ids(call(text)) for text in texts]}


def _ids(encoded: Any) -> Any:
    try:
        return encoded["input_ids"]
    except (TypeError, IndexError, KeyError):
        return getattr(encoded, "ids", encoded)
