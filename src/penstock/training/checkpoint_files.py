"""Checkpoint files: written as a whole, and read without running code in them."""

from __future__ import annotations

import io
import pickle
import random
import struct
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from penstock.atomic_files import replace_file
from penstock.errors import ConfigError, PenstockError


class CheckpointError(PenstockError, RuntimeError):
    """A checkpoint that cannot be written or read."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose bytes were read, and are not those of a whole checkpoint."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that cannot be read now: permissions, memory, storage; it may be whole."""


class NoCheckpointError(PenstockError, FileNotFoundError):
    """A checkpoint that is not there."""


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
    """The state saved at ``path``, every byte of it checked.

    Raises:
        NoCheckpointError: There is no file of that name.
        DamagedCheckpointError: All of it was read, and it is no checkpoint.
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
        file.read(1)  # zipfile would take a file that cannot be read for one that is no archive
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # torch does not compare checksums
        if damaged is not None:
            raise zipfile.BadZipFile(f"checksum of {damaged!r} is wrong")
        file.seek(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of damaged bytes
            state = torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        cause = watched.failure or (error if _is_about_memory(error) else None)
        if cause is not None:
            raise _unreadable(path, cause) from error
        raise DamagedCheckpointError(
            f"checkpoint {path.name!r} is corrupted ({reason_of(error)})"
        ) from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(
            f"checkpoint {path.name!r} is corrupted (it holds a {type(state).__name__}, not a dict)"
        )
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
        f"checkpoint {str(path)!r} cannot be read now ({why}); it may be whole and is left as it is"
    )


def _is_about_memory(error: BaseException) -> bool:
    return "allocate memory" in str(error) or "not enough memory" in str(error)


def reason_of(error: BaseException) -> str:
    """The line of torch's page-long messages that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "nsupported" in line or "not an allowed" in line]
    return (telling or lines or [type(error).__name__])[0]


# what torch and zipfile raise for bytes that are no checkpoint; KeyError: for a part that is gone;
# OSError: for a seek to where no file can go
DAMAGED: Final = (
    OSError, RuntimeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError,
    pickle.UnpicklingError, struct.error, zlib.error, AttributeError, TypeError, IndexError,
    AssertionError,
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


def random_state() -> dict[str, Any]:
    """Where python's, numpy's and torch's global generators are (and cuda's, if in use)."""
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
    """Put the global generators back there.

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
