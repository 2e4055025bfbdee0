"""Quantised windows of an audio corpus, as the S4 and SaShiMi codebases train on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from penstock.datasets.audio.files import index_files
from penstock.datasets.audio.stereo import check_strategy, interleave
from penstock.datasets.audio.windows import Window, Windows
from penstock.errors import PlanError, SourceError
from penstock.extras import optional
from penstock.transforms.quantize import Quantize


class QuantizedAudioDataset(Dataset[Any]):
    """Windows of the files of a directory, read as ranges, quantised to levels.

    An item is ``(x, y)``: y the levels, (L, 1) int64, and x the same one step later, beginning
    with the zero level. A part of the files is a split: ``int(ratio_min * n) : int(ratio_max * n)``
    of them in natural order.

    Args:
        path: The directory.
        bits: Of a level; see `Quantize` for it, ``quantization`` and ``keep_silence_low``.
        sample_len: Samples of a window at ``target_sr``; None: a file is one window.
        return_type: ``"autoregressive"``, or None: items are the levels alone.
        drop_last: Leave out the shorter rest of each file.
        target_sr: Rate to resample to.
        context_len: Leave so many levels out at the head of y.
        pad_len: Put so many zero levels before x.
        is_stereo: Keep two channels, as one sequence by ``interleaving_strategy``; else their mean.
        keep_channel: x is (L, 1) instead of (L,): the codebases differ.
        on_error: For files that cannot be read: ``raise``, ``warn`` or ``skip``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        bits: int = 8,
        ratio_min: float = 0,
        ratio_max: float = 1,
        sample_len: int | None = None,
        quantization: str | None = "linear",
        return_type: str | None = "autoregressive",
        drop_last: bool = False,
        target_sr: int | None = None,
        context_len: int | None = None,
        pad_len: int | None = None,
        *,
        is_stereo: bool = False,
        interleaving_strategy: str = "temporal",
        keep_channel: bool = False,
        keep_silence_low: bool = False,
        on_error: str = "raise",
    ) -> None:
        if return_type not in ("autoregressive", None):
            raise PlanError(f"return_type must be 'autoregressive' or None, got {return_type!r}")
        self.path, self.return_type = Path(path), return_type
        self.quantize = Quantize(bits, quantization, keep_silence_low)
        self.context_len, self.pad_len = context_len or 0, pad_len or 0
        self.is_stereo, self.keep_channel = is_stereo, keep_channel
        self.interleaving_strategy = check_strategy(interleaving_strategy)
        self.target_sr, self.sample_len = target_sr, sample_len
        files = index_files(path, on_error=on_error)
        part = files[int(ratio_min * len(files)) : int(ratio_max * len(files))]
        if not part:
            raise PlanError(
                f"no file of {len(files)} falls in the split [{ratio_min}, {ratio_max}): "
                "use more files or a larger split"
            )
        self.windows = Windows(
            part, sample_len=sample_len, target_sr=target_sr, drop_last=drop_last
        )

    @property
    def zero(self) -> int:
        """The level of silence: what x begins with and is padded with."""
        return self.quantize.zero

    @property
    def d_output(self) -> int:
        """Levels there are."""
        return self.quantize.levels

    n_tokens = d_output

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Any:
        levels = self.quantize(self._wave(self.windows[index]))
        if self.return_type is None:
            return levels
        x = levels.roll(1, 0)
        x[0] = self.zero
        if self.pad_len:
            x = torch.cat([x.new_full((self.pad_len, 1), self.zero), x])
        return x if self.keep_channel else x.squeeze(1), levels[self.context_len :]

    def _wave(self, window: Window) -> torch.Tensor:
        """A window as (L, 1) float32, mono or interleaved, at the target rate."""
        frames = read_range(self.path / window.file.name, window.start, window.frames)
        if not self.is_stereo:
            frames = frames.mean(axis=1, keepdims=True) if frames.shape[1] > 1 else frames
        elif frames.shape[1] != 2:
            raise SourceError(
                f"{window.file.name} has {frames.shape[1]} channels, stereo needs 2: use "
                "is_stereo=False"
            )
        if self.target_sr is not None and self.target_sr != window.file.sample_rate:
            frames = self._resample(frames, window)
        wave = torch.from_numpy(frames)
        return interleave(wave, self.interleaving_strategy) if self.is_stereo else wave

    def _resample(self, frames: Any, window: Window) -> Any:
        soxr = optional("soxr", extra="audio")
        resampled = soxr.resample(frames, window.file.sample_rate, self.target_sr)
        return resampled if self.sample_len is None else resampled[: self.sample_len]


# libsndfile seeks wrongly, and silently, into the last pages of a Vorbis stream
VORBIS_TAIL_FRAMES = 1 << 18


def _seek(file: Any, start: int) -> int:
    """Go to a frame, or as near before it as can be trusted; how many frames before it that is."""
    safe = max(0, file.frames - VORBIS_TAIL_FRAMES) if file.format == "OGG" else start
    file.seek(min(start, safe))
    return start - min(start, safe)


def read_range(path: Path, start: int, frames: int) -> Any:
    """Frames ``start : start + frames`` of a file, (frames, channels) float32, and no others."""
    soundfile = optional("soundfile", extra="audio")
    try:
        with soundfile.SoundFile(str(path)) as file:
            skipped = _seek(file, start)
            found = file.read(skipped + frames, dtype="float32", always_2d=True)[skipped:]
    except soundfile.LibsndfileError as error:
        raise SourceError(f"cannot read {path}: {error}; mend or remove it") from error
    if len(found) != frames:
        raise SourceError(
            f"{path} ends after {start + len(found)} frames, before what its header says: mend it"
        )
    return found
