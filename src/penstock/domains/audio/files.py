"""The audio files of a corpus: listed with their lengths, and read as ranges of frames."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.arguments import a_path, choice, shown, text, whole_number
from penstock.atomic_files import cache_path, write_cache
from penstock.errors import PlanError, SourceError
from penstock.extras import optional

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
