"""Quantised windows of audio, as the S4 and SaShiMi codebases train on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, choice, flag, real_number, whole_number
from penstock.domains.audio.files import (
    AudioFile,
    check_rates,
    check_stereo,
    checked_files,
    index_files,
)
from penstock.domains.audio.reading import read_range
from penstock.domains.audio.stereo import check_strategy, interleave
from penstock.domains.audio.windows import Window, Windows
from penstock.errors import PlanError, SourceError
from penstock.extras import optional
from penstock.order import Indices
from penstock.transforms.audio import Quantize


class AudioDataset(Dataset[Any]):
    """Windows of given files, read as ranges, quantised to levels.

    An item is ``(x, y)``: y the levels, (L, 1) int64, and x the same one step later, beginning
    with the zero level.

    Args:
        path: The directory the names of the files are relative to.
        files: As `index_files` gives them.
        bits: Of a level; see `Quantize` for it, ``quantization`` and ``keep_silence_low``.
        sample_len: Samples of a window at ``target_sr``; None: a file is one window.
        quantization: ``linear``, ``mu-law`` or None: the waveform itself.
        return_type: ``"autoregressive"``, or None: items are the levels alone.
        drop_last: Leave out the shorter rest of each file.
        target_sr: Rate to resample to; needed where the files have different rates.
        context_len: Levels left out at the head of y.
        pad_len: Zero levels put before x.
        is_stereo: Keep two channels, as one sequence by ``interleaving_strategy``; else their mean.
        interleaving_strategy: ``temporal``, ``blocking`` or ``blocking-<n>``.
        keep_channel: x is (L, 1) instead of (L,): the codebases differ.
        keep_silence_low: Silence is level 0, as it was for the published models.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        files: Sequence[AudioFile],
        bits: int = 8,
        sample_len: int | None = None,
        quantization: str | None = "linear",
        return_type: str | None = "autoregressive",
        drop_last: bool = True,
        target_sr: int | None = None,
        context_len: int | None = None,
        pad_len: int | None = None,
        *,
        is_stereo: bool = False,
        interleaving_strategy: str = "temporal",
        keep_channel: bool = False,
        keep_silence_low: bool = False,
    ) -> None:
        self.path = a_path("path", path)
        self.return_type = choice("return_type", return_type, ("autoregressive", None))
        self.quantize = Quantize(bits, quantization, keep_silence_low)
        self.bits, self.quantization = self.quantize.bits, quantization
        self.drop_last = flag("drop_last", drop_last)
        self.context_len = _optional_count("context_len", context_len, 0) or 0
        self.pad_len = _optional_count("pad_len", pad_len, 0) or 0
        self.is_stereo, self.keep_channel = (
            flag("is_stereo", is_stereo),
            flag("keep_channel", keep_channel),
        )
        self.interleaving_strategy = check_strategy(interleaving_strategy)
        self.target_sr = _optional_count("target_sr", target_sr, 1)
        self.sample_len = _optional_count("sample_len", sample_len, 1)
        files = checked_files(files)
        check_rates(files, self.target_sr)
        if self.is_stereo:
            check_stereo(files)
        self.windows = Windows(
            files, sample_len=self.sample_len, target_sr=self.target_sr, drop_last=drop_last
        )
        if not len(self.windows):
            raise PlanError(
                f"none of the {len(files)} files has {sample_len} samples: use drop_last=False, "
                "or a smaller sample_len"
            )

    @property
    def zero(self) -> int:
        """The level of silence: what x begins with and is padded with."""
        return 0 if self.quantization is None else self.quantize.zero

    @property
    def d_output(self) -> int:
        """Levels there are."""
        return self.quantize.levels

    n_tokens = d_output

    def __len__(self) -> int:
        return len(self.windows)

    def locate(self, index: int) -> str:
        """The file of an item and its frames there, for reports; nothing is read."""
        window = self.windows[index]
        return f"{window.file.name} frames {window.start:,} to {window.start + window.frames:,}"

    def lengths(self, indices: Indices) -> Indices:
        """Steps of x of these items; nothing is read."""
        channels = 2 if self.is_stereo else 1
        return self.windows.samples(np.asarray(indices)) * channels + self.pad_len

    def fingerprint(self) -> str:
        """Identity of the files and of what is made of them; no path, no time."""
        digest = blake2b(digest_size=8)
        settings = self.quantize, self.sample_len, self.target_sr, self.drop_last, self.is_stereo
        digest.update(repr((settings, self.interleaving_strategy)).encode())
        for file in self.windows.files:
            digest.update(repr((file.name, file.frames, file.sample_rate, file.nbytes)).encode())
        return digest.hexdigest()

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
        missing = window.samples - len(resampled)  # one at most: rates need not divide
        if missing > 0:
            return np.pad(resampled, ((0, missing), (0, 0)), mode="edge")
        return resampled[: window.samples]


class QuantizedAudioDataset(AudioDataset):
    """Windows of the files of a directory: of a part of them, which is a split.

    The split is ``int(ratio_min * n) : int(ratio_max * n)`` of the files in natural order.

    Args:
        path: The directory.
        bits: See `AudioDataset`, also for the arguments from ``sample_len`` to ``pad_len``.
        ratio_min: Where the split begins, as a share of the files.
        ratio_max: Where it ends.
        on_error: For files that cannot be read: ``raise``, ``warn`` or ``skip``.
        files: Those of the directory, where they were looked up before.
        **options: ``is_stereo``, ``interleaving_strategy``, ``keep_channel``, ``keep_silence_low``.
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
        on_error: str = "raise",
        files: Sequence[AudioFile] | None = None,
        **options: Any,
    ) -> None:
        found = index_files(path, on_error=on_error) if files is None else checked_files(files)
        check_rates(found, target_sr)  # of all: what is trained on and tested on is one corpus
        ratio_min = real_number("ratio_min", ratio_min, minimum=0, maximum=1)
        ratio_max = real_number("ratio_max", ratio_max, minimum=0, maximum=1)
        part = found[int(ratio_min * len(found)) : int(ratio_max * len(found))]
        if not part:
            raise PlanError(
                f"no file of {len(found)} falls in the split [{ratio_min}, {ratio_max}): "
                "use more files or a larger split"
            )
        super().__init__(
            path,
            part,
            bits,
            sample_len,
            quantization,
            return_type,
            drop_last,
            target_sr,
            context_len,
            pad_len,
            **options,
        )


def _optional_count(name: str, value: Any, minimum: int) -> int | None:
    return None if value is None else whole_number(name, value, minimum=minimum, unit="sample")
