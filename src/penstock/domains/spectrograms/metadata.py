"""Tables of classes and authors, and of pixels."""

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
    """A row for each file of a folder: its class, its author, and the recording it is cut from."""

    filenames: list[str]
    labels: npt.NDArray[np.int64]
    authors: Strings
    recordings: Strings | None


@dataclass(frozen=True, slots=True)
class PixelTable:
    """Spectrograms ``(n, 1, bins, frames)`` in [0, 1], their classes and authors."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    authors: Strings


def read_metadata(directory: Path, metadata: str | Path | None) -> Metadata:
    """The table of a folder, each of whose files is there."""
    path = _the_table(directory) if metadata is None else Path(metadata)
    with _reading(path) as file:
        table = csv.DictReader(file)
        _check_columns(path, table.fieldnames or (), ("filename", "class_id", "author"))
        rows = list(table)
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise SourceError(
                f"{path.name!r} line {line} has not as many columns as the first: repair it"
            )
    if not rows:
        raise SourceError(f"{path.name!r} has no rows: write one for each file")
    for line, row in enumerate(rows, start=2):
        _check_file(directory, path, line, row["filename"])
    told = "original_audio" in rows[0]
    return Metadata(
        filenames=[row["filename"] for row in rows],
        labels=np.array([_class(path, i, r["class_id"]) for i, r in enumerate(rows, start=2)]),
        authors=np.array([row["author"] for row in rows]),
        recordings=np.array([row["original_audio"] for row in rows]) if told else None,
    )


def read_pixel_table(path: str | Path, shape: tuple[int, int] = (224, 313)) -> PixelTable:
    """Spectrograms out of a CSV with the columns label, author and one for each pixel, 0 to 255.

    Pixels are in rows of ``frames``, as an image is stored: ``shape`` is ``(bins, frames)``.
    """
    path, shape = a_path("path", path), image_shape("shape", shape)
    with _reading(path) as file:
        table = csv.reader(file)
        header = next(table, [])
        _check_columns(path, header, ("label", "author"))
        if len(header) - 2 != shape[0] * shape[1]:
            raise SourceError(
                f"{path.name!r} has {len(header) - 2:,} pixels a row, a spectrogram of "
                f"{shape[0]} x {shape[1]} has {shape[0] * shape[1]:,}: give features= instead"
            )
        return _pixels(path, table, header, shape)


def _pixels(path: Path, table: Any, header: list[str], shape: tuple[int, int]) -> PixelTable:
    label, author = header.index("label"), header.index("author")
    images, labels, authors = [], [], []
    for line, row in enumerate(table, start=2):
        if len(row) != len(header):
            raise SourceError(
                f"{path.name!r} line {line} has {len(row)} columns, the first {len(header)}: "
                "repair it"
            )
        labels.append(_class(path, line, row[label]))
        authors.append(row[author])
        pixels = [value for place, value in enumerate(row) if place not in (label, author)]
        images.append(_image(path, line, pixels).reshape(1, *shape) / np.float32(255))
    if not images:
        raise SourceError(f"{path.name!r} has no rows")
    return PixelTable(np.stack(images), np.array(labels), np.array(authors))


def _image(path: Path, line: int, pixels: list[str]) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # infinity is refused below
            image = np.array(pixels, np.float64).astype(np.float32)
    except ValueError:
        image = np.array([np.nan], np.float32)
    if not ((image >= 0) & (image <= 255)).all():  # NaN is not
        raise SourceError(f"{path.name!r} line {line} has pixels that are not in [0, 255]")
    return image


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    """A block that reads a table; what is wrong with the file is reported with its name."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield file
    except SourceError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise SourceError(f"{str(path)!r} cannot be read as a table: {why}") from error


def _the_table(directory: Path) -> Path:
    named = directory / "metadata.csv"
    tables = [named] if named.exists() else sorted(directory.glob("*.csv"))
    if len(tables) != 1:
        raise SourceError(
            f"{directory.name!r} has {len(tables)} .csv files: call one of them metadata.csv, "
            "or give metadata="
        )
    return tables[0]


def _check_columns(path: Path, found: Any, needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in found]
    if missing:
        raise SourceError(
            f"{path.name!r} lacks the column {missing[0]!r}: it needs {', '.join(needed)}"
        )


def _check_file(directory: Path, table: Path, line: int, filename: str | None) -> None:
    name = Path(filename or "")
    inside = "\0" not in str(name) and not name.is_absolute() and ".." not in name.parts
    if not inside or name.suffix.lower() not in (".npy", ".png"):
        raise SourceError(
            f"{table.name!r} line {line}: {shown(filename)} is no .npy or .png file of the folder"
        )
    try:
        found = (directory / name).is_file()
    except OSError:  # a name longer than names may be
        found = False
    if not found:
        raise SourceError(f"{table.name!r} line {line}: there is no file {shown(filename)}")


def _class(path: Path, line: int, value: str | None) -> int:
    try:
        number = float(value or "")
    except ValueError:
        number = -1
    if not 0 <= number < MOST_CLASSES or number != int(number):
        raise SourceError(
            f"{path.name!r} line {line}: {shown(value)} is not a class (0, 1, 2, ...)"
        )
    return int(number)
