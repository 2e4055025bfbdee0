"""How much sooner is a batch formed than by torch's and Hugging Face's collators?

The same samples go through ours and theirs in turns, and the batches are compared before they
are timed. The ceiling is what any collator has to do: fill memory that is new each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from measure import arguments, claim, interleaved, ratio, report, run
from tokenizers import Tokenizer, models
from torch.utils.data import default_collate
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

from penstock.collate import DefaultCollator, TextCollator, VisionCollator

Cases = dict[str, Callable[[], Any]]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(30_000))]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN, STD = (torch.tensor(each).view(-1, 1, 1) for each in IMAGENET)


def tokenizer() -> PreTrainedTokenizerFast:
    words = models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    special = {f"{role}_token": word for role, word in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **special)


def text_cases(batch: int, longest: int) -> tuple[Cases, Cases]:
    """Padding alone, and masked LM, of rows as a tokenizer gives them: lists."""
    rng, real = np.random.default_rng(0), tokenizer()
    lengths = rng.integers(longest // 8, longest, batch, endpoint=True).tolist()
    samples = [
        {"input_ids": rng.integers(5, len(WORDS), n).tolist(), "attention_mask": [1] * n}
        for n in lengths
    ]
    arrays = [{name: np.array(row) for name, row in sample.items()} for sample in samples]
    ours, theirs = TextCollator(real), DataCollatorWithPadding(real)
    same(ours(samples), theirs(samples), ["input_ids", "attention_mask"])
    same(ours(arrays), theirs(samples), ["input_ids", "attention_mask"])
    hide = TextCollator(real, mlm=True)
    their_hide = DataCollatorForLanguageModeling(real)
    return {
        "penstock": lambda: ours(samples),
        "penstock, arrays": lambda: ours(arrays),
        "DataCollatorWithPadding": lambda: theirs(samples),
    }, {
        "penstock": lambda: hide(samples),
        "DataCollatorForLanguageModeling": lambda: their_hide(samples),
    }


def vision_cases(batch: int, side: int, *, channels_first: bool) -> Cases:
    """uint8 images to normalised floats: ours, and default_collate with every usual way to."""
    rng = np.random.default_rng(0)
    shape = (3, side, side) if channels_first else (side, side, 3)
    images = torch.from_numpy(rng.integers(0, 256, (batch, *shape), dtype=np.uint8))
    samples = [{"pixel_values": image, "labels": i} for i, image in enumerate(images)]
    ours = VisionCollator()

    def first(pixels: torch.Tensor) -> torch.Tensor:
        return pixels if channels_first else pixels.movedim(-1, -3).contiguous()

    def normalised(pixels: torch.Tensor) -> torch.Tensor:
        return (first(pixels).float() / 255 - MEAN) / STD

    def after() -> Any:
        out = default_collate(samples)
        out["pixel_values"] = normalised(out["pixel_values"])
        return out

    def in_place() -> Any:
        out = default_collate(samples)
        out["pixel_values"] = first(out["pixel_values"]).float().div_(255).sub_(MEAN).div_(STD)
        return out

    def before() -> Any:
        return default_collate(
            [{**each, "pixel_values": normalised(each["pixel_values"])} for each in samples]
        )

    same(ours(samples), after(), ["pixel_values", "labels"])
    return {
        "penstock": lambda: ours(samples),
        "default_collate, then normalise": after,
        "default_collate, then normalise in place": in_place,
        "normalise each, then default_collate": before,
        "ceiling: fill new memory": lambda: np.empty((batch, 3, side, side), np.float32).fill(1),
    }


def nested_cases(batch: int) -> Cases:
    rng = np.random.default_rng(0)
    samples = [
        {
            "image": torch.from_numpy(rng.random((3, 16, 16), np.float32)),
            "state": {"joints": rng.random(12), "grip": float(i), "pose": (rng.random(3), i)},
            "meta": {"name": f"sample {i}", "weight": 0.5, "valid": True},
        }
        for i in range(batch)
    ]
    return versus_torch(samples, repeats=20)


def versus_torch(samples: list[Any], *, repeats: int) -> Cases:
    ours = DefaultCollator()
    assert_equal = torch.testing.assert_close

    def many(collate: Callable[[list[Any]], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeats):
                collate(samples)

        return run

    assert_equal(*(tensors_of(collate(samples)) for collate in (ours, default_collate)))
    return {"penstock": many(ours), "default_collate": many(default_collate)}


def tensors_of(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return [t for part in parts if not isinstance(part, str) for t in tensors_of(part)]


def same(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: list[str]) -> None:
    for name in names:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5)


def compare(question: str, cases: Cases, *, rounds: int, at_least: float) -> None:
    """Every way of ours against every way of theirs."""
    seconds = interleaved(cases, rounds=rounds, warmup=2)
    report(seconds, question=question)
    ours = [name for name in cases if name.startswith("penstock")]
    theirs = [name for name in cases if not name.startswith(("penstock", "ceiling"))]
    for one in ours:
        for other in theirs:
            text = f"{question}: {one} is at least {at_least:g} times as fast as {other}"
            claim(text, ratio(seconds, one, other), at_least=at_least)


def main() -> None:
    options = arguments(__doc__, rounds=30, batch=64)
    batch, rounds = (4, 2) if options.tiny else (options.batch, options.rounds)
    longest, side = (32, 16) if options.tiny else (128, 224)
    padding, hiding = text_cases(batch, longest)
    tensors = [torch.rand(3, side, side) for _ in range(batch)]
    numbers = versus_torch(list(range(batch)), repeats=200)
    torch.set_num_threads(1)  # as in a worker process; a pool would measure who else is busy
    compare("ragged text", padding, rounds=rounds, at_least=2)
    compare("masked text", hiding, rounds=rounds, at_least=2)
    for layout in (True, False):
        compare(
            f"uint8 images, channels {'first' if layout else 'last'}",
            vision_cases(batch, side, channels_first=layout),
            rounds=rounds,
            at_least=2,
        )
    compare("nested dicts", nested_cases(batch), rounds=rounds, at_least=1)
    compare("large tensors", versus_torch(tensors, repeats=1), rounds=rounds, at_least=1)
    compare("numbers", numbers, rounds=rounds, at_least=1)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
