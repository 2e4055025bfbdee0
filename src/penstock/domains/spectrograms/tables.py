"""CSV tables: the labels and authors of a folder of files, and spectrograms as pixels."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, image_shape, shown
from penstock.errors import SourceError

Strings = npt.NDArray[np.str_]
MOST_CLASSES = 1_000_000  # a model has an output for each


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table of a folder: one row per file."""

    filenames: list[str]
    labels: npt.NDArray[np.int64]
    authors: Strings
    recordings: Strings | None  # the recording that each file was cut from


@dataclass(frozen=True, slots=True)
class PixelTable:
    """Spectrograms ``(n, 1, bins, frames)`` in [0, 1], their classes and authors."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    authors: Strings


def read_metadata(directory: Path, metadata: Path | None) -> Metadata:
    """Return the table of a folder, after checking that every file in it exists.

    Args:
        directory: The folder of the files.
        metadata: The table. None is ``metadata.csv``, or the only ``.csv`` file of the folder.
    """
    path = _find_table(directory) if metadata is None else metadata
    with _open_table(path) as file:
        table = csv.DictReader(file)
        _check_columns(path, table.fieldnames or (), ("filename", "class_id", "author"))
        rows = list(table)
    if not rows:
        raise SourceError(f"{path.name!r} has no rows: write one for each file")
    labels = []
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise SourceError(
                f"{path.name!r} line {line} does not have as many columns as the header: fix it"
            )
        _check_file(directory, path, line, row["filename"])
        labels.append(_parse_class(path, line, row["class_id"]))
    has_recordings = "original_audio" in rows[0]
    return Metadata(
        filenames=[row["filename"] for row in rows],
        labels=np.array(labels),
        authors=np.array([row["author"] for row in rows]),
        recordings=np.array([r["original_audio"] for r in rows]) if has_recordings else None,
    )


def read_pixel_table(path: str | Path, shape: tuple[int, int] = (224, 313)) -> PixelTable:
    """Return the spectrograms of a CSV file with one spectrogram per row.

    Args:
        path: A CSV file with the columns ``label``, ``author`` and one for each pixel, whose
            values are between 0 and 255. Pixels are stored row by row, as in an image.
        shape: The shape of a spectrogram, ``(bins, frames)``.

    Raises:
        SourceError: The file cannot be read, or does not have the expected columns or values.
    """
    path, shape = a_path("path", path), image_shape("shape", shape)
    images, labels, authors = [], [], []
    with _open_table(path) as file:
        table = csv.reader(file)
        header = next(table, [])
        _check_columns(path, header, ("label", "author"))
        if len(header) - 2 != shape[0] * shape[1]:
            raise SourceError(
                f"{path.name!r} has {len(header) - 2:,} pixels per row, a spectrogram of "
                f"{shape[0]} x {shape[1]} has {shape[0] * shape[1]:,}: pass features= instead"
            )
        label, author = header.index("label"), header.index("author")
        for line, row in enumerate(table, start=2):
            if len(row) != len(header):
                raise SourceError(
                    f"{path.name!r} line {line} has {len(row)} columns, the header has "
                    f"{len(header)}: fix it"
                )
            labels.append(_parse_class(path, line, row[label]))
            authors.append(row[author])
            pixels = [value for column, value in enumerate(row) if column not in (label, author)]
            images.append(_parse_pixels(path, line, pixels).reshape(1, *shape) / np.float32(255))
    if not images:
        raise SourceError(f"{path.name!r} has no rows")
    return PixelTable(np.stack(images), np.array(labels), np.array(authors))


def _parse_pixels(path: Path, line: int, pixels: list[str]) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # infinity is rejected below
            image = np.array(pixels, np.float64).astype(np.float32)
    except ValueError:
        image = np.array([np.nan], np.float32)
    if not ((image >= 0) & (image <= 255)).all():  # also rejects NaN
        raise SourceError(f"{path.name!r} line {line} has pixels that are not in [0, 255]")
    return image


def _parse_class(path: Path, line: int, value: str | None) -> int:
    try:
        number = float(value or "")
    except ValueError:
        number = -1
    if not 0 <= number < MOST_CLASSES or number != int(number):
        raise SourceError(
            f"{path.name!r} line {line}: {shown(value)} is not a class (0, 1, 2, ...)"
        )
    return int(number)


@contextmanager
def _open_table(path: Path) -> Iterator[TextIO]:
    """A block that reads a CSV file; an error is raised again with the name of the file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield file
    except SourceError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{str(path)!r} cannot be read as a table: {reason}") from error


def _find_table(directory: Path) -> Path:
    named = directory / "metadata.csv"
    tables = [named] if named.exists() else sorted(directory.glob("*.csv"))
    if len(tables) != 1:
        raise SourceError(
            f"{directory.name!r} has {len(tables)} .csv files: rename one to metadata.csv, "
            "or pass metadata="
        )
    return tables[0]


def _check_columns(path: Path, found: Any, needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in found]
    if missing:
        raise SourceError(
            f"{path.name!r} has no column {missing[0]!r}: it needs {', '.join(needed)}"
        )


def _check_file(directory: Path, table: Path, line: int, filename: str) -> None:
    name = Path(filename)
    inside = "\0" not in filename and not name.is_absolute() and ".." not in name.parts
    if not inside or name.suffix.lower() not in (".npy", ".png"):
        raise SourceError(
            f"{table.name!r} line {line}: {shown(filename)} is not a .npy or .png file in the "
            "folder"
        )
    try:
        found = (directory / name).is_file()
    except OSError:  # the name is too long
        found = False
    if not found:
        raise SourceError(f"{table.name!r} line {line}: there is no file {shown(filename)}")
