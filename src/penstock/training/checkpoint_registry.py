"""The checkpoints of a directory: a small file, rebuilt from the checkpoints if needed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.arguments import whole_number
from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.training.checkpoint_files import (
    DamagedCheckpointError,
    UnreadableCheckpointError,
    read_checkpoint,
)

log = logging.getLogger("penstock")

REGISTRY: Final = "checkpoint_registry.json"
_PATTERN: Final = re.compile(r"checkpoint_.*\.pt")


@dataclass(frozen=True)
class CheckpointMetadata:
    """One checkpoint: its file, where in training it was taken, and how good it was.

    Args:
        file: Its name in the directory.
        sequence: Counts the saves into a directory; the latest has the largest.
        epoch: Of training, when it was saved.
        global_step: Of training, when it was saved.
        metrics: Numbers by name.
        monitor: The metric that decides which checkpoint is the best.
        timestamp: When it was saved, in ISO format.
    """

    file: str
    sequence: int
    epoch: int
    global_step: int
    metrics: dict[str, float]
    monitor: str
    timestamp: str

    def __post_init__(self) -> None:
        for name in ("file", "monitor", "timestamp"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigError(f"{name} must be text, got {value!r}")
        for name in ("sequence", "epoch", "global_step"):
            whole_number(name, getattr(self, name), error=ConfigError)
        if not isinstance(self.metrics, dict) or self.monitor not in self.metrics:
            raise ConfigError(f"metrics must have a number for {self.monitor!r}: {self.metrics!r}")
        for name, value in self.metrics.items():
            if not isinstance(name, str) or type(value) not in (int, float):
                raise ConfigError(f"metrics must be numbers by name, got {name!r}: {value!r}")

    @property
    def monitor_value(self) -> float:
        """The metric that is watched."""
        return self.metrics[self.monitor]


def read_registry(directory: Path) -> list[CheckpointMetadata]:
    """The checkpoints there are, earliest first, whatever became of the registry's file.

    What it names and is gone is left out; what is there and not named (the process was killed
    before it could, or the file is damaged) is read. A damaged checkpoint is left out, and logged;
    one that cannot be read now raises: without it an earlier one would be taken for the latest.
    """
    try:
        paths = {path.name: path for path in sorted(directory.iterdir())}
    except OSError as error:
        raise UnreadableCheckpointError(
            f"{str(directory)!r} cannot be listed ({error.strerror}): make it readable, and try "
            "again"
        ) from error
    there = {name: path for name, path in paths.items() if _PATTERN.fullmatch(name)}
    known = {entry.file: entry for entry in _named(directory / REGISTRY) if entry.file in there}
    found = [*known.values(), *_read(path for name, path in there.items() if name not in known)]
    return sorted(found, key=lambda entry: (entry.sequence, entry.file))


def write_registry(directory: Path, entries: list[CheckpointMetadata]) -> None:
    """Write the registry's file, as a whole."""
    replace_text(directory / REGISTRY, json.dumps([asdict(entry) for entry in entries], indent=1))


def _named(path: Path) -> list[CheckpointMetadata]:
    try:
        return [CheckpointMetadata(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError) as error:
        log.warning("%s is damaged (%s): it is made again from the checkpoints", path, error)
        return []
    except OSError as error:
        raise UnreadableCheckpointError(
            f"{str(path)!r} cannot be read ({error.strerror}): make it readable, or delete it, and "
            "it is made again from the checkpoints"
        ) from error


def _read(paths: Iterable[Path]) -> Iterable[CheckpointMetadata]:
    for path in paths:
        try:
            yield metadata_of(path.name, read_checkpoint(path))
        except DamagedCheckpointError as error:
            log.warning("%s: left out", error)


def metadata_of(file: str, state: dict[str, Any]) -> CheckpointMetadata:
    """The registry's entry of a checkpoint."""
    names = ("sequence", "epoch", "global_step", "metrics", "monitor", "timestamp")
    try:
        return CheckpointMetadata(file, **{name: state[name] for name in names})
    except KeyError as error:
        why = f"it has no {error}"
        raise DamagedCheckpointError(f"checkpoint {file!r} is corrupted ({why})") from error
    except ConfigError as error:
        raise DamagedCheckpointError(f"checkpoint {file!r} is corrupted ({error})") from error


def ranked(entries: list[CheckpointMetadata], mode: str) -> list[CheckpointMetadata]:
    """Best first; of equals the earliest; what is not a number last."""
    sign = 1 if mode == "min" else -1

    def badness(entry: CheckpointMetadata) -> tuple[bool, float]:
        value = entry.monitor_value
        return (True, 0) if value != value else (False, sign * value)

    return sorted(entries, key=badness)


def kept(
    entries: list[CheckpointMetadata], *, best: int, last: int, mode: str
) -> list[CheckpointMetadata]:
    """Those that stay: the best and the last ones, at least one of each."""
    stay = {entry.file for entry in ranked(entries, mode)[: max(1, best)]}
    stay |= {entry.file for entry in entries[-max(1, last) :]}
    return [entry for entry in entries if entry.file in stay]


_COMMIT = re.compile("[0-9a-f]{40,64}")


def git_commit(start: Path) -> str | None:
    """The commit checked out at ``start`` or above it; None where there is no repository."""
    for directory in (start, *start.parents):
        git = directory / ".git"
        if git.is_dir():
            return _commit(git)
    return None


def _commit(git: Path) -> str | None:
    try:
        found = (git / "HEAD").read_text().strip()
        if found.startswith("ref: "):
            name = found.removeprefix("ref: ")
            if (git / name).exists():
                found = (git / name).read_text().strip()
            else:
                packed = (git / "packed-refs").read_text().splitlines()
                found = next((line[: -len(name) - 1] for line in packed if line.endswith(name)), "")
    except (OSError, ValueError):
        return None
    return found if _COMMIT.fullmatch(found) else None
