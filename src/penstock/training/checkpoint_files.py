"""Checkpoint files: written as a whole, and read without running code in them."""

from __future__ import annotations

import io
import json
import logging
import pickle
import random
import re
import struct
import subprocess
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np
import torch

from penstock.arguments import whole_number
from penstock.atomic_files import replace_file, replace_text
from penstock.errors import ConfigError, PenstockError

log = logging.getLogger("penstock")

# what torch and zipfile raise for bytes that are not a checkpoint; KeyError: for a missing part;
# OSError: for a seek to a position that no file can have
DAMAGED: Final = (
    OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError,
    pickle.UnpicklingError, struct.error, zlib.error, AttributeError, TypeError, IndexError,
    AssertionError,
)  # fmt: skip
Entries: TypeAlias = "list[CheckpointMetadata]"
REGISTRY: Final = "checkpoint_registry.json"
_PATTERN: Final = re.compile(r"checkpoint_.*\.pt")


class CheckpointError(PenstockError, RuntimeError):
    """A checkpoint that cannot be written or read."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose bytes were read, and are not those of a complete checkpoint."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that cannot be read now (permissions, memory, storage); it may be intact."""


class NoCheckpointError(PenstockError, FileNotFoundError):
    """A checkpoint that does not exist."""


def list_files(directory: Path) -> list[Path]:
    """Return the files of a directory by name; none if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:  # glob would return an empty list, as if there were no checkpoints
        raise UnreadableCheckpointError(
            f"{str(directory)!r} cannot be listed ({error.strerror}): make it readable, and try "
            "again"
        ) from error


def make_directory(name: str, path: Path) -> None:
    """Create a directory; the `ConfigError` names the argument or key that it comes from."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be created or written to ({error.strerror}): choose another {name}"
        raise ConfigError(f"{name} {str(path)!r} {why}") from error


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Save ``state`` at ``path``; if that fails, an earlier file stays."""
    try:
        replace_file(path, lambda file: torch.save(state, file))
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"could not write checkpoint {path.name!r}, earlier checkpoints are kept: {error} "
            "(is the disk full? free some space and save again)"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state saved at ``path``; every byte of it is checked.

    Raises:
        NoCheckpointError: There is no file of that name.
        DamagedCheckpointError: All of it was read, and it is not a checkpoint.
        UnreadableCheckpointError: It cannot be read now. Nothing is known about its content.
    """
    try:
        with _Watched(path) as watched, io.BufferedReader(watched) as file:
            return _read(file, watched, path)
    except FileNotFoundError as error:
        if not path.is_symlink():  # a link to nothing: its storage may not be mounted
            raise NoCheckpointError(f"there is no checkpoint {path}") from error
        raise _unreadable(path, error) from error
    except (OSError, MemoryError) as error:
        raise _unreadable(path, error) from error


def _read(file: IO[bytes], watched: _Watched, path: Path) -> dict[str, Any]:
    try:
        file.read(1)  # zipfile would take a file that cannot be read for one that is not an archive
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"checksum of {damaged!r} is wrong")
        file.seek(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of damaged bytes
            state = torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        text = str(error)
        memory = "allocate memory" in text or "not enough memory" in text
        cause = watched.failure or (error if memory else None)
        if cause is not None:
            raise _unreadable(path, cause) from error
        why = f"is corrupted ({reason_of(error)})"
        raise DamagedCheckpointError(f"checkpoint {path.name!r} {why}") from error
    if not isinstance(state, dict):
        found = type(state).__name__
        raise DamagedCheckpointError(f"checkpoint {path.name!r} is corrupted (it is a {found})")
    return state


class _Watched(io.FileIO):
    """A file to read that remembers why a read failed.

    zipfile and torch turn errors of the storage into errors about the content.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self.failure: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        """Fill a buffer; all reads of a buffered reader come here."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failure = error
            raise


def _unreadable(path: Path, error: BaseException) -> UnreadableCheckpointError:
    why = getattr(error, "strerror", None) or reason_of(error)
    return UnreadableCheckpointError(
        f"checkpoint {str(path)!r} cannot be read now ({why}); it may be intact and is not changed"
    )


def reason_of(error: BaseException) -> str:
    """Return the line that names the cause, from a long message of torch."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "nsupported" in line or "not an allowed" in line]
    return (telling or lines or [type(error).__name__])[0]


def check_loadable(state: Mapping[str, Any]) -> None:
    """Refuse what could be saved but not be loaded again with ``weights_only=True``."""
    for name, value in state.items():
        saved = io.BytesIO()
        try:
            torch.save(without_data(value), saved)
            saved.seek(0)
            torch.load(saved, weights_only=True)
        except Exception as error:  # an object's own pickling may raise anything
            raise ConfigError(
                f"{name} cannot be in a checkpoint, it would not load again: {reason_of(error)}; "
                "save only tensors, numbers, strings, and lists and dicts of these"
            ) from error


def without_data(value: Any) -> Any:
    """Return the same structure with empty tensors: quick to save, and loads if the whole does."""
    if type(value) is torch.Tensor:
        return torch.empty(0, dtype=value.dtype)
    if type(value) in (dict, OrderedDict):
        return {key: without_data(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_data(each) for each in value)
    return value


def random_state() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's global generators (and CUDA's)."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # users draw from it
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the states of the global generators.

    >>> saved = random_state()
    >>> before = random.random()
    >>> restore_random_state(saved)
    >>> random.random() == before
    True
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


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
        """The value of the metric ``monitor``."""
        return self.metrics[self.monitor]


def read_registry(directory: Path) -> list[CheckpointMetadata]:
    """Return the checkpoints of a directory, earliest first, even if the registry is wrong.

    An entry without its file is left out. A file without an entry is read: the process was killed
    before it wrote the entry, or the registry is damaged. A damaged checkpoint is left out and
    logged. One that cannot be read now is an error: an earlier one would be taken for the latest.
    """
    there = {path.name: path for path in list_files(directory) if _PATTERN.fullmatch(path.name)}
    known = {entry.file: entry for entry in _named(directory / REGISTRY) if entry.file in there}
    found = list(known.values())
    for name in there.keys() - known.keys():
        try:
            found.append(metadata_of(name, read_checkpoint(there[name])))
        except DamagedCheckpointError as error:
            log.warning("%s: left out", error)
    return sorted(found, key=lambda entry: (entry.sequence, entry.file))


def write_registry(directory: Path, entries: list[CheckpointMetadata]) -> None:
    """Replace the registry's file."""
    replace_text(directory / REGISTRY, json.dumps([asdict(entry) for entry in entries], indent=1))


def _named(path: Path) -> list[CheckpointMetadata]:
    try:
        return [CheckpointMetadata(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, RecursionError) as error:
        log.warning("%s is damaged (%s): rebuilding it from the checkpoints", path, error)
        return []
    except OSError as error:
        raise UnreadableCheckpointError(
            f"{str(path)!r} cannot be read ({error.strerror}): make it readable, or delete it"
        ) from error


def metadata_of(file: str, state: dict[str, Any]) -> CheckpointMetadata:
    """Return the registry's entry of a checkpoint."""
    names = ("sequence", "epoch", "global_step", "metrics", "monitor", "timestamp")
    try:
        return CheckpointMetadata(file, **{name: state[name] for name in names})
    except KeyError as error:
        raise DamagedCheckpointError(f"checkpoint {file!r} is corrupted (no {error})") from error
    except ConfigError as error:
        raise DamagedCheckpointError(f"checkpoint {file!r} is corrupted ({error})") from error


def ranked(entries: list[CheckpointMetadata], mode: str) -> list[CheckpointMetadata]:
    """Return the entries, the best first; of equals the earliest; NaN last."""
    sign = 1 if mode == "min" else -1

    def badness(entry: CheckpointMetadata) -> tuple[bool, float]:
        value = entry.monitor_value
        return (True, 0) if value != value else (False, sign * value)

    return sorted(entries, key=badness)


def kept(entries: Entries, *, best: int, last: int, mode: str) -> Entries:
    """Return the entries to keep: the best and the last ones, at least one of each."""
    stay = {entry.file for entry in ranked(entries, mode)[: max(1, best)]}
    stay |= {entry.file for entry in entries[-max(1, last) :]}
    return [entry for entry in entries if entry.file in stay]


def git_commit(start: Path) -> str | None:
    """Return the commit checked out at ``start`` or above it; None where there is none."""
    try:
        # asked of git itself: refs may be packed, and HEAD need not be in .git
        command = ("git", "-C", str(start), "rev-parse", "--verify", "HEAD")
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
