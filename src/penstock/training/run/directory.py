"""The directory of a run: its files, its lock, and its last readable checkpoint."""

from __future__ import annotations

import csv
import fcntl
import io
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
from penstock.errors import ConfigError, StateError
from penstock.extras import optional
from penstock.training import checkpoint_files as files

log = logging.getLogger("penstock")
yaml = optional("yaml", extra="train")

csv_logs = optional("lightning.pytorch.loggers.csv_logs", extra="train")
fabric = optional("lightning.fabric.loggers.logger", extra="train")

FOLDER: Final = "csv"
STEP: Final = "step"

KEPT: Final = 2  # the last checkpoint, and the one before in case that cannot be read
DAMAGED: Final = ".damaged"
LOCK: Final = ".lock"


class CsvLog(csv_logs.CSVLogger):  # type: ignore[misc, name-defined]
    """`metrics.csv` in a run's directory.

    Args:
        root: The run's directory.
        keep_below: The step the run resumes at; lines from this step on are replaced.
    """

    _experiment: Any

    def __init__(self, root: Path, keep_below: int = 0) -> None:
        super().__init__(root, name="", version=FOLDER)
        self._keep_below = keep_below

    @property
    @fabric.rank_zero_experiment  # type: ignore[untyped-decorator]
    def experiment(self) -> Any:
        """The writer of the file."""
        if self._experiment is None:
            folder = Path(self.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            kept = read_lines(folder / Lines.NAME_METRICS_FILE, self._keep_below)
            self._experiment = Lines(str(folder), kept)
        return self._experiment

    def finalize(self, status: str) -> None:
        """Write the remaining lines; nothing if training failed before its first line."""
        if self._experiment is not None and status == "success":
            self._experiment.begin()
        super().finalize(status)


class Lines(csv_logs.ExperimentWriter):  # type: ignore[misc, name-defined]
    """Writes complete lines; a new column replaces the file."""

    metrics: list[dict[str, Any]]

    def __init__(self, log_dir: str, kept: list[dict[str, str]]) -> None:
        super().__init__(log_dir)
        self.metrics_keys = sorted({name for line in kept for name in line})
        self._path = Path(self.metrics_file_path)
        self._kept: list[dict[str, str]] | None = kept

    def begin(self) -> None:
        """Drop the lines to be replaced; not before the first new line: a resume may be refused."""
        if self._kept is not None:
            self._replace(self._kept)
            self._kept = None

    def save(self) -> None:
        """Write the new lines."""
        if not self.metrics:
            return
        self.begin()
        lines, self.metrics = self.metrics, []
        new = {name for line in lines for name in line} - set(self.metrics_keys)
        if new:
            before = read_lines(self._path)
            self.metrics_keys = sorted({*self.metrics_keys, *new})
            self._replace([*before, *lines])
        else:
            with self._path.open("a", newline="") as file:
                file.write(self._text(lines))

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        header = self._text([dict(zip(self.metrics_keys, self.metrics_keys, strict=True))])
        page = (header + self._text(lines)) if self.metrics_keys else ""
        replace_text(self._path, page)

    def _text(self, lines: list[dict[str, Any]]) -> str:
        page = io.StringIO(newline="")
        csv.DictWriter(page, self.metrics_keys).writerows(lines)
        return page.getvalue()

    def _check_log_dir_exists(self) -> None:
        """Do not warn about existing lines: they are those of the run so far."""


def read_lines(path: Path, below: int | None = None) -> list[dict[str, str]]:
    """Return the complete lines of a log, with steps below ``below``; not a truncated last one."""
    if not path.exists() or below == 0:
        return []
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a process killed while writing leaves half a line
        lines = list(csv.DictReader(io.StringIO(whole, newline="")))
        for line in lines:
            if None in line or None in line.values():
                raise ValueError("the lines have different numbers of columns")
        return [line for line in lines if below is None or int(line[STEP]) < below]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        why = f"no column {error}" if isinstance(error, KeyError) else error
        raise StateError(
            f"the log {str(path)!r} is damaged ({why}): repair it, or move it away to resume "
            "without the lines so far"
        ) from error


class RunPaths:
    """The paths of a run.

    Args:
        root: The run directory.

    >>> RunPaths(Path("runs/piano")).checkpoint(1234).as_posix()
    'runs/piano/checkpoints/step-00001234.ckpt'
    """

    def __init__(self, root: Path) -> None:
        self.root, self.checkpoints = root, root / "checkpoints"
        self.config, self.board = root / "config.yaml", root / "tensorboard"
        self.best = self.checkpoints / "best.ckpt"  # the checkpoint with the best score so far

    def checkpoint(self, step: int) -> Path:
        """The checkpoint of an optimizer step."""
        return self.checkpoints / f"step-{step:08d}.ckpt"

    def saved(self) -> list[Path]:
        """Return the checkpoints by step, the last first, without the best one."""
        found = [path for path in files.list_files(self.checkpoints) if path.suffix == ".ckpt"]
        found = [path for path in found if path.name.startswith("step-")]
        return sorted(found, key=step_of, reverse=True)

    def damaged(self) -> list[Path]:
        """Return the checkpoints that were found damaged, and renamed."""
        return [path for path in files.list_files(self.checkpoints) if path.suffix == DAMAGED]

    def make(self) -> None:
        """Create the directory."""
        files.make_directory("run_dir", self.checkpoints)

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
            f"{str(paths.root)!r} already holds a run: continue it with --resume, "
            "or pass another directory: run_dir=..."
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
            found = Saved(path, files.read_checkpoint(path))
        except files.NoCheckpointError:
            continue
        except files.UnreadableCheckpointError as error:
            advice = "make it readable, or move it away to resume from an earlier checkpoint"
            raise files.UnreadableCheckpointError(f"{error}: {advice}") from error
        except files.DamagedCheckpointError as error:
            broken.append(path)
            log.warning("%s: using the one before it", error)
            continue
        for damaged in broken if first_rank else ():
            damaged.rename(damaged.with_suffix(DAMAGED))
        return found
    if broken := broken or paths.damaged():
        names = ", ".join(path.name for path in broken)
        raise files.CheckpointError(
            f"none of the checkpoints in {str(paths.checkpoints)!r} is intact ({names}): restore "
            "one from a backup, or start in another run_dir"
        )
    return None


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
        why = f"cannot be written to ({error.strerror}): choose another one"
        raise ConfigError(f"run_dir {str(directory)!r} {why}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            raise RunInUseError(
                f"run directory {str(directory)!r} is in use by {holder}: wait for it, stop it, or "
                "choose another run_dir"
            ) from None
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
