"""`SpectrogramFolder`: a dataset of spectrogram files and a table with their classes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, image_shape, shown
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import sampled_blocks, short_digest
from penstock.order import Indices

Strings = npt.NDArray[np.str_]
MAX_CLASSES = 1_000_000  # a model has an output for each

Image = npt.NDArray[np.float32]


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
    header, *rows = _rows(path, ("filename", "class_id", "author"))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    for line, filename in enumerate(columns["filename"], start=2):
        _check_file(directory, path, line, filename)
    classes = enumerate(columns["class_id"], start=2)
    recordings = columns.get("original_audio")
    return Metadata(
        filenames=columns["filename"],
        labels=np.array([_parse_class(path, line, value) for line, value in classes]),
        authors=np.array(columns["author"]),
        recordings=None if recordings is None else np.array(recordings),
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
    rows = _rows(path, ("label", "author"))
    header = next(rows)
    if len(header) - 2 != shape[0] * shape[1]:
        raise SourceError(
            f"{path.name!r} has {len(header) - 2:,} pixels per row, a spectrogram of "
            f"{shape[0]} x {shape[1]} has {shape[0] * shape[1]:,}: pass features= instead"
        )
    images, labels, authors = [], [], []
    label, author = header.index("label"), header.index("author")
    for line, row in enumerate(rows, start=2):
        labels.append(_parse_class(path, line, row[label]))
        authors.append(row[author])
        pixels = [value for column, value in enumerate(row) if column not in (label, author)]
        images.append(_parse_pixels(path, line, pixels).reshape(1, *shape) / np.float32(255))
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
    if not 0 <= number < MAX_CLASSES or number != int(number):
        raise SourceError(f"{path.name!r} line {line}: {shown(value)} is not a class (0, 1, ...)")
    return int(number)


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the header of a CSV file, then its rows, one at least and all of the same length."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table, line = csv.reader(file), 1
            header = next(table, [])
            for name in needed:
                if name not in header:
                    has = f"{path.name!r} has no column {name!r} of {', '.join(needed)}"
                    raise SourceError(has)
            yield header
            for line, row in enumerate(filter(None, table), start=2):
                if len(row) != len(header):
                    count = f"{len(row)}, not {len(header)} columns"
                    raise SourceError(f"{path.name!r} line {line} has {count}")
                yield row
            if line == 1:
                raise SourceError(f"{path.name!r} has no rows: write one for each file")
    except SourceError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{str(path)!r} cannot be read as a table: {reason}") from error


def _find_table(directory: Path) -> Path:
    named = directory / "metadata.csv"
    tables = [named] if named.exists() else sorted(directory.glob("*.csv"))
    if len(tables) != 1:
        found = f"{len(tables)} .csv files"
        raise SourceError(f"{directory.name!r} has {found}: rename one to metadata.csv")
    return tables[0]


def _check_file(directory: Path, table: Path, line: int, filename: str) -> None:
    name = Path(filename)
    # a table may come from anywhere: its names must not lead out of the folder
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


class SpectrogramFolder(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples ``(x, y)``: a float32 spectrogram ``(1, bins, frames)`` and its int64 class.

    The folder holds one ``.npy`` (float or 8-bit) or 8-bit grey ``.png`` file for each row of a
    table with the columns ``filename``, ``class_id``, ``author`` and optionally
    ``original_audio``. 8-bit values are scaled to [0, 1].

    Args:
        directory: The folder of the files. No file outside of it is read.
        metadata: The table. None is ``metadata.csv``, or the only ``.csv`` file of the folder.
        shape: Bins and frames that every file must have. None is the shape of the first file.

    Raises:
        SourceError: The table or a file cannot be read, or has unexpected contents.
    """

    def __init__(
        self,
        directory: str | Path,
        metadata: str | Path | None = None,
        shape: tuple[int, int] | None = None,
    ) -> None:
        self.directory = a_path("directory", directory)
        table = None if metadata is None else a_path("metadata", metadata)
        self.metadata: Metadata = read_metadata(self.directory, table)
        self.shape: tuple[int, ...] = () if shape is None else image_shape("shape", shape)
        self.shape = self.shape or self._read(0).shape
        self.labels = self.metadata.labels
        self.authors = self.metadata.authors
        self.recordings = self.metadata.recordings
        self.num_classes = int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.metadata.filenames)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self._read(int(index))
        return torch.from_numpy(image[None]), torch.tensor(self.labels[index])

    def __getbatch__(self, indices: Indices) -> list[torch.Tensor]:
        """Return the samples of a batch."""
        images = np.empty((len(indices), 1, *self.shape), np.float32)
        for row, index in zip(images, indices.tolist(), strict=True):
            row[0] = self._read(index)
        return [torch.from_numpy(images), torch.from_numpy(self.labels[indices])]

    def fingerprint(self) -> str:
        """Return a digest of the table and of a few files."""
        table = repr((self.metadata.filenames, self.shape)).encode()
        names = (self.metadata.filenames[index] for index in sampled_blocks(len(self)))
        files = ((self.directory / name).read_bytes() for name in names)
        return short_digest([table, self.labels.tobytes(), *files])

    def _read(self, index: int) -> Image:
        image = _read_spectrogram(self.directory / self.metadata.filenames[index])
        if self.shape and image.shape != self.shape:
            raise SourceError(
                f"{self.metadata.filenames[index]!r} has shape {image.shape}, the others have "
                f"{self.shape}: create it again, or remove its row"
            )
        return image


def _read_spectrogram(path: Path) -> Image:
    """Return the spectrogram of a ``.npy`` or ``.png`` file, float32 ``(bins, frames)``."""
    try:
        values = _read_png(path) if path.suffix.lower() == ".png" else _read_npy(path)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(f"{path.name!r} cannot be read as a spectrogram: {error}") from error
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise SourceError(f"{path.name!r} is not (bins, frames): it has shape {values.shape}")
    if values.dtype == np.uint8:
        return values.astype(np.float32) / np.float32(255)
    return values.astype(np.float32)


def _read_npy(path: Path) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise ValueError(f"values are {values.dtype}, not float or 8-bit")
    return values


def _read_png(path: Path) -> npt.NDArray[Any]:
    with optional("PIL.Image", extra="arrow").open(path, formats=["PNG"]) as image:
        if image.mode != "L":
            raise ValueError(f"its mode is {image.mode!r}, not 'L' (8-bit grey)")
        return np.asarray(image)
