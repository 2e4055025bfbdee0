"""The text collator: rows of tokens become padded batches with the labels of the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import LARGEST_SEED, choice, flag, real_number, text, whole_number
from penstock.collate.default import (
    CollateError,
    Columns,
    collate_values,
    columns_of,
    is_sequence,
    label_tensor,
    take_target,
)
from penstock.collate.task_spec import TaskSpec, check_task_spec
from penstock.collate.tokens import (
    Mask,
    Side,
    TokenRows,
    Tokens,
    are_token_rows,
    encode,
    fill_mask,
    is_text,
    strings_of,
    token_mask,
    token_rows,
    tokenize_columns,
)
from penstock.errors import ConfigError
from penstock.keyed import current_reading, sample_keys
from penstock.order import derive_key
from penstock.order.permutation import Keys

IGNORED = -100  # the label that torch's losses and Hugging Face's models leave out
SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1  # of the chosen tokens; the rest is not changed
SIDES: Final[tuple[Side, ...]] = ("right", "left")
CLASSIFYING = ("classification", "text_classification")
_STANDARD_PAD = ("PreTrainedTokenizerBase.pad", "PreTrainedTokenizerBase._pad")
FILLS = {"special_tokens_mask": 1}  # at padding; 0 for every other field with a value per token


class TextCollator:
    """Collator that returns ``input_ids``, ``attention_mask`` and ``labels`` as int64.

    A sample is a dict with ``input_ids`` (a list, array or tensor) or with raw text (``text``, or
    the field named by ``text_field`` or the task's ``input_fields``); the ids or the text alone; or
    a tuple ``(ids, label)``. As ``collate_fn`` of a `StreamLoader` it gets a batch: tokens or text
    (bytes) as `Ragged`, by field. Masks are computed from lengths, so a token that equals the
    padding is not masked.

    Labels depend on the task: the tokens themselves for causal LM; the hidden tokens for masked LM
    (80 % masked, 10 % random, 10 % unchanged); classes for classification; for seq2seq the target
    sequence, with ``decoder_input_ids`` shifted right. Labels in the samples are used, and without
    a task they decide which task it is. Other fields are batched as they are.

    Args:
        tokenizer: Any object with ``pad_token_id``. Masked LM also needs ``mask_token_id``,
            ``vocab_size`` and ``all_special_ids``; raw text needs a call or ``encode``.
        mlm: Masked instead of causal LM; implied by a task of type ``masked_lm``.
        mlm_probability: The share of tokens that is hidden.
        padding_side: ``right`` or ``left``; the tokenizer's own setting is not used.
        task_spec: The task; its ``max_seq_len`` cuts longer rows.
        label_padding: The label at padding; ``"token"`` uses the padding's id.
        pad_to_multiple_of: The length of the rows is a multiple of this number of tokens.
        max_length: Maximum tokens per row; takes precedence over the task's ``max_seq_len``.
        text_field: The field of raw text.
        seed: Seed of the masked LM draws; None uses the loader's seed.

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
        special = {} if task_spec is None else task_spec.special_tokens
        if max_length is None and task_spec is not None:
            max_length = task_spec.input_schema.get("max_seq_len")
        self.tokenizer, self.task_spec = tokenizer, task_spec
        self.mlm = flag("mlm", mlm, error=ConfigError) or task_type == "masked_lm"
        if self.mlm and task_type in (*CLASSIFYING, "seq2seq"):
            raise ConfigError(f"mlm=True does not fit a task of type {task_type!r}")
        self.task_type = "masked_lm" if self.mlm else task_type
        self.mlm_probability = real_number(
            "mlm_probability", mlm_probability, minimum=0, maximum=1, error=ConfigError
        )
        self.padding_side: Side = choice("padding_side", padding_side, SIDES, error=ConfigError)
        if not isinstance(label_padding, str):
            whole_number("label_padding", label_padding, error=ConfigError)
        elif label_padding != "token":
            raise ConfigError(f"label_padding must be an integer or 'token': {label_padding!r}")
        self.label_padding = label_padding
        for name, size in (("max_length", max_length), ("pad_to_multiple_of", pad_to_multiple_of)):
            if size is not None:
                whole_number(name, size, minimum=1, unit="token", error=ConfigError)
        self.max_length, self.pad_to_multiple_of = max_length, pad_to_multiple_of
        if text_field is not None:
            text("text_field", text_field, error=ConfigError)
        if seed is not None:
            whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED, error=ConfigError)
        self.text_field, self.seed = text_field, seed
        self._pad_id = padding_id(tokenizer, special)
        self._start_id = start_id(tokenizer, special, self._pad_id)
        self._fill = label_padding if isinstance(label_padding, int) else self._pad_id
        self._vocabulary = vocabulary_of(tokenizer) if self.mlm else None

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of ``samples``."""
        columns = tokenize_columns(
            columns_of(samples, ("input_ids", "labels")),
            self.tokenizer,
            text_field=self.text_field,
            input_fields=[] if self.task_spec is None else self.task_spec.input_fields,
            limit=self.max_length,
        )
        padded = self._pad(columns)
        batch = {"input_ids": padded.ids, "attention_mask": padded.mask.astype(np.int64)}
        if not padded.seen.all():
            batch["attention_mask"] = fill_mask(padded.seen.astype(np.int64), padded.mask, 0)
        batch |= self._hide_tokens(columns, padded) if self.mlm else self._labels(columns, padded)
        return {name: torch.as_tensor(each) for name, each in batch.items()} | {
            name: self._other_field(name, values, padded) for name, values in columns.items()
        }

    def _pad(self, columns: Columns) -> PaddedTokens:
        tokens = self._rows(columns.pop("input_ids"), "input_ids")
        seen = np.ones(len(tokens.flat), bool)
        if "attention_mask" in columns:
            seen = self._per_token(columns.pop("attention_mask"), tokens, "attention_mask") != 0
        pad = custom_pad(self.tokenizer)
        if pad is not None and self.pad_to_multiple_of is None:
            ids, mask = pad_with(self.tokenizer, pad, tokens, self.padding_side)
        else:
            mask = tokens.padded_mask(self.padding_side, self.pad_to_multiple_of)
            ids = fill_mask(tokens.flat, mask, self._pad_id)
        return PaddedTokens(tokens, seen, ids, mask)

    def _labels(self, columns: Columns, padded: PaddedTokens) -> dict[str, Any]:
        """Return the labels of the task; nothing where it needs targets and samples have none."""
        is_lm, flat = self.task_type == "lm", padded.rows.flat
        if is_lm and "label" in columns and not is_sequence(columns["label"][0]):
            target = columns.pop("labels", None)  # "label" is a class that the LM does not use
        else:
            target = take_target(columns, self.task_spec)
        if target is None:
            if self.task_type in (*CLASSIFYING, "seq2seq"):
                return {}
            if self.label_padding != "token":
                flat = np.where(padded.seen, flat, self._fill)
            return {"labels": fill_mask(flat, padded.mask, self._fill)}
        if self.task_type == "seq2seq":
            return self._decoder(columns, target)
        if self.task_type not in CLASSIFYING and is_sequence(target[0]):
            flat = self._per_token(target, padded.rows, "labels")
            return {"labels": fill_mask(flat, padded.mask, self._fill)}
        if is_lm:
            raise CollateError(
                "the task is 'lm' but the samples have one class each under 'labels': name the "
                "task 'classification', or leave that field out"
            )
        return {"labels": label_tensor(target)}

    def _hide_tokens(self, columns: Columns, padded: PaddedTokens) -> dict[str, Any]:
        assert self._vocabulary is not None
        columns.pop("labels", None)
        if "special_tokens_mask" in columns:
            rows = columns.pop("special_tokens_mask")
            special = self._per_token(rows, padded.rows, "special_tokens_mask") != 0
        else:
            special = np.isin(padded.rows.flat, self._vocabulary.special_ids)
        shown_ids, labels = hide_tokens(
            padded.rows,
            padded.seen & ~special,
            batch_keys(len(padded.ids), "mlm", seed=self.seed),
            share=self.mlm_probability,
            vocabulary=self._vocabulary,
        )
        ids = padded.ids.copy()
        ids[padded.mask] = shown_ids
        return {"input_ids": ids, "labels": fill_mask(labels, padded.mask, IGNORED)}

    def _decoder(self, columns: Columns, target: list[Any]) -> dict[str, Any]:
        if is_text(target):
            encoded = encode(self.tokenizer, strings_of(target), limit=self.max_length, target=True)
            target = encoded["input_ids"]
        # a decoder reads from the start, so its rows are always padded on the right
        rows = self._rows(target, "labels")
        labels = fill_mask(
            rows.flat, rows.padded_mask("right", self.pad_to_multiple_of), self._fill
        )
        if "decoder_input_ids" in columns:
            rows = self._rows(columns.pop("decoder_input_ids"), "decoder_input_ids")
        else:
            rows = shift_right(rows, start=self._start_id, pad=self._pad_id)
        mask = rows.padded_mask("right", self.pad_to_multiple_of)
        return {"decoder_input_ids": fill_mask(rows.flat, mask, self._pad_id), "labels": labels}

    def _rows(self, rows: Sequence[Any], path: str) -> TokenRows:
        side: Side = getattr(self.tokenizer, "truncation_side", "right")
        return token_rows(rows, path, limit=self.max_length, side=side)

    def _per_token(self, rows: Sequence[Any], tokens: TokenRows, path: str) -> Tokens:
        """Return a field with one value per token, concatenated."""
        other = self._rows(rows, path)
        for number in np.flatnonzero(other.lengths != tokens.lengths)[:1].tolist():
            raise CollateError(
                f"sample {number} has {tokens.lengths[number]} tokens but {path!r} of length "
                f"{other.lengths[number]}: it needs one value per token"
            )
        return other.flat

    def _other_field(self, name: str, values: list[Any], padded: PaddedTokens) -> Any:
        if are_token_rows(values):
            other = self._rows(values, name)
            if np.array_equal(other.lengths, padded.rows.lengths):
                return torch.from_numpy(fill_mask(other.flat, padded.mask, FILLS.get(name, 0)))
        return collate_values(values, name)


LanguageModelingDataCollator = TextCollator  # the name in code written for other engines


@dataclass(frozen=True, slots=True)
class PaddedTokens:
    """Rows of tokens, and the padded batch of them.

    Args:
        rows: The tokens.
        seen: One value per token of ``rows.flat``: False where the sample's own attention mask
            hides it (padding that the sample was stored with).
        ids: The padded batch.
        mask: True where ``ids`` holds a token.
    """

    rows: TokenRows
    seen: Mask
    ids: Tokens
    mask: Mask


def shift_right(rows: TokenRows, *, start: int, pad: int) -> TokenRows:
    """Return the inputs of a decoder: ``start``, then the targets without the last one.

    >>> targets = TokenRows(np.array([5, 6, 7, 8]), np.array([3, 1]))
    >>> shift_right(targets, start=1, pad=0).flat
    array([1, 5, 6, 1])
    """
    inputs = np.empty_like(rows.flat)
    inputs[1:] = rows.flat[:-1]
    inputs[rows.starts()[rows.lengths > 0]] = start
    inputs[inputs == IGNORED] = pad  # a target without a loss is still an input
    return TokenRows(inputs, rows.lengths)


def hide_tokens(
    tokens: TokenRows, allowed: Mask, keys: Keys, *, share: float, vocabulary: Vocabulary
) -> tuple[Tokens, Tokens]:
    """Return the tokens that a masked LM sees, and its labels: -100 where nothing is hidden.

    Each allowed token is chosen with probability ``share``. Of the chosen ones, 80 % become the
    mask, 10 % a random token, and 10 % stay. A draw depends only on the key of the row and the
    position in it, not on padding or on the other rows of the batch.
    """
    draws = np.asarray(derive_key(np.repeat(keys, tokens.lengths), tokens.positions()))
    chosen = np.flatnonzero(allowed & (_unit_interval(draws) < share))
    originals = tokens.flat[chosen]
    labels = np.full(len(tokens.flat), IGNORED, np.int64)
    labels[chosen] = originals

    kind = _unit_interval(np.asarray(derive_key(draws[chosen], 1)))
    others = np.asarray(derive_key(draws[chosen], 2)) % np.uint64(vocabulary.size)
    replaced = np.where(kind < SHOWN_AS_MASK, vocabulary.mask_id, others.astype(np.int64))
    seen = tokens.flat.copy()
    seen[chosen] = np.where(kind < SHOWN_AS_MASK + SHOWN_AS_RANDOM, replaced, originals)
    return seen, labels


def _unit_interval(draws: Keys) -> npt.NDArray[np.float64]:
    """Return draws of 64 bits as floats in [0, 1)."""
    return (draws >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def batch_keys(count: int, purpose: str, *, seed: int | None) -> Keys:
    """Return one key for each of the batch's ``count`` samples.

    In a Penstock loader the keys depend on (seed, epoch, sample): the draws are the same with any
    number of workers or ranks, any batch size, and after a resume. Elsewhere, or where the dataset
    returned another number of samples than requested, a sample counts as its position in the batch,
    so that the same call gives the same draws.

    Args:
        count: Samples in the batch.
        purpose: What the keys are for; different purposes get different keys.
        seed: None uses the loader's seed, or 0 outside of a loader.

    >>> batch_keys(2, "mask", seed=7).tolist() == batch_keys(3, "mask", seed=7).tolist()[:2]
    True
    """
    reading = current_reading()
    if reading is None:
        return sample_keys(np.arange(count), purpose, seed=seed)
    if len(reading.samples) != count:
        return sample_keys(np.arange(count), purpose, int(reading.samples[0]), seed=seed)
    return sample_keys(reading.samples, purpose, seed=seed)


# -- tokenizers


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a vocabulary that masked LM uses."""

    size: int
    mask_id: int
    special_ids: tuple[int, ...]


def padding_id(tokenizer: Any, special_tokens: dict[str, int]) -> int:
    """Return the id used as padding: pad, or else end of sequence, the task's pad, or 0.

    Any id is correct, because masks and labels are computed from lengths.
    """
    candidates = (
        getattr(tokenizer, "pad_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
        special_tokens.get("pad_token_id"),
    )
    return next((int(each) for each in candidates if each is not None), 0)


def start_id(tokenizer: Any, special_tokens: dict[str, int], pad_id: int) -> int:
    """Return the first id of a decoder: its own, or else begin of sequence, or pad (as in T5)."""
    candidates = (
        special_tokens.get("decoder_start_token_id"),
        getattr(tokenizer, "decoder_start_token_id", None),
        getattr(tokenizer, "bos_token_id", None),
    )
    return next((int(each) for each in candidates if each is not None), pad_id)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return what masked LM uses of a tokenizer; the error names what the tokenizer lacks."""
    needed = ("mask_token_id", "vocab_size", "all_special_ids")
    lacking = [name for name in needed if getattr(tokenizer, name, None) is None]
    if lacking:
        raise ConfigError(
            f"masked language modelling needs a tokenizer with {' and '.join(lacking)}, "
            f"{type(tokenizer).__name__} has none: add a mask token, or use mlm=False"
        )
    special = tuple(int(each) for each in tokenizer.all_special_ids)
    return Vocabulary(int(tokenizer.vocab_size), int(tokenizer.mask_token_id), special)


def custom_pad(tokenizer: Any) -> Any:
    """Return the tokenizer's ``pad`` method if it differs from Hugging Face's; None otherwise.

    The standard ``pad`` gives the same result as Penstock's padding, one Python list at a time, so
    it is not needed. Tokenizers that override it (or are not Hugging Face's) are called.
    """
    pad = getattr(tokenizer, "pad", None)
    if not callable(pad):
        return None
    inner = getattr(tokenizer, "_pad", None)
    names = (getattr(pad, "__qualname__", ""), getattr(inner, "__qualname__", ""))
    return None if names == _STANDARD_PAD else pad


def pad_with(tokenizer: Any, pad: Any, tokens: TokenRows, side: Side) -> tuple[Tokens, Mask]:
    """Return what the tokenizer's own ``pad`` makes of the rows, and the mask of real tokens."""
    rows = np.split(tokens.flat, np.cumsum(tokens.lengths)[:-1])
    before = getattr(tokenizer, "padding_side", None)
    if before is not None:
        tokenizer.padding_side = side
    try:
        padded = pad([{"input_ids": row.tolist()} for row in rows], padding=True)
    finally:
        if before is not None:
            tokenizer.padding_side = before
    ids = _rectangle(padded["input_ids"], "input_ids")
    given = padded.get("attention_mask")
    if given is not None:
        mask = _rectangle(given, "attention_mask").astype(bool)
        # a mask with the right number of tokens per row is trusted for their positions
        if mask.shape == ids.shape and (mask.sum(1) == tokens.lengths).all():
            return ids, mask
    return ids, token_mask(tokens.lengths, ids.shape[1], side)


def _rectangle(rows: Any, path: str) -> Tokens:
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        raise CollateError(
            f"the tokenizer's pad returned {path!r} with lengths {lengths}: all rows of a batch "
            "must have the same length"
        )
    return np.asarray([np.asarray(row) for row in rows], np.int64)
