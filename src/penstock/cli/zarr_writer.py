"""Writing arrays as Zarr for streaming: in parallel, resumable, verified by checksum."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ConfigError, SourceError
from penstock.extras import optional
from penstock.fingerprints import digest
from penstock.sources import Source, ZarrSource
from penstock.sources.contract import Field, Rows

CHUNK_BYTES = 1 << 20  # a random block is cheap to read, and a window mixes many of them
SHARD_CHUNKS = 64  # per file, so that a terabyte is thousands of files, not millions
MAX_THREADS = 8
JOURNAL = ".penstock-convert"

Progressed = Callable[[int], None]  # called with numbers of rows as they are written


@dataclass(frozen=True, slots=True)
class Part:
    """One array to write.

    Attributes:
        path: Of the array in the target; ``""`` if it is the only one.
        source: Where its rows are read from; None if ``whole`` is given.
        name: Of the field in the source.
        whole: An array to copy at once, with shape and dtype: a scalar, or text.
        options: Attributes, dimension names and fill value, as arguments of zarr-python.
    """

    path: str
    source: Source | None
    name: str = ""
    whole: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that are copied a shard at a time."""
        return 0 if self.source is None else len(self.source)

    @property
    def field(self) -> Field:
        """Shape and dtype of one row."""
        assert self.source is not None
        return self.source.fields[self.name]


def geometry(row: Field, rows: int, chunk_rows: int | None) -> tuple[int, int]:
    """Return the rows of a chunk and of a shard.

    >>> geometry(Field((256,), np.dtype("f4")), 10**9, None)
    (1024, 65536)
    >>> geometry(Field((256,), np.dtype("f4")), 100, None)
    (100, 100)
    """
    wanted = chunk_rows or max(1, CHUNK_BYTES // max(1, row.nbytes))
    chunk = max(1, min(wanted, rows))
    return chunk, chunk * max(1, min(SHARD_CHUNKS, -(-rows // chunk)))


def advice(parts: Sequence[Part], chunk_rows: int | None) -> Iterator[str]:
    """Yield a line with the chunks and shards of each array, then one with the reason."""
    for part in parts:
        if part.source is None:
            yield f"{part.path}: copied as one chunk"
            continue
        chunk, shard = geometry(part.field, part.rows, chunk_rows)
        size = chunk * part.field.nbytes / 1e6
        yield (
            f"{part.path or 'the array'}: {part.rows:,} rows of {part.field.dtype} "
            f"{list(part.field.shape)}, chunks of {chunk:,} rows ({size:,.2f} MB), "
            f"{shard // chunk} to a file"
        )
    why = "as asked" if chunk_rows else "about 1 MB: cheap to read at random, and many fit a window"
    yield f"chunks are {why}; up to {SHARD_CHUNKS} in one file keep the number of files small"


def write_parts(
    parts: Sequence[Part],
    groups: Mapping[str, Mapping[str, Any]],
    target: Path,
    chunk_rows: int | None,
    progressed: Progressed,
) -> None:
    """Write arrays, and groups with their attributes, into a new Zarr store.

    Threads copy one shard at a time, so that memory does not grow with the data. Each shard is
    read back and compared by checksum. The target appears only when it is complete. A conversion
    that was interrupted continues: shards that are complete are verified and kept.
    """
    shards = {part.path: geometry(part.field, part.rows, chunk_rows) for part in parts if part.rows}
    identity = digest(
        [
            [(p.path, _fingerprint(p), repr(p.options)) for p in parts],
            [sorted(shards.items()), repr(groups)],
        ],
        [],
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.converting")
    with _journal(beside, identity) as journal:
        if not journal.created:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # dtypes that Zarr has not standardised yet
                _create(parts, groups, beside, chunk_rows)
            journal.add({"created": True})
        tasks = [
            (part, start, min(start + shards[part.path][1], part.rows))
            for part in parts
            for start in range(0, part.rows, shards[part.path][1] if part.rows else 1)
        ]
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "penstock-convert") as pool:
            try:
                running = [
                    pool.submit(_copy_shard, beside, journal, part, start, stop, shards[part.path])
                    for part, start, stop in tasks
                ]
                for each in as_completed(running):
                    progressed(each.result())
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    (beside / JOURNAL).unlink()
    beside.rename(target)


def _fingerprint(part: Part) -> str:
    return "" if part.source is None else part.source.fingerprint()


def _create(
    parts: Sequence[Part],
    groups: Mapping[str, Mapping[str, Any]],
    beside: Path,
    chunk_rows: int | None,
) -> None:
    """Create groups and arrays, and write what is copied at once."""
    zarr, codecs = optional("zarr", extra="zarr"), optional("zarr.codecs", extra="zarr")
    if [part.path for part in parts] != [""]:
        root = zarr.create_group(beside, attributes=dict(groups.get("", {})))
        for path in sorted(set(groups) - {""}):
            root.create_group(path, attributes=dict(groups[path]))
    for part in parts:
        create = partial(zarr.create_array, beside, name=part.path or None, **part.options)
        if part.source is None:
            whole = create(shape=part.whole.shape, dtype=part.whole.dtype)
            whole[...] = part.whole[...]
            continue
        shape, (chunk, shard) = part.field.shape, geometry(part.field, part.rows, chunk_rows)
        create(
            shape=(part.rows, *shape),
            dtype=part.field.dtype,
            chunks=(chunk, *(max(1, size) for size in shape)),
            shards=(shard, *(max(1, size) for size in shape)),
            compressors=codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"),
        )


def _copy_shard(
    beside: Path, journal: _Journal, part: Part, start: int, stop: int, sizes: tuple[int, int]
) -> int:
    """Copy rows ``start:stop`` unless they are there already, verify them, return their number."""
    key, chunk = f"{part.path}:{start}", sizes[0]
    known = journal.checksums.get(key)
    if known is not None and _stored_checksum(beside / part.path, start, stop, chunk) == known:
        return stop - start
    assert part.source is not None
    rows = np.empty((stop - start, *part.field.shape), part.field.dtype)
    part.source.read(start, stop, {part.name: rows})
    checksum = _checksum(rows, 0)
    file = beside.joinpath(part.path, "c", str(start // sizes[1]), *("0" for _ in part.field.shape))
    file.unlink(missing_ok=True)  # zarr-python would read a damaged one first
    optional("zarr", extra="zarr").open_array(beside / part.path, mode="r+")[start:stop] = rows
    del rows
    if _stored_checksum(beside / part.path, start, stop, chunk) != checksum:
        raise SourceError(
            f"rows {start}:{stop} of {part.path or 'the array'} were not stored as they were "
            "written: check the disk, and run the same command again"
        )
    journal.add({"shard": key, "checksum": checksum})
    return stop - start


def _stored_checksum(path: Path, start: int, stop: int, chunk: int) -> int | None:
    """Return the checksum of stored rows, read chunk by chunk; None if they cannot be read."""
    try:
        source, found = ZarrSource(path, decode=False), 0
        row = source.fields[""]
        rows = np.empty((min(chunk, stop - start), *row.shape), row.dtype)
        for first in range(start, stop, chunk):
            last = min(first + chunk, stop)
            source.read(first, last, {"": rows})
            found = _checksum(rows[: last - first], found)
    except SourceError:
        return None
    return found


def _checksum(rows: Rows, before: int) -> int:
    return zlib.crc32(rows.reshape(-1).view(np.uint8).data, before) if rows.size else before


# -- the progress of a conversion, for one that is interrupted


class _Journal:
    """Lines of JSON in the unfinished store: its identity, and each shard that is complete."""

    def __init__(self, file: Any, lines: Sequence[Mapping[str, Any]]) -> None:
        self._file, self._lock = file, threading.Lock()
        self.created = any("created" in line for line in lines)
        self.checksums = {line["shard"]: line["checksum"] for line in lines if "shard" in line}

    def add(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


@contextmanager
def _journal(beside: Path, identity: str) -> Iterator[_Journal]:
    """Open the journal of a conversion; begin again if it is that of another one."""
    if beside.is_symlink():  # somebody else may have planted it: never write through it
        raise ConfigError(f"{beside} is a symbolic link: remove it")
    beside.mkdir(exist_ok=True)
    with (beside / JOURNAL).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process is writing {beside}: wait for it") from error
        file.seek(0)
        lines = list(_lines(file.read()))
        if lines[:1] != [{"identity": identity}] or not any("created" in each for each in lines):
            for entry in beside.iterdir():
                if entry.name != JOURNAL:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            file.truncate(0)
            lines = [{"identity": identity}]
            file.write(json.dumps(lines[0]) + "\n")
        yield _Journal(file, lines)


def _lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the last line of a process that was killed
            return
        yield found if isinstance(found, dict) else {}
