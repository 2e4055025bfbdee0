"""Tokenizers: the least that a collator needs, one with its own pad, and a real trained one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.collate import CollatorRegistry

CORPUS = [
    "the cat sat on the mat and the dog ran off",
    "a penstock is the pipe that feeds the turbine",
    "water runs through the pipe, the turbine turns",
]


class PlainTokenizer:
    """All that TextCollator asks for."""

    pad_token_id = 0


class MaskingTokenizer(PlainTokenizer):
    """All that masked LM asks for."""

    mask_token_id = 4
    vocab_size = 1000
    all_special_ids = (0, 1, 2, 3, 4)


class PaddingTokenizer:
    """One that pads by itself, one list at a time."""

    def __init__(self, pad_token_id: int = 0) -> None:
        self.pad_token_id = pad_token_id
        self.padding_side = "right"
        self.calls = 0

    def pad(
        self, examples: list[dict[str, Any]], return_tensors: Any = None, padding: bool = True
    ) -> dict[str, Any]:
        self.calls += 1
        longest = max(len(each["input_ids"]) for each in examples)
        ids, masks = [], []
        for each in examples:
            row = list(each["input_ids"])
            fill, mask = [self.pad_token_id] * (longest - len(row)), [0] * (longest - len(row))
            left = self.padding_side == "left"
            ids.append(fill + row if left else row + fill)
            masks.append(mask + [1] * len(row) if left else [1] * len(row) + mask)
        return {"input_ids": ids, "attention_mask": masks}


@pytest.fixture
def plain() -> PlainTokenizer:
    return PlainTokenizer()


@pytest.fixture
def masking() -> MaskingTokenizer:
    return MaskingTokenizer()


@pytest.fixture
def padding() -> PaddingTokenizer:
    return PaddingTokenizer()


@pytest.fixture(scope="session")
def trained() -> Any:
    """A Hugging Face tokenizer, trained here on a few sentences."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


@pytest.fixture
def shared_registry():
    """The registry all share, without what other tests registered."""
    CollatorRegistry.reset()
    yield CollatorRegistry.get_instance()
    CollatorRegistry.reset()
