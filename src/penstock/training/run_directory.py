"""Where a run by folds keeps what it has done, so that it can go on after any end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch

from penstock.errors import StateError
from penstock.order import Indices

FORMAT: Final = "penstock-folds/1"


class RunDirectory:
    """Checkpoints of the folds of one run; a directory of another run is refused.

    Files are replaced whole: a process that dies while it writes leaves the one before.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        described = {"format": FORMAT, **json.loads(json.dumps(identity))}
        file = self.path / "run.json"
        if file.exists():
            _check(self.path, json.loads(file.read_text()), described)
        else:
            _replace(file, lambda new: new.write_text(json.dumps(described, indent=2)))

    def load(self, fold: int) -> dict[str, Any] | None:
        """The latest checkpoint of a fold; None where there is none."""
        file = self._file(fold)
        if not file.exists():
            return None
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state

    def save(self, fold: int, state: dict[str, Any]) -> None:
        """Make this the checkpoint of a fold."""
        _replace(self._file(fold), lambda new: torch.save(state, new))

    def _file(self, fold: int) -> Path:
        return self.path / f"fold_{fold}.pt"


def digest_of(parts: Iterable[Indices]) -> str:
    """Identity of some lists of samples, in order."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part.tobytes())
    return digest.hexdigest()


def _replace(file: Path, write: Any) -> None:
    new = file.with_name(f"{file.name}.new")
    write(new)
    with new.open("rb") as written:
        os.fsync(written.fileno())
    new.replace(file)


def _check(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*wanted, *found]):
        if found.get(name) != wanted.get(name):
            raise StateError(
                f"{path.name!r} holds a run with {name} {found.get(name)!r}, this one has "
                f"{wanted.get(name)!r}: use another directory, or restore it"
            )
