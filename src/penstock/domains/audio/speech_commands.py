"""The ten spoken digits of the Speech Commands corpus: its dataset and its sequence dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.arguments import a_path, choice, flag
from penstock.datamodules.sequence import SequenceDataset, check_whole, default_data_path
from penstock.datamodules.sequence_collation import PaddedCollation
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
        bits, sample_len, quantization, return_type, drop_last, target_sr, pad_len: See
            `AudioDataset`.
        split: ``train``, ``validation`` or ``test``.
        dequantize: x is the decoded waveform, (L, 1), instead of the levels.
        on_error: ``raise``, ``warn`` or ``skip`` files that cannot be read.
        **options: More arguments of `AudioDataset`.
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
        check_rates(found, target_sr)  # of all splits, which need the same rate
        files = [file for file in found if wanted(file.name)]
        if not files:
            raise PlanError(f"no file of {root} is in the split {split!r}: check its lists")
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


class SpeechCommands09Autoregressive(SequenceDataset):
    """The digits of the Speech Commands corpus for next-step prediction.

    Args:
        data_dir: The corpus; by default ``sc09`` below the data root.
        bits, sample_len, quantization, dequantize, pad_len, keep_silence_low, on_error: See
            `SpeechCommands09`.
    """

    _name_: ClassVar[str | None] = "sc09"

    bits: int
    sample_len: int
    pad_len: int | None
    dequantize: bool

    @property
    def init_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """All settings and their defaults."""
        return {
            "bits": 8,
            "sample_len": 16000,
            "quantization": "mu-law",
            "dequantize": False,
            "pad_len": None,
            "keep_silence_low": False,
            "on_error": "raise",
        }

    d_input = 1

    @property
    def d_output(self) -> int:
        """The number of levels."""
        return 1 << self.bits

    n_tokens = d_output

    @property
    def l_output(self) -> int:
        """Steps of a full recording."""
        return self.sample_len

    L = l_output

    def init(self) -> None:
        """Check the settings."""
        check_whole(self, 1, "bits", "sample_len")
        check_whole(self, 0, "pad_len")

    def setup(self) -> None:
        """List the files and split them by the lists of the corpus."""
        self.data_dir = self.data_dir or default_data_path() / "sc09"
        settings = {key: getattr(self, key) for key in self.init_defaults}
        self.dataset_train, self.dataset_val, self.dataset_test = (
            SpeechCommands09(self.data_dir, split=split, **settings)
            for split in ("train", "validation", "test")
        )
        before = self.pad_len or 0
        self._collate_fn = PaddedCollation(  # type: ignore[method-assign, assignment]
            zero=0 if self.dequantize else self.dataset_train.zero,
            limit=self.sample_len + before,
            lead_steps=before,
        )


def _files(root: Path, on_error: str) -> list[AudioFile]:
    """Return the files of every digit, with their folder in the name."""
    return [
        replace(file, name=f"{word}/{file.name}")
        for word in CLASSES
        for file in index_files(root / word, on_error=on_error)
    ]


def _members(root: Path, split: str) -> Callable[[str], bool]:
    """Return a test whether a file is in the split; training files are in no list."""
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
        raise SourceError(f"cannot read {path}: {why}; pass the folder of the corpus") from error
