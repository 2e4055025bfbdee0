"""The text collator: token rows to padded batches, with the labels the task asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from penstock.arguments import LARGEST_SEED, choice, flag, real_number, shown, text, whole_number
from penstock.collate.batch_keys import batch_keys
from penstock.collate.columns import Columns, columns_of
from penstock.collate.default import collate_values
from penstock.collate.errors import CollateError
from penstock.collate.labels import is_sequence, label_tensor, take_target
from penstock.collate.masking import IGNORED
from penstock.collate.padding import Ragged, Side, Tokens, ragged, real_places, spread, width_of
from penstock.collate.task_spec import TaskSpec, check_task_spec
from penstock.collate.text_fields import is_rows_of_ints, tokenised
from penstock.collate.text_labels import PaddedText, causal_labels, decoder_text, masked_text
from penstock.collate.tokenizing import (
    encode,
    own_pad,
    pad_with,
    padding_id,
    start_id,
    vocabulary_of,
)
from penstock.errors import ConfigError, PlanError
from penstock.registry import unknown_name

SIDES = ("right", "left")
CLASSIFYING = ("classification", "text_classification")
FILLS = {"special_tokens_mask": 1}  # at padding; every other field with a value per token: 0


class TextCollator:
    """Batches of ``input_ids``, ``attention_mask`` and ``labels``, int64, one row per sample.

    A sample is a dict with ``input_ids`` (a list, array or tensor) or with raw text (``text``, or
    what ``text_field`` or the task's ``input_fields`` name), the ids or the text alone, or a
    tuple ``(ids, label)``. Masks come from lengths, so a real token that equals the padding stays.

    Labels follow the task: the tokens themselves for causal LM; the hidden tokens for masked LM
    (80 % masked, 10 % random, 10 % as they are); classes for classification; for seq2seq the
    target sequence, with ``decoder_input_ids`` shifted right. Labels that samples bring along are
    kept, and without a task they decide what it is. Other fields are batched as they are.

    Args:
        tokenizer: anything with ``pad_token_id``; masked LM also needs ``mask_token_id``,
            ``vocab_size`` and ``all_special_ids``, raw text a call or ``encode``.
        mlm: masked instead of causal LM; a task of type ``masked_lm`` says so too.
        mlm_probability: the share of tokens that is hidden.
        padding_side: ``right`` or ``left``, whatever the tokenizer's own is.
        task_spec: what to train; its ``max_seq_len`` cuts longer rows.
        label_padding: the label at padding; ``"token"`` puts the padding's id there.
        pad_to_multiple_of: rows are made a multiple of so many tokens long.
        max_length: tokens kept of a row; wins over the task's ``max_seq_len``.
        text_field: the field of raw text.
        seed: of the masked LM draws; None takes the loader's (see `batch_keys`).

    >>> class Tokenizer:
    ...     pad_token_id = 0
    >>> batch = TextCollator(Tokenizer())([{"input_ids": [1, 0, 3]}, {"input_ids": [4]}])
    >>> batch["attention_mask"].tolist(), batch["labels"].tolist()
    ([[1, 1, 1], [1, 0, 0]], [[1, 0, 3], [4, -100, -100]])
    """

    def __init__(
        self,
        tokenizer: Any = None,
        mlm: bool = False,
        mlm_probability: float = 0.15,
        padding_side: Side = "right",
        task_spec: TaskSpec | None = None,
        *,
        label_padding: int | Literal["token"] = IGNORED,
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        text_field: str | None = None,
        seed: int | None = None,
    ) -> None:
        check_task_spec(task_spec)
        if tokenizer is None:
            raise ConfigError("tokenizer required: a text collator pads with its pad_token_id")
        task_type = None if task_spec is None else task_spec.task_type
        hint = None if task_spec is None else task_spec.input_schema.get("max_seq_len")
        special = {} if task_spec is None else task_spec.special_tokens
        self.tokenizer, self.task_spec = tokenizer, task_spec
        mlm = flag("mlm", mlm, error=ConfigError)
        self.mlm, self.mlm_probability = mlm or task_type == "masked_lm", mlm_probability
        self.task_type = "masked_lm" if self.mlm else task_type
        self.padding_side, self.label_padding = padding_side, label_padding
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_length = hint if max_length is None else max_length
        self.text_field, self.seed = text_field, seed
        _check(self, task_type)
        self._pad_id = padding_id(tokenizer, special)
        self._start_id = start_id(tokenizer, special, self._pad_id)
        self._fill = label_padding if isinstance(label_padding, int) else self._pad_id
        self._vocabulary = vocabulary_of(tokenizer) if self.mlm else None

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """The batch of ``samples``."""
        columns = columns_of(samples, ("input_ids", "labels"))
        columns = tokenised(
            columns,
            self.tokenizer,
            text_field=self.text_field,
            input_fields=[] if self.task_spec is None else self.task_spec.input_fields,
            limit=self.max_length,
        )
        text = self._padded(columns)
        batch = {"input_ids": text.ids, "attention_mask": text.real.astype(np.int64)}
        if not text.seen.all():
            batch["attention_mask"] = spread(text.seen.astype(np.int64), text.real, 0)
        labels = self._masked(columns, text) if self.mlm else self._labelled(columns, text)
        return {name: _tensor(each) for name, each in (batch | labels).items()} | {
            name: self._other(name, values, text) for name, values in columns.items()
        }

    def _padded(self, columns: Columns) -> PaddedText:
        tokens = self._ragged(columns.pop("input_ids"), "input_ids")
        seen = np.ones(len(tokens.flat), bool)
        if "attention_mask" in columns:
            seen = self._per_token(columns.pop("attention_mask"), tokens, "attention_mask") != 0
        pad = own_pad(self.tokenizer)
        if pad is not None and self.pad_to_multiple_of is None:
            ids, real = pad_with(self.tokenizer, pad, tokens, self.padding_side)
            return PaddedText(tokens, seen, ids, real)
        width = width_of(tokens.lengths, self.pad_to_multiple_of)
        real = real_places(tokens.lengths, width, self.padding_side)
        return PaddedText(tokens, seen, spread(tokens.flat, real, self._pad_id), real)

    def _labelled(self, columns: Columns, text: PaddedText) -> dict[str, Any]:
        """What the task adds to the batch: its labels, or nothing where samples have no target."""
        target = self._target(columns)
        if self.task_type == "seq2seq":
            return {} if target is None else self._decoder(columns, target)
        if self.task_type in CLASSIFYING:
            return {} if target is None else {"labels": label_tensor(target)}
        if target is None:
            kept = self.label_padding == "token"
            return {"labels": causal_labels(text, fill=self._fill, fill_unseen=not kept)}
        if is_sequence(target[0]):
            flat = self._per_token(target, text.tokens, "labels")
            return {"labels": spread(flat, text.real, self._fill)}
        if self.task_type == "lm":
            raise CollateError(
                "the task is 'lm' but the samples have one class each under 'labels': name the "
                "task 'classification', or leave that field out"
            )
        return {"labels": label_tensor(target)}

    def _target(self, columns: Columns) -> list[Any] | None:
        if self.task_type == "lm" and "label" in columns and not is_sequence(columns["label"][0]):
            return columns.pop("labels", None)  # a class beside the text that is to be modelled
        return take_target(columns, self.task_spec)

    def _masked(self, columns: Columns, text: PaddedText) -> dict[str, Any]:
        assert self._vocabulary is not None
        columns.pop("labels", None)
        special = None
        if "special_tokens_mask" in columns:
            rows = columns.pop("special_tokens_mask")
            special = self._per_token(rows, text.tokens, "special_tokens_mask") != 0
        keys = batch_keys(len(text.ids), "mlm", seed=self.seed)
        share = self.mlm_probability
        ids, labels = masked_text(text, special, keys, share=share, vocabulary=self._vocabulary)
        return {"input_ids": ids, "labels": labels}

    def _decoder(self, columns: Columns, target: list[Any]) -> dict[str, Any]:
        if isinstance(target[0], str):
            encoded = encode(self.tokenizer, target, limit=self.max_length, target=True)
            target = encoded["input_ids"]
        labels, inputs = decoder_text(
            self._ragged(target, "labels"),
            start=self._start_id,
            pad=self._pad_id,
            fill=self._fill,
            multiple=self.pad_to_multiple_of,
        )
        if "decoder_input_ids" in columns:
            given = self._ragged(columns.pop("decoder_input_ids"), "decoder_input_ids")
            width = width_of(given.lengths, self.pad_to_multiple_of)
            inputs = spread(given.flat, real_places(given.lengths, width, "right"), self._pad_id)
        return {"decoder_input_ids": inputs, "labels": labels}

    def _ragged(self, rows: Sequence[Any], path: str) -> Ragged:
        side: Side = getattr(self.tokenizer, "truncation_side", "right")
        return ragged(rows, path, limit=self.max_length, side=side)

    def _per_token(self, rows: Sequence[Any], tokens: Ragged, path: str) -> Tokens:
        """A field with one value for each token, flat."""
        other = self._ragged(rows, path)
        for number in np.flatnonzero(other.lengths != tokens.lengths)[:1].tolist():
            raise CollateError(
                f"sample {number} has {tokens.lengths[number]} tokens but {path!r} of length "
                f"{other.lengths[number]}: it needs one value per token"
            )
        return other.flat

    def _other(self, name: str, values: list[Any], text: PaddedText) -> Any:
        if is_rows_of_ints(values):
            other = self._ragged(values, name)
            if np.array_equal(other.lengths, text.tokens.lengths):
                return _tensor(spread(other.flat, text.real, FILLS.get(name, 0)))
        return collate_values(values, name)


def _check(collator: TextCollator, task_type: str | None) -> None:
    if isinstance(collator.padding_side, str) and collator.padding_side not in SIDES:
        raise ConfigError(unknown_name("padding_side", collator.padding_side, SIDES))
    choice("padding_side", collator.padding_side, SIDES, error=ConfigError)
    real_number(
        "mlm_probability", collator.mlm_probability, minimum=0, maximum=1, error=ConfigError
    )
    if collator.mlm and task_type in (*CLASSIFYING, "seq2seq"):
        raise ConfigError(f"mlm=True does not fit a task of type {task_type!r}")
    if not isinstance(collator.label_padding, str) or collator.label_padding != "token":
        try:
            whole_number("label_padding", collator.label_padding)
        except PlanError as error:
            found = shown(collator.label_padding)
            raise ConfigError(
                f"label_padding must be an integer or 'token', got {found}"
            ) from error
    for name in ("max_length", "pad_to_multiple_of"):
        size = getattr(collator, name)
        if size is not None:
            whole_number(name, size, minimum=1, unit="token", error=ConfigError)
    if collator.text_field is not None:
        text("text_field", collator.text_field, error=ConfigError)
    if collator.seed is not None:
        whole_number("seed", collator.seed, minimum=0, maximum=LARGEST_SEED, error=ConfigError)


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
