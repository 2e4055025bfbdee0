"""`RunDirectory`: the checkpoints of a run by folds, so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.arguments import a_path, mapping, shown
from penstock.atomic_files import remove_unfinished, replace_text
from penstock.errors import ConfigError, StateError
from penstock.fingerprints import short_digest
from penstock.order import Indices
from penstock.training.checkpoint_files import (
    DamagedCheckpointError,
    NoCheckpointError,
    read_checkpoint,
    reason_of,
    write_checkpoint,
)

FORMAT: Final = "penstock-folds/1"


class RunDirectory:
    """The directory with the checkpoints of the folds of one run.

    Files are replaced atomically: a process that dies while writing leaves the previous file.

    Args:
        path: The directory; created if it does not exist.
        identity: Plain values that identify the run: settings, data, split.

    Raises:
        ConfigError: The directory cannot be created.
        StateError: The directory holds another run.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any]) -> None:
        self.path = a_path("run_directory", path, error=ConfigError)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run_directory {str(path)!r} cannot be a directory to write to "
                f"({error.strerror}): give another one"
            ) from error
        remove_unfinished(self.path)
        wanted = {"format": FORMAT, **json.loads(json.dumps(identity))}
        file = self.path / "run.json"
        if file.is_symlink() or file.exists():
            _check_identity(self.path, _read_identity(file), wanted)
        else:
            self._refuse_folds()
            replace_text(file, json.dumps(wanted, indent=2))

    def _refuse_folds(self) -> None:
        found = sorted(self.path.glob("fold_*.pt"))
        if found:
            raise StateError(
                f"{str(self.path)!r} holds {found[0].name}, but no run.json that says of which "
                "run: restore it, or use another directory"
            )

    def load(self, fold: int) -> dict[str, Any] | None:
        """Return the latest checkpoint of a fold; None if there is none."""
        file = self.file_of(fold)
        try:
            return read_checkpoint(file)
        except NoCheckpointError:
            return None
        except DamagedCheckpointError as error:
            raise DamagedCheckpointError(
                f"{error}: restore {str(file)!r}, or delete it to train fold {fold} again"
            ) from error

    def save(self, fold: int, state: dict[str, Any]) -> None:
        """Save the checkpoint of a fold."""
        write_checkpoint(self.file_of(fold), state)

    @contextmanager
    def restoring(self, fold: int) -> Iterator[None]:
        """A block that uses a checkpoint; an error is raised again with the name of the file."""
        try:
            yield
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)
            raise StateError(
                f"checkpoint {str(self.file_of(fold))!r} does not fit this run ({reason}): restore "
                f"it, or delete it to train fold {fold} again"
            ) from error

    def file_of(self, fold: int) -> Path:
        """Return the path of a fold's checkpoint."""
        return self.path / f"fold_{fold}.pt"


def digest_of(parts: Iterable[Indices]) -> str:
    """Return a digest of lists of samples, in their order."""
    return short_digest(f"{len(part)}:".encode() + part.tobytes() for part in parts)


def _read_identity(file: Path) -> Mapping[str, Any]:
    try:
        return mapping("its content", json.loads(file.read_text()), error=StateError)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StateError(
            f"{str(file)!r} cannot be read ({reason}): restore it, or use another directory"
        ) from error


def _check_identity(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*wanted, *found]):
        if found.get(name) != wanted.get(name):
            raise StateError(
                f"{path.name!r} holds a run with {name} {shown(found.get(name))}, this one has "
                f"{shown(wanted.get(name))}: use another directory, or restore it"
            )
