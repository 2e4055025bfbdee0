"""Stand-ins for what the guide takes from a hub: datasets as they come, and a trained tokenizer."""

from __future__ import annotations

from typing import Any

import datasets
from PIL import Image

LINES = ["", " = The penstock = \n", " A pipe that feeds the turbine . \n", " \n", "Water runs .\n"]
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def load_dataset(name: str, config: str | None = None, *, split: str) -> datasets.Dataset:
    """Raw lines, a few of them empty; or PIL images with classes."""
    return {"wikitext": wikitext, "cifar10": cifar10}[name](40 if split == "train" else 20)


def wikitext(rows: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [LINES[i % len(LINES)] for i in range(rows)]})


def cifar10(rows: int) -> datasets.Dataset:
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    )
    pictures = [Image.new("RGB", (32, 32), (6 * i, 0, 255)) for i in range(rows)]
    labels = [i % 10 for i in range(rows)]
    return datasets.Dataset.from_dict({"img": pictures, "label": labels}, features=features)


def trained_tokenizer() -> Any:
    """A Hugging Face tokenizer, trained on the lines above."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
