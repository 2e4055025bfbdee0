"""A folder of audio files as a sequence dataset for autoregressive models."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.datamodules.sequence import SequenceDataset, check_whole, default_data_path
from penstock.datamodules.sequence_loaders import PaddedCollation
from penstock.domains.audio.dataset import (
    AudioDataset,
    QuantizedAudioDataset,
    check_rates,
    index_files,
)
from penstock.errors import ConfigError, PlanError, SourceError

COUNTS: Final = ("bits", "sample_len", "target_sr", "n_mixtures")
OUTPUT_HEADS: Final = ("categorical", "dml")
OWN_DEFAULTS: Final = {  # of a folder of files
    "path": None,
    "train_percentage": 0.88,
    "output_head": "categorical",
    "n_mixtures": 10,
}

CLASSES: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LISTS: Final = ("validation_list.txt", "testing_list.txt")


class AudioSequences(SequenceDataset):
    """What the sequence datasets of audio share: levels as tokens, in padded batches."""

    bits: int
    sample_len: int | None
    pad_len: int | None
    context_len: int | None = None
    is_stereo: bool = False
    d_input = 1  # features per step: one level

    @property
    def n_tokens(self) -> int:
        """The number of levels."""
        return 1 << self.bits

    @property
    def d_output(self) -> int:
        """Outputs per step."""
        return self.n_tokens

    @property
    def l_output(self) -> int | None:
        """Steps of a full window; None if each file is one window."""
        channels = 2 if self.is_stereo else 1
        return None if self.sample_len is None else self.sample_len * channels

    L = l_output

    def init(self) -> None:
        """Check the settings."""
        for least, names in ((1, COUNTS), (0, ("context_len", "pad_len"))):
            check_whole(self, least, *(name for name in names if name in self.init_defaults))

    def _pad_batches(self, zero: float) -> None:
        before = self.pad_len or 0
        self._collate_fn = PaddedCollation(  # type: ignore[method-assign, assignment]
            zero=zero,
            limit=None if self.l_output is None else self.l_output + before,
            lead_steps=before + (self.context_len or 0),
        )


class QuantizedAutoregressiveAudio(AudioSequences):
    """A folder of audio files for next-step prediction, split into partitions by file.

    The first ``train_percentage`` of the files, in natural order, are the training partition; the
    first half of the others is for validation, the rest for tests. With windows of different
    lengths (``drop_last=False``), batches are padded and contain their ``lengths``.

    Args:
        path: The folder, relative to the working directory or to the data root (``$DATA_PATH``, or
            ``data``). Alternatively, ``data_dir`` is the folder itself.
        bits, sample_len, quantization, drop_last, context_len, pad_len, target_sr, is_stereo,
            interleaving_strategy, keep_channel, keep_silence_low, on_error: See
            `QuantizedAudioDataset`.
        train_percentage: Fraction of the files to train on.
        output_head: ``categorical`` has one output for each level; ``dml`` is a mixture of
            ``n_mixtures`` logistics with three outputs each.
        n_mixtures: Logistics of the mixture, for ``output_head="dml"``.
    """

    _name_: ClassVar[str | None] = "qautoaudio"

    path: str | None
    train_percentage: float
    drop_last: bool
    on_error: str
    output_head: str
    n_mixtures: int

    @property
    def init_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """All settings and their defaults: those of `QuantizedAudioDataset`, and four more."""
        of_dataset = defaults_of(AudioDataset) | defaults_of(QuantizedAudioDataset)
        for name in ("return_type", "ratio_min", "ratio_max", "files"):
            del of_dataset[name]
        return of_dataset | OWN_DEFAULTS

    def init(self) -> None:
        """Check the settings."""
        super().init()
        if self.output_head not in OUTPUT_HEADS:
            raise ConfigError(f"output_head must be one of {OUTPUT_HEADS}: {self.output_head!r}")
        share = self.train_percentage
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise ConfigError(f"train_percentage must be between 0 and 1, got {share!r}")

    @property
    def d_output(self) -> int:
        """Outputs per step: the levels, or the parameters of the mixture."""
        return 3 * self.n_mixtures if self.output_head == "dml" else self.n_tokens

    def setup(self) -> None:
        """List the files once for all three partitions, and split them."""
        self.data_dir = folder = self._folder()
        files = index_files(folder, on_error=self.on_error)
        middle = self.train_percentage + (1 - self.train_percentage) / 2
        shares = (0, self.train_percentage), (self.train_percentage, middle), (middle, 1)
        ours = {*OWN_DEFAULTS, "on_error"}
        settings = {key: getattr(self, key) for key in self.init_defaults if key not in ours}
        self.dataset_train, self.dataset_val, self.dataset_test = (
            QuantizedAudioDataset(folder, ratio_min=low, ratio_max=high, files=files, **settings)
            for low, high in shares
        )
        if not self.drop_last:
            self._pad_batches(self.dataset_train.zero)

    def _folder(self) -> Path:
        if self.data_dir is not None:
            return self.data_dir
        if self.path is None:
            raise ConfigError("no folder of audio files: pass data_dir=, or path= below its root")
        here, below = Path(self.path).absolute(), default_data_path() / self.path
        for folder in (here, below):
            if folder.is_dir():
                return folder
        tried = str(here) if here == below else f"{here} and, below the data root, {below}"
        raise SourceError(f"path={self.path!r} is not a folder: looked for {tried}")


class SpeechCommands09Autoregressive(AudioSequences):
    """The digits zero to nine of the Speech Commands corpus for next-step prediction.

    They are split by the lists that come with the corpus.

    Args:
        data_dir: The corpus, with a directory for each word and the two lists; by default ``sc09``
            below the data root.
        bits, sample_len, quantization, pad_len, keep_silence_low: See `AudioDataset`.
        on_error: ``raise``, ``warn`` or ``skip`` files that cannot be read.
    """

    _name_: ClassVar[str | None] = "sc09"

    on_error: str

    @property
    def init_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """All settings and their defaults."""
        return {
            "bits": 8,
            "sample_len": 16000,
            "quantization": "mu-law",
            "pad_len": None,
            "keep_silence_low": False,
            "on_error": "raise",
        }

    def setup(self) -> None:
        """List the files and split them by the lists of the corpus."""
        self.data_dir = root = self.data_dir or default_data_path() / "sc09"
        files = [
            replace(file, name=f"{word}/{file.name}")
            for word in CLASSES
            for file in index_files(root / word, on_error=self.on_error)
        ]
        check_rates(files, None)  # of all partitions, which need the same rate
        val, test = (_listed(root / file) for file in LISTS)
        parts = {  # training files are in no list
            "train": [file for file in files if file.name not in val | test],
            "validation": [file for file in files if file.name in val],
            "test": [file for file in files if file.name in test],
        }
        for name, part in parts.items():
            if not part:
                raise PlanError(f"no file of {root} is in the split {name!r}: check its lists")
        settings = {key: getattr(self, key) for key in self.init_defaults if key != "on_error"}
        self.dataset_train, self.dataset_val, self.dataset_test = (
            AudioDataset(root, part, drop_last=False, **settings) for part in parts.values()
        )
        self._pad_batches(self.dataset_train.zero)


def defaults_of(kind: type[Any]) -> dict[str, Any]:
    """Return the defaults of the parameters of a class."""
    found = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in found if each.default is not each.empty}


def _listed(path: Path) -> frozenset[str]:
    try:
        return frozenset(line.strip() for line in path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise SourceError(f"cannot read {path}: {why}; pass the folder of the corpus") from error
