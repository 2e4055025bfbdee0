"""Where a run by folds keeps its progress, so that it can be resumed."""

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
    """Checkpoints of the folds of one run; a directory of another run is refused.

    Files are replaced whole: a process that dies while it writes leaves the one before.

    Args:
        path: The directory; created if it does not exist.
        identity: What makes this run another one: settings, data, split. Plain values.
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
        described = {"format": FORMAT, **json.loads(json.dumps(identity))}
        file = self.path / "run.json"
        if file.is_symlink() or file.exists():
            _check(self.path, _described(file), described)
        else:
            self._refuse_folds()
            replace_text(file, json.dumps(described, indent=2))

    def _refuse_folds(self) -> None:
        found = sorted(self.path.glob("fold_*.pt"))
        if found:
            raise StateError(
                f"{str(self.path)!r} holds {found[0].name}, but no run.json that says of which "
                "run: restore it, or use another directory"
            )

    def load(self, fold: int) -> dict[str, Any] | None:
        """The latest checkpoint of a fold; None where there is none."""
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
        """Make this the checkpoint of a fold."""
        write_checkpoint(self.file_of(fold), state)

    @contextmanager
    def restoring(self, fold: int) -> Iterator[None]:
        """A block that uses a checkpoint; what does not fit is reported with the file's name."""
        try:
            yield
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else reason_of(error)
            raise StateError(
                f"checkpoint {str(self.file_of(fold))!r} does not fit this run ({why}): restore "
                f"it, or delete it to train fold {fold} again"
            ) from error

    def file_of(self, fold: int) -> Path:
        """The checkpoint's file."""
        return self.path / f"fold_{fold}.pt"


def digest_of(parts: Iterable[Indices]) -> str:
    """Identity of some lists of samples, in order."""
    return short_digest(f"{len(part)}:".encode() + part.tobytes() for part in parts)


def _described(file: Path) -> Mapping[str, Any]:
    try:
        return mapping("its content", json.loads(file.read_text()), error=StateError)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise StateError(
            f"{str(file)!r} cannot be read ({why}): restore it, or use another directory"
        ) from error


def _check(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*wanted, *found]):
        if found.get(name) != wanted.get(name):
            raise StateError(
                f"{path.name!r} holds a run with {name} {shown(found.get(name))}, this one has "
                f"{shown(wanted.get(name))}: use another directory, or restore it"
            )
