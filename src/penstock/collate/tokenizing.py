"""What a collator needs of a tokenizer, whoever made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.collate.columns import Columns
from penstock.collate.errors import CollateError
from penstock.collate.masking import Vocabulary
from penstock.collate.padding import Mask, Ragged, Side, Tokens, real_places
from penstock.errors import ConfigError

_STANDARD_PAD = ("PreTrainedTokenizerBase.pad", "PreTrainedTokenizerBase._pad")


def padding_id(tokenizer: Any, special_tokens: dict[str, int]) -> int:
    """The id that fills a row: pad, else end of sequence, else the task's pad, else 0.

    Any id will do, because masks and labels come from lengths.
    """
    candidates = (
        getattr(tokenizer, "pad_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
        special_tokens.get("pad_token_id"),
    )
    return next((int(each) for each in candidates if each is not None), 0)


def start_id(tokenizer: Any, special_tokens: dict[str, int], pad_id: int) -> int:
    """The id a decoder starts from: its own, else begin of sequence, else pad (as T5 does)."""
    candidates = (
        special_tokens.get("decoder_start_token_id"),
        getattr(tokenizer, "decoder_start_token_id", None),
        getattr(tokenizer, "bos_token_id", None),
    )
    return next((int(each) for each in candidates if each is not None), pad_id)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """What masked LM needs, or an error that says what the tokenizer lacks."""
    needed = ("mask_token_id", "vocab_size", "all_special_ids")
    lacking = [name for name in needed if getattr(tokenizer, name, None) is None]
    if lacking:
        raise ConfigError(
            f"masked language modelling needs a tokenizer with {' and '.join(lacking)}, "
            f"{type(tokenizer).__name__} has none: add a mask token, or use mlm=False"
        )
    special = tuple(int(each) for each in tokenizer.all_special_ids)
    return Vocabulary(int(tokenizer.vocab_size), int(tokenizer.mask_token_id), special)


def encode(
    tokenizer: Any, texts: Sequence[str], *, limit: int | None, target: bool = False
) -> Columns:
    """The columns a tokenizer makes of raw strings, each row at most ``limit`` tokens.

    A Hugging Face tokenizer (told by its ``model_max_length``) gets all texts in one call and
    cuts them itself, keeping its closing tokens; any other is called with one text at a time.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise CollateError(f"sample {number} has {text!r} where sample 0 has text")
    options = {} if limit is None else {"truncation": True, "max_length": limit}
    if callable(tokenizer) and hasattr(tokenizer, "model_max_length"):
        if target:
            return dict(tokenizer(text_target=list(texts), **options))
        return dict(tokenizer(list(texts), **options))
    if callable(tokenizer):
        return {"input_ids": [_ids(tokenizer(text)) for text in texts]}
    if callable(getattr(tokenizer, "encode", None)):
        return {"input_ids": [_ids(tokenizer.encode(text)) for text in texts]}
    raise ConfigError(
        f"samples are raw text, but {type(tokenizer).__name__} can be neither called nor asked "
        "to encode: give a tokenizer that can, or tokenise first"
    )


def _ids(encoded: Any) -> Any:
    try:
        return encoded["input_ids"]
    except (TypeError, IndexError, KeyError):
        return getattr(encoded, "ids", encoded)


def own_pad(tokenizer: Any) -> Any:
    """The tokenizer's ``pad`` where it does something of its own; None if ours does the same.

    Hugging Face's standard ``pad`` fills rows exactly as Penstock does, one Python list at a
    time; tokenizers that override it (or are no Hugging Face ones) keep their say.
    """
    pad = getattr(tokenizer, "pad", None)
    if not callable(pad):
        return None
    inner = getattr(tokenizer, "_pad", None)
    names = (getattr(pad, "__qualname__", ""), getattr(inner, "__qualname__", ""))
    return None if names == _STANDARD_PAD else pad


def pad_with(tokenizer: Any, pad: Any, tokens: Ragged, side: Side) -> tuple[Tokens, Mask]:
    """What the tokenizer's own ``pad`` makes of the rows, and where the real tokens are."""
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
    real = real_places(tokens.lengths, ids.shape[1], side)
    given = padded.get("attention_mask")
    if given is not None:
        mask = _rectangle(given, "attention_mask").astype(bool)
        if mask.shape == ids.shape and (mask.sum(1) == tokens.lengths).all():
            real = mask  # it counts the tokens, so it knows where they are
    return ids, real


def _rectangle(rows: Any, path: str) -> Tokens:
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        raise CollateError(
            f"the tokenizer's pad left {path!r} ragged, with lengths {lengths}: "
            "it must make all rows of a batch equally long"
        )
    return np.asarray([np.asarray(row) for row in rows], np.int64)
