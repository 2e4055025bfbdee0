"""A run's directory: what is where in it, and which of its checkpoints is the last good one."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.atomic_files import remove_unfinished, replace_text, replacing
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.checkpoint_files import (
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
    UnreadableCheckpointError,
    read_checkpoint,
)

log = logging.getLogger("penstock")

yaml = optional("yaml", extra="train")

KEPT: Final = 2  # the last checkpoint, and the one before in case that cannot be read
DAMAGED: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where the parts of a run are.

    >>> RunPaths(Path("runs/piano")).checkpoint(1234).as_posix()
    'runs/piano/checkpoints/step-00001234.ckpt'
    """

    root: Path

    @property
    def config(self) -> Path:
        """The configuration as it was resolved."""
        return self.root / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.root / "checkpoints"

    @property
    def best(self) -> Path:
        """The checkpoint with the best score so far."""
        return self.checkpoints / "best.ckpt"

    @property
    def board(self) -> Path:
        """The directory of TensorBoard's files."""
        return self.root / "tensorboard"

    def checkpoint(self, step: int) -> Path:
        """The checkpoint of an optimizer step."""
        return self.checkpoints / f"step-{step:08d}.ckpt"

    def saved(self) -> list[Path]:
        """The checkpoints there are by step, the last first; the best has a name of its own."""
        return sorted(self._named("step-", ".ckpt"), key=step_of, reverse=True)

    def set_aside(self) -> list[Path]:
        """The checkpoints that were found damaged."""
        return sorted(self._named("step-", DAMAGED))

    def _named(self, start: str, end: str) -> list[Path]:
        try:
            found = list(self.checkpoints.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:  # a glob would say that there are none
            raise UnreadableCheckpointError(
                f"{str(self.checkpoints)!r} cannot be listed ({error.strerror}): there may be "
                "checkpoints in it; make it readable and try again"
            ) from error
        return [path for path in found if path.name.startswith(start) and path.suffix == end]

    def make(self) -> None:
        """Have the directory."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run_dir {str(self.root)!r} cannot be a directory to write to "
                f"({error.strerror}): give another run_dir"
            ) from error

    def clean(self) -> None:
        """Remove files of a process that was killed as it wrote."""
        remove_unfinished(self.root)
        remove_unfinished(self.checkpoints)

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Keep the configuration."""
        replace_text(self.config, yaml.safe_dump(resolved, sort_keys=False))

    def forget_old(self) -> None:
        """Remove all checkpoints but the last ones; never the best."""
        for old in self.saved()[KEPT:]:
            old.unlink(missing_ok=True)

    def keep_as_best(self, checkpoint: Path) -> None:
        """Make this checkpoint the best one; at every moment there is one."""
        if self.best.exists() and self.best.samefile(checkpoint):
            return  # renaming one name of a file to another leaves both
        with replacing(self.best) as new:
            try:
                os.link(checkpoint, new)
            except OSError:  # a file system without hard links
                with checkpoint.open("rb") as saved, new.open("xb") as copy:
                    shutil.copyfileobj(saved, copy)


def step_of(checkpoint: Path) -> int:
    """The optimizer step of a checkpoint, by its name."""
    digits = checkpoint.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def refuse_a_run(paths: RunPaths) -> None:
    """Refuse to start from the beginning where there is a run already."""
    if paths.saved() or paths.set_aside() or paths.best.is_symlink() or paths.best.exists():
        raise ConfigError(
            f"{str(paths.root)!r} already holds a run: go on with --resume, or give another run_dir"
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that can be read, and what was not in its file's name."""

    path: Path
    content: dict[str, Any]


def last_good(paths: RunPaths, *, first_rank: bool) -> Saved | None:
    """The last checkpoint that is whole; None where there never was one.

    A damaged one is reported and set aside, once an earlier one was found to be whole. One that
    cannot be read now ends the search: it may be whole, and training from an earlier one would
    lose what it holds.
    """
    broken: list[Path] = []
    for path in [*paths.saved(), paths.best]:
        try:
            found = Saved(path, read_checkpoint(path))
        except NoCheckpointError:
            continue
        except UnreadableCheckpointError as error:
            raise UnreadableCheckpointError(
                f"{error}: make it readable and run --resume again, or move it away to resume from "
                "an earlier checkpoint"
            ) from error
        except DamagedCheckpointError as error:
            broken.append(path)
            log.warning("%s: the one before it is taken", error)
            continue
        for damaged in broken if first_rank else ():
            damaged.rename(damaged.with_suffix(DAMAGED))
        return found
    if broken := broken or paths.set_aside():
        raise CheckpointError(
            f"none of the checkpoints in {str(paths.checkpoints)!r} is whole "
            f"({', '.join(path.name for path in broken)}): restore one from a backup, or start in "
            "another run_dir"
        )
    return None
