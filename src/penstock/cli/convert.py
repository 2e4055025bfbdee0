"""`penstock convert`: data in a layout made for streaming, or steering files in one HDF5 file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.progress import Progress

from penstock.datasets import convert_to_hdf5
from penstock.errors import ConfigError, PenstockError
from penstock.extras import optional
from penstock.sources import Source, open_source
from penstock.sources.base import Field

CHUNK_BYTES = 1 << 20  # what a random block costs to read is little then, and windows mix many
SHARD_CHUNKS = 64  # in a file, so that a terabyte is thousands of files and not millions

Tell = Callable[[int, int], None]  # rows done, of so many


def run_convert(source: Path, target: Path, *, chunk_rows: int | None) -> NoReturn:
    """Convert with a progress bar; leaves with 0, 2 where it is refused, 1 where it failed."""
    try:
        convert = check_conversion(source, target, chunk_rows)
    except PenstockError as error:
        _leave(error, 2)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"writing {target}", total=None)
            convert(lambda done, rows: progress.update(task, completed=done, total=rows))
    except (PenstockError, OSError) as error:
        _leave(error, 1)
    print(f"{target} written: {_size(target) / 1e6:,.1f} MB")
    raise SystemExit(0)


def check_conversion(
    source: Path, target: Path, chunk_rows: int | None = None
) -> Callable[[Tell], None]:
    """What will convert ``source``; refused where it cannot be, before anything is written."""
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is there already: remove it, or choose another name")
    if chunk_rows is not None and chunk_rows < 1:
        raise ConfigError(f"a chunk must have at least 1 row, got {chunk_rows}")
    if (source / "config.json").is_file() and (source / "pair_index.pt").is_file():
        return partial(_convert_steering, source, target)
    if target.suffix not in ("", ".zarr"):
        raise ConfigError(
            f"{target.name!r} ends in {target.suffix!r}, and a Zarr directory is what is written: "
            "end it in '.zarr', or in nothing"
        )
    return partial(write_zarr, _opened(source), target, chunk_rows)


def write_zarr(source: Source, target: Path, chunk_rows: int | None, tell: Tell) -> None:
    """Write a source as Zarr: one array, or a group with one for each field.

    Rows are copied a shard at a time, so that memory does not grow with the data. The target
    appears when it is complete, never before.
    """
    zarr = optional("zarr", extra="zarr")
    rows, done, total = len(source), 0, len(source) * len(source.fields)
    with unfinished(target) as beside:
        if source.fields.keys() != {""}:
            zarr.create_group(beside)
        for name, field in source.fields.items():
            chunk, shard = geometry(field, rows, chunk_rows)
            array = zarr.create_array(
                beside / name if name else beside,
                shape=(rows, *field.shape),
                dtype=field.dtype,
                chunks=(chunk, *field.shape),
                shards=(shard, *field.shape),
                compressors=zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"),
            )
            held = np.empty((min(shard, rows), *field.shape), field.dtype)
            for start in range(0, rows, shard):
                stop = min(start + shard, rows)
                source.read(start, stop, {name: held})
                array[start:stop] = held[: stop - start]
                done += stop - start
                tell(done, total)


def geometry(field: Field, rows: int, chunk_rows: int | None) -> tuple[int, int]:
    """Rows of a chunk and of a shard: chunks of about a megabyte, unless told.

    >>> geometry(Field((256,), np.dtype("f4")), 10**9, None)
    (1024, 65536)
    >>> geometry(Field((256,), np.dtype("f4")), 100, None)
    (100, 100)
    """
    wanted = chunk_rows or max(1, CHUNK_BYTES // max(1, field.nbytes))
    chunk = max(1, min(wanted, rows))
    return chunk, chunk * max(1, min(SHARD_CHUNKS, -(-rows // chunk)))


def _convert_steering(source: Path, target: Path, tell: Tell) -> None:
    with unfinished(target) as beside:
        convert_to_hdf5(source, beside)
    tell(1, 1)


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A path beside ``target`` to write to; renamed to it at the end of the block, or removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.{os.getpid()}"
    try:
        yield beside
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _opened(source: Path) -> Source:
    if (source / "state.json").is_file() and (source / "dataset_info.json").is_file():
        datasets: Any = optional("datasets", extra="arrow")
        return open_source(datasets.load_from_disk(str(source)))  # of Hugging Face
    return open_source(source)


def _size(target: Path) -> int:
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


def _leave(error: Exception, code: int) -> NoReturn:
    print(f"penstock: {error}", file=sys.stderr)
    raise SystemExit(code) from None
