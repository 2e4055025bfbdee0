"""Files that are there whole or not at all, and that load without running anything."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from penstock.errors import ConfigError, PenstockError

UNFINISHED: Final = ".tmp"


class CheckpointError(PenstockError, RuntimeError):
    """A checkpoint that cannot be written, or not be read."""


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make ``path`` what ``write`` writes, as a whole: written, synced, renamed, synced.

    Killed at any moment, there is the file before or the new one. A write that fails leaves the
    one before, and nothing else.
    """
    new = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with new.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_directory(path.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk, not only the bytes of its files."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Save ``state`` at ``path``; where that fails, what was there before stays."""
    try:
        replace_file(path, lambda file: torch.save(state, file))
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"could not write checkpoint {path.name!r}, checkpoints before it are kept: {error} "
            "(is the disk full? free some space and save again)"
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state saved at ``path``, every byte of it checked."""
    if not path.exists():
        raise NoCheckpointError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not compare checksums
        if damaged is not None:
            raise CheckpointError(f"checksum of {damaged!r} is wrong")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(
            f"checkpoint {path.name!r} is corrupted ({reason_of(error)})"
        ) from error
    return state


def reason_of(error: BaseException) -> str:
    """The line of torch's page-long messages that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "nsupported" in line or "not an allowed" in line]
    return (telling or lines or [type(error).__name__])[0]


class NoCheckpointError(PenstockError, FileNotFoundError):
    """A checkpoint that is not there."""


# what torch and zipfile raise for bytes that are no checkpoint; KeyError: for a part that is gone
UNREADABLE: Final = (
    OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError,
    pickle.UnpicklingError,
)  # fmt: skip


def check_loadable(state: Mapping[str, Any]) -> None:
    """Refuse what could be saved but not be loaded again with ``weights_only=True``."""
    for name, value in state.items():
        saved = io.BytesIO()
        try:
            torch.save(hollow(value), saved)
            saved.seek(0)
            torch.load(saved, weights_only=True)
        except Exception as error:  # an object's own pickling may raise anything
            raise ConfigError(
                f"{name} cannot be in a checkpoint, it would not load again: "
                f"{reason_of(error)}; keep "
                "tensors, numbers, strings, lists and dicts of these, nothing else"
            ) from error


def hollow(value: Any) -> Any:
    """The same structure with empty tensors: as loadable as the whole, and quick to save."""
    if type(value) is torch.Tensor:
        return torch.empty(0, dtype=value.dtype)
    if type(value) in (dict, OrderedDict):
        return {key: hollow(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(hollow(each) for each in value)
    return value
