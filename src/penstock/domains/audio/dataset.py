"""Quantised windows of audio files, as the S4 and SaShiMi codebases use them."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, choice, flag, real_number, shown, whole_number
from penstock.domains.audio.files import (
    AudioFile,
    check_rates,
    check_stereo,
    checked_files,
    index_files,
    read_range,
)
from penstock.errors import PlanError, SourceError
from penstock.extras import optional
from penstock.fingerprints import short_digest
from penstock.order import Indices
from penstock.transforms.audio import Quantize


@dataclass(frozen=True, slots=True)
class Window:
    """Frames ``start : start + frames`` of a file: ``samples`` at the target rate."""

    file: AudioFile
    start: int
    frames: int
    samples: int


class AudioWindows:
    """Consecutive, non-overlapping windows of a corpus; needs memory per file, not per window.

    Args:
        files: As `index_files` returns them.
        sample_len: Samples of a window at the target rate; None makes each file one window.
        target_sr: Rate to resample to; None keeps the rate of each file.
        drop_last: Drop the shorter last window of each file.

    >>> files = [AudioFile("a.wav", 25, 8000, 1, 0, 0)]
    >>> windows = AudioWindows(files, sample_len=10, target_sr=None, drop_last=False)
    >>> [(windows[i].start, windows[i].frames) for i in range(len(windows))]
    [(0, 10), (10, 10), (20, 5)]
    >>> windows.samples(np.array([2, 0]))
    array([ 5, 10])
    """

    def __init__(
        self,
        files: Sequence[AudioFile],
        *,
        sample_len: int | None,
        target_sr: int | None,
        drop_last: bool,
    ) -> None:
        self.files, self.sample_len, self.target_sr = files, sample_len, target_sr
        self.drop_last = drop_last
        self._ends = list(accumulate(self._count(file) for file in files))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index!r} is not in range({len(self)})")
        number = bisect_right(self._ends, index)
        file = self.files[number]
        whole = self._frames(file)
        start = (index - (self._ends[number - 1] if number else 0)) * whole
        frames = min(whole, file.frames - start)
        return Window(file, start, frames, self._samples(file, frames, whole))

    def samples(self, indices: Indices) -> Indices:
        """Return the samples of these windows at the target rate, without reading."""
        if self.sample_len is not None and self.drop_last:
            return np.full(len(indices), self.sample_len)
        return np.array([self[index].samples for index in indices.tolist()], np.int64)

    def _frames(self, file: AudioFile) -> int:
        """Return the frames of a full window at the rate of the file."""
        if self.sample_len is None:
            return file.frames
        rate = self.target_sr or file.sample_rate
        return max(1, int(self.sample_len * file.sample_rate / rate))

    def _samples(self, file: AudioFile, frames: int, whole: int) -> int:
        if self.sample_len is not None and frames == whole:
            return self.sample_len
        samples = -(-frames * (self.target_sr or file.sample_rate) // file.sample_rate)
        return samples if self.sample_len is None else min(samples, self.sample_len)

    def _count(self, file: AudioFile) -> int:
        frames = self._frames(file)
        return file.frames // frames if self.drop_last else -(-file.frames // frames)


class AudioDataset(Dataset[Any]):
    """Windows of audio files, quantised to levels.

    An item is ``(x, y)``: y holds the levels, (L, 1) int64, and x the same levels shifted by one
    step, starting with the zero level.

    Args:
        path: The directory that the names of the files are relative to.
        files: As `index_files` returns them.
        bits: Bits of a level; see `Quantize`, also for ``quantization`` and ``keep_silence_low``.
        sample_len: Samples of a window at ``target_sr``; None makes each file one window.
        quantization: ``linear``, ``mu-law``, or None for the waveform itself.
        return_type: ``"autoregressive"``, or None for items that are only the levels.
        drop_last: Drop the shorter last window of each file.
        target_sr: Rate to resample to; required if the files have different rates.
        context_len: Levels dropped at the start of y.
        pad_len: Zero levels inserted before x.
        is_stereo: Join two channels in one sequence by ``interleaving_strategy``; False uses the
            mean.
        interleaving_strategy: ``temporal``, ``blocking`` or ``blocking-<n>``.
        keep_channel: x is (L, 1) instead of (L,); the codebases differ in this.
        keep_silence_low: Silence is level 0, as for the published models.
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
        self.is_stereo = flag("is_stereo", is_stereo)
        self.keep_channel = flag("keep_channel", keep_channel)
        self.interleaving_strategy = check_strategy(interleaving_strategy)
        self.target_sr = _optional_count("target_sr", target_sr, 1)
        self.sample_len = _optional_count("sample_len", sample_len, 1)
        files = checked_files(files)
        check_rates(files, self.target_sr)
        if self.is_stereo:
            check_stereo(files)
        sizes = {"sample_len": self.sample_len, "target_sr": self.target_sr}
        self.windows = AudioWindows(files, **sizes, drop_last=drop_last)
        if not len(self.windows):
            raise PlanError(f"none of the {len(files)} files has {sample_len} samples: shorten it")

    @property
    def zero(self) -> int:
        """The level of silence: what x begins with and is padded with."""
        return 0 if self.quantization is None else self.quantize.zero

    @property
    def d_output(self) -> int:
        """The number of levels."""
        return self.quantize.levels

    n_tokens = d_output

    def __len__(self) -> int:
        return len(self.windows)

    def locate(self, index: int) -> str:
        """Return the file and the frames of an item, for reports, without reading."""
        window = self.windows[index]
        return f"{window.file.name} frames {window.start:,} to {window.start + window.frames:,}"

    def lengths(self, indices: Indices) -> Indices:
        """Return the length of x of these items, without reading."""
        channels = 2 if self.is_stereo else 1
        return self.windows.samples(np.asarray(indices)) * channels + self.pad_len

    def fingerprint(self) -> str:
        """Return the identity of the files and of the settings; independent of path and time."""
        settings = self.quantize, self.sample_len, self.target_sr, self.drop_last, self.is_stereo
        files = ((f.name, f.frames, f.sample_rate, f.nbytes) for f in self.windows.files)
        facts = [(settings, self.interleaving_strategy), *files]
        return short_digest(repr(each).encode() for each in facts)

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
        """Return a window as (L, 1) float32, mono or interleaved, at the target rate."""
        frames = read_range(self.path / window.file.name, window.start, window.frames)
        if not self.is_stereo:
            frames = frames.mean(axis=1, keepdims=True) if frames.shape[1] > 1 else frames
        elif frames.shape[1] != 2:
            raise SourceError(f"{window.file.name} is not stereo: use is_stereo=False")
        if self.target_sr is not None and self.target_sr != window.file.sample_rate:
            frames = self._resample(frames, window)
        wave = torch.from_numpy(frames)
        return interleave(wave, self.interleaving_strategy) if self.is_stereo else wave

    def _resample(self, frames: Any, window: Window) -> Any:
        soxr = optional("soxr", extra="audio")
        resampled = soxr.resample(frames, window.file.sample_rate, self.target_sr)
        missing = window.samples - len(resampled)  # at most one: the rates may not divide
        if missing > 0:
            return np.pad(resampled, ((0, missing), (0, 0)), mode="edge")
        return resampled[: window.samples]


class QuantizedAudioDataset(AudioDataset):
    """Windows of some or all files of a directory.

    The files used are ``int(ratio_min * n) : int(ratio_max * n)`` of the files in natural order.

    Args:
        path: The directory.
        bits: See `AudioDataset`.
        ratio_min: First file used, as a fraction of all files.
        ratio_max: End of the files used, as a fraction of all files.
        sample_len, quantization, return_type, drop_last, target_sr, context_len, pad_len: See
            `AudioDataset`.
        on_error: ``raise``, ``warn`` or ``skip`` files that cannot be read.
        files: The files of the directory, if `index_files` was called before.
        **options: More arguments of `AudioDataset`: ``is_stereo``,
            ``interleaving_strategy``, ``keep_channel``, ``keep_silence_low``.
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
        check_rates(found, target_sr)  # also of unused ones: training and test need the same rate
        ratio_min = real_number("ratio_min", ratio_min, minimum=0, maximum=1)
        ratio_max = real_number("ratio_max", ratio_max, minimum=0, maximum=1)
        part = found[int(ratio_min * len(found)) : int(ratio_max * len(found))]
        if not part:
            raise PlanError(
                f"none of {len(found)} files is in the range [{ratio_min}, {ratio_max})"
            )
        super().__init__(
            *(path, part, bits, sample_len, quantization, return_type, drop_last),
            *(target_sr, context_len, pad_len),
            **options,
        )


def _optional_count(name: str, value: Any, minimum: int) -> int | None:
    return None if value is None else whole_number(name, value, minimum=minimum, unit="sample")


# -- two channels as one sequence


def check_strategy(strategy: str) -> str:
    """Return ``strategy``; raises `PlanError` if `interleave` does not know it."""
    if isinstance(strategy, str) and re.fullmatch(r"temporal|blocking(-[1-9]\d*)?", strategy):
        return strategy
    raise PlanError(
        "interleaving_strategy must be 'temporal', 'blocking' or 'blocking-<n>', "
        f"got {shown(strategy)}"
    )


def interleave(wave: torch.Tensor, strategy: str) -> torch.Tensor:
    """Return two channels of shape (L, 2) as one sequence of shape (2L, 1).

    ``temporal``: L, R, L, R, ...; ``blocking``: all of L, then all of R; ``blocking-n``:
    alternating blocks of n, the last ones shorter.

    >>> wave = torch.tensor([[1, 5], [2, 6], [3, 7]])
    >>> interleave(wave, "temporal").flatten().tolist()
    [1, 5, 2, 6, 3, 7]
    >>> interleave(wave, "blocking-2").flatten().tolist()
    [1, 2, 5, 6, 3, 7]
    """
    if strategy == "temporal":
        return wave.reshape(-1, 1)
    block = len(wave) if strategy == "blocking" else int(strategy.removeprefix("blocking-"))
    return torch.cat([part.T.reshape(-1, 1) for part in torch.split(wave, max(1, block))])
