"""A folder of audio files as a sequence dataset for autoregressive models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.datamodules.sequence import SequenceDataset, check_whole, default_data_path
from penstock.datamodules.sequence_collation import PaddedCollation
from penstock.domains.audio.dataset import QuantizedAudioDataset
from penstock.domains.audio.files import index_files
from penstock.errors import ConfigError, SourceError

OUTPUT_HEADS: Final = ("categorical", "dml")


class QuantizedAutoregressiveAudio(SequenceDataset):
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
    bits: int
    sample_len: int | None
    train_percentage: float
    drop_last: bool
    context_len: int | None
    pad_len: int | None
    is_stereo: bool
    on_error: str
    output_head: str
    n_mixtures: int

    @property
    def init_defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """All settings and their defaults."""
        return {
            "path": None,
            "bits": 8,
            "sample_len": None,
            "train_percentage": 0.88,
            "quantization": "linear",
            "drop_last": False,
            "context_len": None,
            "pad_len": None,
            "target_sr": None,
            "is_stereo": False,
            "interleaving_strategy": "temporal",
            "output_head": "categorical",
            "n_mixtures": 10,
            "keep_channel": False,
            "keep_silence_low": False,
            "on_error": "raise",
        }

    def init(self) -> None:
        """Check the settings."""
        check_whole(self, 1, "bits", "sample_len", "target_sr", "n_mixtures")
        check_whole(self, 0, "context_len", "pad_len")
        if self.output_head not in OUTPUT_HEADS:
            raise ConfigError(
                f"output_head must be one of {OUTPUT_HEADS}, got {self.output_head!r}"
            )
        share = self.train_percentage
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise ConfigError(
                f"train_percentage must be between 0 and 1, got {self.train_percentage!r}"
            )

    @property
    def d_input(self) -> int:
        """Features per step: one level."""
        return 1

    @property
    def d_output(self) -> int:
        """Outputs per step: the levels, or the parameters of the mixture."""
        return 3 * self.n_mixtures if self.output_head == "dml" else 1 << self.bits

    @property
    def n_tokens(self) -> int:
        """The number of levels."""
        return 1 << self.bits

    @property
    def l_output(self) -> int | None:
        """Steps of a full window; None if each file is one window."""
        channels = 2 if self.is_stereo else 1
        return None if self.sample_len is None else self.sample_len * channels

    L = l_output

    def setup(self) -> None:
        """List the files once for all three partitions, and split them."""
        self.data_dir = folder = self._folder()
        files = index_files(folder, on_error=self.on_error)
        middle = self.train_percentage + (1 - self.train_percentage) / 2
        shares = (0, self.train_percentage), (self.train_percentage, middle), (middle, 1)
        ours = ("path", "train_percentage", "output_head", "n_mixtures", "on_error")
        settings = {key: getattr(self, key) for key in self.init_defaults if key not in ours}
        self.dataset_train, self.dataset_val, self.dataset_test = (
            QuantizedAudioDataset(folder, ratio_min=low, ratio_max=high, files=files, **settings)
            for low, high in shares
        )
        if not self.drop_last:
            self._collate_fn = self._padding()  # type: ignore[method-assign, assignment]

    def _folder(self) -> Path:
        if self.data_dir is not None:
            return self.data_dir
        if self.path is None:
            raise ConfigError(
                "no folder of audio files is given: pass data_dir=, or path= below the data root"
            )
        here, below = Path(self.path).absolute(), default_data_path() / self.path
        for folder in (here, below):
            if folder.is_dir():
                return folder
        tried = str(here) if here == below else f"{here} and, below the data root, {below}"
        raise SourceError(f"path={self.path!r} is not a folder: looked for {tried}")

    def _padding(self) -> PaddedCollation:
        before = self.pad_len or 0
        return PaddedCollation(
            zero=self.dataset_train.zero,
            limit=None if self.l_output is None else self.l_output + before,
            lead_steps=before + (self.context_len or 0),
        )
