"""The directory of a run: its files, its lock, and its last readable checkpoint."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The paths of a run.

    >>> RunPaths(Path("runs/piano")).checkpoint(1234).as_posix()
    'runs/piano/checkpoints/step-00001234.ckpt'
    """

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
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
        """Return the checkpoints by step, the last first, without the best one."""
        return sorted(self._named("step-", ".ckpt"), key=step_of, reverse=True)

    def damaged(self) -> list[Path]:
        """Return the checkpoints that were found damaged, and renamed."""
        return sorted(self._named("step-", DAMAGED))

    def _named(self, start: str, end: str) -> list[Path]:
        try:
            found = list(self.checkpoints.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:  # glob would return an empty list
            raise UnreadableCheckpointError(
                f"{str(self.checkpoints)!r} cannot be listed ({error.strerror}): there may be "
                "checkpoints in it; make it readable and try again"
            ) from error
        return [path for path in found if path.name.startswith(start) and path.suffix == end]

    def make(self) -> None:
        """Create the directory."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run_dir {str(self.root)!r} cannot be created or written to "
                f"({error.strerror}): give another run_dir"
            ) from error

    def clean(self) -> None:
        """Remove unfinished files of a process that was killed while it wrote them."""
        remove_unfinished(self.root)
        remove_unfinished(self.checkpoints)

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Write the resolved configuration."""
        replace_text(self.config, yaml.safe_dump(resolved, sort_keys=False))

    def remove_old(self) -> None:
        """Remove all checkpoints but the last `KEPT`; never the best."""
        for old in self.saved()[KEPT:]:
            old.unlink(missing_ok=True)

    def keep_as_best(self, checkpoint: Path) -> None:
        """Make this checkpoint the best one, in one atomic step."""
        if self.best.exists() and self.best.samefile(checkpoint):
            return  # rename() of two links to the same file does nothing
        with replacing(self.best) as new:
            try:
                os.link(checkpoint, new)
            except OSError:  # the file system has no hard links
                with checkpoint.open("rb") as saved, new.open("xb") as copy:
                    shutil.copyfileobj(saved, copy)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step in the name of a checkpoint."""
    digits = checkpoint.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def check_no_run(paths: RunPaths) -> None:
    """Refuse to start a new run in a directory that already has one."""
    if paths.saved() or paths.damaged() or paths.best.is_symlink() or paths.best.exists():
        raise ConfigError(
            f"{str(paths.root)!r} already holds a run: continue it with --resume, or "
            "give another run_dir"
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """The path and the content of a checkpoint."""

    path: Path
    content: dict[str, Any]


def last_readable(paths: RunPaths, *, first_rank: bool) -> Saved | None:
    """Return the last intact checkpoint; None where there never was one.

    A damaged one is logged, and renamed once an earlier intact one was found. One that cannot be
    read now raises: it may be intact, and resuming from an earlier one would lose progress.
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
            log.warning("%s: using the one before it", error)
            continue
        for damaged in broken if first_rank else ():
            damaged.rename(damaged.with_suffix(DAMAGED))
        return found
    if broken := broken or paths.damaged():
        raise CheckpointError(
            f"none of the checkpoints in {str(paths.checkpoints)!r} is intact "
            f"({', '.join(path.name for path in broken)}): restore one from a backup, or start in "
            "another run_dir"
        )
    return None


LOCK: Final = ".lock"


class RunInUseError(ConfigError):
    """A run directory that another process uses."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock ``directory`` against other processes for the duration of a block.

    The kernel releases the lock when the process ends, however it ends. The file is not removed:
    doing so could remove the lock of the next process.
    """
    try:
        # O_NOFOLLOW: a symbolic link would let us overwrite the file it points to
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise ConfigError(
            f"run_dir {str(directory)!r} cannot be written to ({error.strerror}): give another one"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise RunInUseError(
                f"run directory {str(directory)!r} is in use by {holder}: wait for it, stop it, or "
                "give another run_dir"
            ) from None
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
