"""A run's directory: what is where in it, and which of its checkpoints is the last good one."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.checkpoint_files import (
    UNFINISHED,
    CheckpointError,
    NoCheckpointError,
    read_checkpoint,
    replace_file,
    sync_directory,
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
        return sorted(self.checkpoints.glob("step-*.ckpt"), key=step_of, reverse=True)

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
        for unfinished in self.checkpoints.glob(f".*{UNFINISHED}"):
            unfinished.unlink()

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Keep the configuration."""
        page = yaml.safe_dump(resolved, sort_keys=False).encode()
        replace_file(self.config, lambda file: file.write(page))

    def forget_old(self) -> None:
        """Remove all checkpoints but the last ones; never the best."""
        for old in self.saved()[KEPT:]:
            old.unlink(missing_ok=True)

    def keep_as_best(self, checkpoint: Path) -> None:
        """Make this checkpoint the best one; at every moment there is one."""
        if self.best.exists() and self.best.samefile(checkpoint):
            return  # renaming one name of a file to another leaves both
        new = self.best.with_name(f".{self.best.name}{UNFINISHED}")
        new.unlink(missing_ok=True)
        try:
            os.link(checkpoint, new)
        except OSError:  # a file system without hard links
            data = checkpoint.read_bytes()
            replace_file(self.best, lambda file: file.write(data))
        else:
            new.replace(self.best)
            sync_directory(self.checkpoints)


def step_of(checkpoint: Path) -> int:
    """The optimizer step of a checkpoint, by its name."""
    digits = checkpoint.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def refuse_a_run(paths: RunPaths) -> None:
    """Refuse to begin anew where there is a run already."""
    if paths.saved() or paths.best.exists():
        raise ConfigError(
            f"{str(paths.root)!r} already holds a run: go on with --resume, or give another run_dir"
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that can be read, and what was not in its file's name."""

    path: Path
    content: dict[str, Any]


def last_good(paths: RunPaths, *, first_rank: bool) -> Saved | None:
    """The last checkpoint that can be read whole; None where there is none at all.

    One that cannot be read is reported and set aside, and the one before it is taken.
    """
    broken: list[str] = []
    for path in [*paths.saved(), paths.best]:
        try:
            return Saved(path, read_checkpoint(path))
        except NoCheckpointError:
            continue
        except CheckpointError as error:
            broken.append(path.name)
            log.warning("%s: the one before it is taken", error)
            if first_rank and path != paths.best:
                path.rename(path.with_suffix(DAMAGED))
    if broken:
        raise CheckpointError(
            f"none of the checkpoints in {str(paths.checkpoints)!r} can be read "
            f"({', '.join(broken)}): restore one, or begin anew in another run_dir"
        )
    return None
