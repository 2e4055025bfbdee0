"""What checkpoints a directory has: a small file, made anew from the checkpoints if need be."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Final

from penstock.training.checkpoint_files import (
    UNFINISHED,
    CheckpointError,
    read_checkpoint,
    replace_file,
)

log = logging.getLogger("penstock")

REGISTRY: Final = "checkpoint_registry.json"


@dataclass(frozen=True)
class CheckpointMetadata:
    """One checkpoint: its file, where in training it was taken, and how good it was.

    Args:
        sequence: Counts the saves into a directory; the latest has the largest.
    """

    file: str
    sequence: int
    epoch: int
    global_step: int
    metrics: dict[str, float]
    monitor: str
    timestamp: str

    @property
    def monitor_value(self) -> float:
        """The metric that is watched."""
        return self.metrics[self.monitor]


def read_registry(directory: Path) -> list[CheckpointMetadata]:
    """The checkpoints there are, earliest first, whatever became of the registry's file.

    What it names and is gone is left out; what is there and not named (the process was killed
    before it could, or the file is damaged) is read. A damaged checkpoint is left out, and said.
    """
    there = {path.name: path for path in directory.glob("checkpoint_*.pt")}
    known = {entry.file: entry for entry in _named(directory / REGISTRY) if entry.file in there}
    found = [*known.values(), *_read(path for name, path in there.items() if name not in known)]
    return sorted(found, key=lambda entry: (entry.sequence, entry.file))


def write_registry(directory: Path, entries: list[CheckpointMetadata]) -> None:
    """Write the registry's file, as a whole."""
    text = json.dumps([asdict(entry) for entry in entries], indent=1)
    replace_file(directory / REGISTRY, lambda file: file.write(text.encode()))


def _named(path: Path) -> list[CheckpointMetadata]:
    try:
        return [CheckpointMetadata(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        log.warning("%s is damaged (%s): made anew from the checkpoints", path.name, error)
        return []


def _read(paths: Iterable[Path]) -> Iterable[CheckpointMetadata]:
    for path in paths:
        try:
            yield metadata_of(path.name, read_checkpoint(path))
        except CheckpointError as error:
            log.warning("%s: left out", error)


def metadata_of(file: str, state: dict[str, object]) -> CheckpointMetadata:
    """The registry's entry of a checkpoint."""
    names = ("sequence", "epoch", "global_step", "metrics", "monitor", "timestamp")
    try:
        return CheckpointMetadata(file, **{name: state[name] for name in names})  # type: ignore[arg-type]
    except KeyError as error:
        raise CheckpointError(f"checkpoint {file!r} is corrupted (it has no {error})") from error


def ranked(entries: list[CheckpointMetadata], mode: str) -> list[CheckpointMetadata]:
    """Best first; of equals the earliest; what is not a number last."""
    sign = 1 if mode == "min" else -1

    def badness(entry: CheckpointMetadata) -> tuple[bool, float]:
        value = entry.monitor_value
        return (True, 0.0) if isnan(value) else (False, sign * value)

    return sorted(entries, key=badness)


def kept(
    entries: list[CheckpointMetadata], *, best: int, last: int, mode: str
) -> list[CheckpointMetadata]:
    """Those that stay: the best and the last ones, at least one of each."""
    stay = {entry.file for entry in ranked(entries, mode)[: max(1, best)]}
    stay |= {entry.file for entry in entries[-max(1, last) :]}
    return [entry for entry in entries if entry.file in stay]


def remove_unfinished(directory: Path) -> None:
    """Delete what a killed process had begun to write."""
    for path in directory.glob(f".checkpoint_*{UNFINISHED}"):
        path.unlink(missing_ok=True)
