"""The files of a corpus and their lengths: looked at once, and again when they change."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from penstock.arguments import a_path, choice, shown, text, whole_number
from penstock.atomic_files import replace_text
from penstock.errors import PlanError, SourceError
from penstock.extras import optional

log = logging.getLogger("penstock")

EXTENSIONS = (".wav", ".flac", ".ogg", ".mp3")
POLICIES = ("raise", "skip", "warn")


@dataclass(frozen=True, slots=True)
class AudioFile:
    """An audio file: what its header says, and what tells that it is still the same."""

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
    """The audio files of a directory in natural order, without opening those known already.

    Args:
        folder: Its files ending in .wav, .flac, .ogg or .mp3; others are not looked at.
        on_error: What to do with a file that is empty or cannot be read: ``"raise"`` names it,
            ``"warn"`` leaves it out and logs it, ``"skip"`` leaves it out.
    """
    choice("on_error", on_error, POLICIES)
    root = a_path("folder", folder).resolve()
    known = _load(_memory_of(root))
    files, looked_at = [], 0
    for entry in _entries(root):
        status = entry.stat()
        file = known.get(entry.name)
        if file is None or (file.nbytes, file.changed_ns) != (status.st_size, status.st_mtime_ns):
            file = _look(Path(entry.path), status, on_error)
            looked_at += 1
        if file is not None:
            files.append(file)
    if looked_at or len(files) != len(known):
        _save(_memory_of(root), files)
    return files


def checked_files(files: Any) -> Sequence[AudioFile]:
    """``files``, refused unless they are what `index_files` gives."""
    if not isinstance(files, Sequence) or not all(isinstance(each, AudioFile) for each in files):
        raise PlanError(f"files must be a list of AudioFile, got {shown(files)}: see index_files")
    return files


def check_rates(files: Sequence[AudioFile], target_sr: int | None) -> None:
    """Refuse files of different sample rates that are not resampled to one.

    Trained on together, the same sound would be at two speeds and pitches.
    """
    other = next((file for file in files if file.sample_rate != files[0].sample_rate), None)
    if other is not None and target_sr is None:
        first = files[0]
        raise PlanError(
            f"the files have different sample rates: {first.name} has {first.sample_rate} Hz, "
            f"{other.name} has {other.sample_rate} Hz; resample all to one, "
            f"target_sr={min(first.sample_rate, other.sample_rate)} for instance"
        )


def check_stereo(files: Sequence[AudioFile]) -> None:
    """Refuse files that have not two channels."""
    for file in files:
        if file.channels != 2:
            raise PlanError(
                f"{file.name} has {file.channels} channels, stereo needs 2: use is_stereo=False"
            )


def natural_key(name: str) -> list[Any]:
    """A sorting key in which numbers count: ``a2`` before ``a10``.

    >>> sorted(["a10.wav", "a2.wav"], key=natural_key)
    ['a2.wav', 'a10.wav']
    """
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part.lower() for i, part in enumerate(parts)]


def _entries(root: Path) -> Iterator[os.DirEntry[str]]:
    try:
        found = list(os.scandir(root))
    except OSError as error:
        raise SourceError(
            f"cannot list {root}: {error.strerror}; give the corpus' folder"
        ) from error
    audio = [e for e in found if e.name.lower().endswith(EXTENSIONS) and e.is_file()]
    if not audio:
        raise SourceError(
            f"there is no audio in {root}: looked for {', '.join(EXTENSIONS)} among "
            f"{len(found)} entries"
        )
    yield from sorted(audio, key=lambda entry: natural_key(entry.name))


def _look(path: Path, status: os.stat_result, on_error: str) -> AudioFile | None:
    soundfile = optional("soundfile", extra="audio")
    try:
        info = soundfile.info(str(path))
        problem = None if info.frames > 0 else "it holds no sound"
    except soundfile.LibsndfileError as error:
        problem = str(error)
    if problem is None:
        identity = status.st_size, status.st_mtime_ns
        return AudioFile(path.name, info.frames, info.samplerate, info.channels, *identity)
    if on_error == "raise":
        raise SourceError(
            f"cannot read {path}: {problem}; repair or remove it, or use on_error='skip'"
        )
    if on_error == "warn":
        log.warning("left out %s: %s", path, problem)
    return None


def _memory_of(root: Path) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = blake2b(str(root).encode(), digest_size=12).hexdigest()
    return home / "penstock" / "audio" / f"{name}.json"


def _load(memory: Path) -> dict[str, AudioFile]:
    try:
        return {entry["name"]: AudioFile(**entry) for entry in json.loads(memory.read_text())}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _save(memory: Path, files: list[AudioFile]) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        replace_text(memory, json.dumps([asdict(file) for file in files]))
    except OSError as error:  # a home that cannot be written to only costs time
        log.info("the index of audio files is not remembered: %s", error)
