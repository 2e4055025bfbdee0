"""Windows of audio files: which frames a sample is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from penstock.domains.audio.files import AudioFile
from penstock.errors import PlanError
from penstock.order import Indices


@dataclass(frozen=True, slots=True)
class Window:
    """Frames ``start : start + frames`` of a file, at its own rate: ``samples`` at the target's."""

    file: AudioFile
    start: int
    frames: int
    samples: int


class Windows:
    """Consecutive windows of a corpus, none overlapping; memory is that of the list of files.

    Args:
        sample_len: Samples of a window at the target rate; None: a file is one window.
        target_sr: Rate to resample to; None: each file's own.
        drop_last: Leave out the shorter rest of each file.

    >>> files = [AudioFile("a.wav", 25, 8000, 1, 0, 0)]
    >>> windows = Windows(files, sample_len=10, target_sr=None, drop_last=False)
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
        if sample_len is not None and sample_len < 1:
            raise PlanError(f"sample_len must be at least 1 sample, got {sample_len!r}")
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
        """Samples of these windows, at the target rate; nothing is read."""
        if self.sample_len is not None and self.drop_last:
            return np.full(len(indices), self.sample_len)
        return np.array([self[index].samples for index in indices.tolist()], np.int64)

    def _frames(self, file: AudioFile) -> int:
        """Frames of a whole window, at the file's own rate."""
        if self.sample_len is None:
            return file.frames
        if self.target_sr is None or self.target_sr == file.sample_rate:
            return self.sample_len
        return max(1, int(self.sample_len * file.sample_rate / self.target_sr))

    def _samples(self, file: AudioFile, frames: int, whole: int) -> int:
        if self.sample_len is not None and frames == whole:
            return self.sample_len
        rate = self.target_sr or file.sample_rate
        samples = -(-frames * rate // file.sample_rate)
        return samples if self.sample_len is None else min(samples, self.sample_len)

    def _count(self, file: AudioFile) -> int:
        frames = self._frames(file)
        return file.frames // frames if self.drop_last else -(-file.frames // frames)
