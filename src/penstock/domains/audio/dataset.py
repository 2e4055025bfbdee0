"""Quantised windows of audio files, as the S4 and SaShiMi codebases use them."""

from __future__ import annotations

import json
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, choice, flag, real_number, shown, text, whole_number
from penstock.atomic_files import cache_path, write_cache
from penstock.errors import PlanError, SourceError
from penstock.extras import optional
from penstock.fingerprints import short_digest
from penstock.order import Indices
from penstock.transforms.audio import Quantize

log = logging.getLogger("penstock")

EXTENSIONS = (".wav", ".flac", ".ogg", ".mp3")
POLICIES = ("raise", "skip", "warn")

# libsndfile seeks to a wrong frame, without an error, in the last pages of a Vorbis stream
VORBIS_TAIL_FRAMES = 1 << 18
# without the file the dataset has other samples, and no saved state fits it
ADVICE = "restore it, or start a new run without it: a run that is resumed needs the same files"


@dataclass(frozen=True, slots=True)
class AudioFile:
    """An audio file: its header, and the size and time that show whether it changed.

    Args:
        name: Relative to the folder of the corpus.
        frames: Samples per channel.
        sample_rate: Frames per second.
        channels: Number of channels.
        nbytes: Size of the file.
        changed_ns: Time of its last change, in nanoseconds.
    """

    name: str
    frames: int
    sample_rate: int
    channels: int
    nbytes: int
    changed_ns: int

    def __post_init__(self) -> None:
        text("name", self.name)
        for field, least in (("frames", 1), ("sample_rate", 1), ("channels", 1), ("nbytes", 0)):
            whole_number(field, getattr(self, field), minimum=least)
        whole_number("changed_ns", self.changed_ns)


def index_files(folder: str | os.PathLike[str], *, on_error: str = "raise") -> list[AudioFile]:
    """Return the audio files of a directory in natural order; opens only new and changed files.

    Args:
        folder: The directory. Files that end in .wav, .flac, .ogg or .mp3 are listed.
        on_error: What to do with a file that is empty or cannot be read: ``"raise"`` names it,
            ``"warn"`` leaves it out and logs it, ``"skip"`` leaves it out.
    """
    choice("on_error", on_error, POLICIES)
    root = a_path("folder", folder).resolve()
    index = cache_path("audio", str(root))
    known = load_index(index)
    files, looked_at = [], 0
    for entry in _entries(root):
        status = entry.stat()
        file = known.get(entry.name)
        if file is None or (file.nbytes, file.changed_ns) != (status.st_size, status.st_mtime_ns):
            file = _read_header(Path(entry.path), status, on_error)
            looked_at += 1
        if file is not None:
            files.append(file)
    # the index is written only if it changed: many ranks read it at once
    if looked_at or len(files) != len(known):
        write_cache(index, [asdict(file) for file in files])
    return files


def checked_files(files: Any) -> Sequence[AudioFile]:
    """Return ``files``; raises `PlanError` unless they are what `index_files` returns."""
    if not isinstance(files, Sequence) or not all(isinstance(each, AudioFile) for each in files):
        raise PlanError(f"files must be a list of AudioFile, got {shown(files)}: see index_files")
    return files


def check_rates(files: Sequence[AudioFile], target_sr: int | None) -> None:
    """Raise `PlanError` for files of different sample rates that are not resampled to one.

    Mixed in one dataset, the same sound would have two speeds and pitches.
    """
    other = next((file for file in files if file.sample_rate != files[0].sample_rate), None)
    if other is not None and target_sr is None:
        first = files[0]
        raise PlanError(
            f"the files have different sample rates: {first.name} has {first.sample_rate} Hz, "
            f"{other.name} has {other.sample_rate} Hz; resample all of them, for example with "
            f"target_sr={min(first.sample_rate, other.sample_rate)}"
        )


def check_stereo(files: Sequence[AudioFile]) -> None:
    """Raise `PlanError` for a file that does not have two channels."""
    for file in files:
        if file.channels != 2:
            found = f"{file.name} has {file.channels} channels"
            raise PlanError(f"{found}, stereo needs 2: use is_stereo=False")


def natural_key(name: str) -> list[Any]:
    """Return a sorting key that orders ``a2`` before ``a10``.

    >>> sorted(["a10.wav", "a2.wav"], key=natural_key)
    ['a2.wav', 'a10.wav']
    """
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part.lower() for i, part in enumerate(parts)]


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    try:
        found = list(os.scandir(root))
    except OSError as error:
        raise SourceError(f"cannot list the corpus {root}: {error.strerror}") from error
    audio = [e for e in found if e.name.lower().endswith(EXTENSIONS) and e.is_file()]
    if not audio:
        raise SourceError(f"no audio files in {root}: none ends in {', '.join(EXTENSIONS)}")
    yield from sorted(audio, key=lambda entry: natural_key(entry.name))


def _read_header(path: Path, status: os.stat_result, on_error: str) -> AudioFile | None:
    soundfile = optional("soundfile", extra="audio")
    try:
        info = soundfile.info(str(path))
        problem = None if info.frames > 0 else "it has no frames"
    except soundfile.LibsndfileError as error:
        problem = str(error)
    if problem is None:
        identity = status.st_size, status.st_mtime_ns
        return AudioFile(path.name, info.frames, info.samplerate, info.channels, *identity)
    if on_error == "raise":
        raise SourceError(f"cannot read {path}: {problem}; repair it, or use on_error='skip'")
    if on_error == "warn":
        log.warning("skipping %s: %s", path, problem)
    return None


def load_index(path: Path) -> dict[str, AudioFile]:
    """Return the files of a saved index by name; empty if it is missing or damaged."""
    try:
        return {entry["name"]: AudioFile(**entry) for entry in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


# -- reading


def _seek(file: Any, start: int) -> int:
    """Seek to a frame, or to a safe one before it; returns how many frames before it that is."""
    safe = max(0, file.frames - VORBIS_TAIL_FRAMES) if file.format == "OGG" else start
    file.seek(min(start, safe))
    return start - min(start, safe)


def read_range(path: Path, start: int, frames: int) -> Any:
    """Return frames ``start : start + frames`` of a file as (frames, channels) float32."""
    soundfile = optional("soundfile", extra="audio")
    try:
        with soundfile.SoundFile(str(path)) as file:
            skipped = _seek(file, start)
            found = file.read(skipped + frames, dtype="float32", always_2d=True)[skipped:]
    except soundfile.LibsndfileError as error:
        raise SourceError(f"cannot read {path}: {error}; {ADVICE}") from error
    if len(found) != frames:
        end = start + len(found)
        raise SourceError(f"{path} ends after {end} frames, before its header says; {ADVICE}")
    return found


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
