"""Lightning's CSV log, continued exactly from a checkpoint: no line lost, none repeated."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

from penstock.atomic_files import replace_text
from penstock.errors import StateError
from penstock.extras import optional

csv_logs = optional("lightning.pytorch.loggers.csv_logs", extra="train")
fabric = optional("lightning.fabric.loggers.logger", extra="train")

FOLDER: Final = "csv"
STEP: Final = "step"


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
                raise ValueError("a line has another number of columns than the first")
        return [line for line in lines if below is None or int(line[STEP]) < below]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        why = f"no column {error}" if isinstance(error, KeyError) else error
        raise StateError(
            f"the log {str(path)!r} is damaged ({why}): repair it, or move it away to resume "
            "without the lines so far"
        ) from error
