"""The ten spoken digits of the Speech Commands corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.arguments import a_path, choice, flag
from penstock.domains.audio.dataset import AudioDataset
from penstock.domains.audio.files import AudioFile, check_rates, index_files
from penstock.errors import PlanError, SourceError

CLASSES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPLITS: Final = ("train", "validation", "test")
LISTS: Final = {"validation": "validation_list.txt", "test": "testing_list.txt"}


class SpeechCommands09(AudioDataset):
    """The digits zero to nine, split by the lists that come with the corpus.

    Args:
        path: The corpus: a directory for each word, and the two lists.
        bits: Of a level; see `AudioDataset` for it and for what is not explained here.
        split: ``train``, ``validation`` or ``test``.
        dequantize: x is the waveform, (L, 1), that its levels stand for.
        on_error: For files that cannot be read: ``raise``, ``warn`` or ``skip``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        bits: int = 8,
        split: str = "train",
        sample_len: int | None = 16000,
        quantization: str | None = "mu-law",
        return_type: str | None = "autoregressive",
        drop_last: bool = False,
        target_sr: int | None = None,
        dequantize: bool = False,
        pad_len: int | None = None,
        *,
        on_error: str = "raise",
        **options: Any,
    ) -> None:
        root = a_path("path", path)
        wanted = _members(root, split)
        found = _files(root, on_error)
        check_rates(found, target_sr)  # of all splits: they are one corpus
        files = [file for file in found if wanted(file.name)]
        if not files:
            raise PlanError(f"no file of {root} is in the split {split!r}: repair its lists")
        self.split, self.dequantize = split, flag("dequantize", dequantize)
        super().__init__(
            path,
            files,
            bits,
            sample_len,
            quantization,
            return_type,
            drop_last,
            target_sr,
            pad_len=pad_len,
            **options,
        )

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        if not self.dequantize or self.return_type is None:
            return item
        x, y = item
        wave = self.quantize.decode(x)
        return wave if wave.ndim == 2 else wave.unsqueeze(1), y


def _files(root: Path, on_error: str) -> list[AudioFile]:
    """Those of every digit, named by its folder."""
    return [
        replace(file, name=f"{word}/{file.name}")
        for word in CLASSES
        for file in index_files(root / word, on_error=on_error)
    ]


def _members(root: Path, split: str) -> Callable[[str], bool]:
    """Is a file of this split? Training is what no list names."""
    choice("split", split, SPLITS)
    listed = {name: _listed(root / file) for name, file in LISTS.items()}
    if split == "train":
        return lambda name: not any(name in names for names in listed.values())
    return lambda name: name in listed[split]


def _listed(path: Path) -> frozenset[str]:
    try:
        return frozenset(line.strip() for line in path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise SourceError(f"cannot read {path}: {why}; give the folder of the corpus") from error
