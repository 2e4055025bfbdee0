"""Ranges of audio files: what is asked for is read, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.extras import optional

# libsndfile seeks wrongly, and silently, into the last pages of a Vorbis stream
VORBIS_TAIL_FRAMES = 1 << 18

# without it the dataset is another one, in which no state of this one has a place
ADVICE = "restore it, or start a new run without it: a run that has begun needs the same files"


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
        raise SourceError(f"cannot read {path}: {error}; {ADVICE}") from error
    if len(found) != frames:
        raise SourceError(
            f"{path} ends after {start + len(found)} frames, before what its header says; {ADVICE}"
        )
    return found
