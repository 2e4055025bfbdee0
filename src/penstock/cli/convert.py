"""`penstock convert`: write data in a layout made for streaming.

Most data becomes Zarr. Domains add converters of their own (entry points `penstock.converters`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.progress import Progress

from penstock.arguments import whole_number
from penstock.atomic_files import new_directory
from penstock.errors import ConfigError, PenstockError, SourceError
from penstock.extras import load_extensions, optional
from penstock.sources import Source, ZarrSource, open_source
from penstock.sources.base import Field
from penstock.sources.storage import DirectoryStore
from penstock.sources.zarr.attributes import DIMENSIONS_V2, encoded_mark, fill_mark_v2
from penstock.sources.zarr.hierarchy import Node, array_paths, is_zarr, read_node

CHUNK_BYTES = 1 << 20  # a random block is cheap to read, and a window mixes many of them
SHARD_CHUNKS = 64  # per file, so that a terabyte is thousands of files, not millions

Progressed = Callable[[int, int], None]  # rows done, rows in all


def run_convert(source: Path, target: Path, *, chunk_rows: int | None) -> NoReturn:
    """Convert with a progress bar, then exit: 0, 2 if it is refused, 1 if it failed."""
    try:
        convert = check_conversion(source, target, chunk_rows)
    except PenstockError as error:
        _exit(error, 2)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"writing {target}", total=None)
            convert(lambda done, rows: progress.update(task, completed=done, total=rows))
    except (PenstockError, OSError) as error:
        _exit(error, 1)
    print(f"{target} written: {_size(target) / 1e6:,.1f} MB")
    raise SystemExit(0)


def check_conversion(
    source: Path, target: Path, chunk_rows: int | None = None
) -> Callable[[Progressed], None]:
    """Return the function that converts ``source``; raise before anything is written.

    Args:
        source: What to convert.
        target: What to write; must not exist.
        chunk_rows: Rows in a chunk; about a megabyte if None.
    """
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already: remove it, or choose another name")
    if chunk_rows is not None:
        whole_number("chunk_rows", chunk_rows, minimum=1, unit="row", error=ConfigError)
    for converter in load_extensions("penstock.converters").values():
        if converter.accepts(source):
            return partial(_convert_with, converter, source, target)
    if target.suffix not in ("", ".zarr"):
        raise ConfigError(
            f"{target.name!r} ends in {target.suffix!r}, but a Zarr directory is written: "
            "use the suffix '.zarr', or none"
        )
    return partial(write_parts, *_parts_of(source), target, chunk_rows)


def write_zarr(
    source: Source, target: Path, chunk_rows: int | None, progressed: Progressed
) -> None:
    """Write a source as Zarr: one array, or a group with an array for each field."""
    write_parts(
        [Part(name, source, name) for name in source.fields], {}, target, chunk_rows, progressed
    )


@dataclass(frozen=True, slots=True)
class Part:
    """One array to write.

    Attributes:
        path: Of the array in the target; ``""`` if it is the only one.
        source: Where its rows are read from; None if ``whole`` is given.
        name: Of the field in the source.
        whole: The array of zarr-python to copy at once: a scalar, or items of variable size.
        options: Attributes, dimension names and fill value, as arguments of zarr-python.
    """

    path: str
    source: Source | None
    name: str = ""
    whole: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


def write_parts(
    parts: Sequence[Part],
    groups: Mapping[str, Mapping[str, Any]],
    target: Path,
    chunk_rows: int | None,
    progressed: Progressed,
) -> None:
    """Write arrays, and groups with their attributes, into a new Zarr store.

    Rows are copied one shard at a time, so that memory does not grow with the data. The target
    appears only when it is complete.
    """
    zarr = optional("zarr", extra="zarr")
    done, total = 0, sum(len(part.source) for part in parts if part.source is not None)
    with new_directory(target) as beside:
        if [part.path for part in parts] != [""]:
            root = zarr.create_group(beside, attributes=dict(groups.get("", {})))
            for path in sorted(set(groups) - {""}):
                root.create_group(path, attributes=dict(groups[path]))
        for part in parts:
            create = partial(zarr.create_array, beside, name=part.path or None, **part.options)
            if part.source is None:
                create(shape=part.whole.shape, dtype=part.whole.dtype)[...] = part.whole[...]
                continue
            for rows in _copy_rows(part.source, part.name, create, chunk_rows):
                done += rows
                progressed(done, total)


def _copy_rows(
    source: Source, name: str, create: Callable[..., Any], chunk_rows: int | None
) -> Iterator[int]:
    """Copy one field a shard at a time; yield the number of rows of each."""
    codecs = optional("zarr.codecs", extra="zarr")
    shape, dtype, rows = source.fields[name].shape, source.fields[name].dtype, len(source)
    chunk, shard = geometry(source.fields[name], rows, chunk_rows)
    array = create(
        shape=(rows, *shape),
        dtype=dtype,
        chunks=(chunk, *shape),
        shards=(shard, *shape),
        compressors=codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"),
    )
    buffer = np.empty((min(shard, rows), *shape), dtype)
    for start in range(0, rows, shard):
        stop = min(start + shard, rows)
        source.read(start, stop, {name: buffer})
        array[start:stop] = buffer[: stop - start]
        yield stop - start


def geometry(field: Field, rows: int, chunk_rows: int | None) -> tuple[int, int]:
    """Return the rows of a chunk and of a shard.

    >>> geometry(Field((256,), np.dtype("f4")), 10**9, None)
    (1024, 65536)
    >>> geometry(Field((256,), np.dtype("f4")), 100, None)
    (100, 100)
    """
    wanted = chunk_rows or max(1, CHUNK_BYTES // max(1, field.nbytes))
    chunk = max(1, min(wanted, rows))
    return chunk, chunk * max(1, min(SHARD_CHUNKS, -(-rows // chunk)))


def _convert_with(converter: Any, source: Path, target: Path, progressed: Progressed) -> None:
    with new_directory(target) as beside:
        converter.convert(source, beside)
    progressed(1, 1)


def _parts_of(source: Path) -> tuple[list[Part], dict[str, Mapping[str, Any]]]:
    """Return the arrays to write, and the attributes of groups by their path."""
    store = DirectoryStore(source)
    if source.is_dir() and is_zarr(store):
        return _zarr_parts(store)
    if (source / "state.json").is_file() and (source / "dataset_info.json").is_file():
        datasets: Any = optional("datasets", extra="arrow")
        found = open_source(datasets.load_from_disk(str(source)))  # of Hugging Face
    else:
        found = open_source(source)
    return [Part(name, found, name) for name in found.fields], {}


def _zarr_parts(store: DirectoryStore) -> tuple[list[Part], dict[str, Mapping[str, Any]]]:
    """Return every array of a Zarr store, each with its own length, as it is store."""
    root = read_node(store, "")
    paths = [""] if root is not None and root.array is not None else array_paths(store)
    if not paths:
        raise SourceError(f"the Zarr group {store.path} has no arrays")
    nodes = {path: node for path in paths if (node := read_node(store, path)) is not None}
    groups: dict[str, Mapping[str, Any]] = {}
    for path in [] if paths == [""] else paths:
        for parent in ["", *accumulate(path.split("/")[:-1], "{}/{}".format)]:
            group = read_node(store, parent)
            groups[parent] = {} if group is None else group.attributes
    return [_zarr_part(store, node) for node in nodes.values()], groups


def _zarr_part(store: DirectoryStore, node: Node) -> Part:
    zarr = optional("zarr", extra="zarr")
    try:
        array = zarr.open_array(store.path / node.path, mode="r")
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise SourceError(f"zarr-python cannot open {store.name(node.path)}: {error}") from error
    options = _array_options(node, array.fill_value)
    if not array.shape or array.dtype.hasobject or array.dtype.kind == "T":
        return Part(node.path, None, whole=array, options=options)
    # each array by itself: a group may hold coordinates of other lengths
    return Part(node.path, ZarrSource(store.path / node.path, decode=False), options=options)


def _array_options(node: Node, fill: Any) -> dict[str, Any]:
    """Return attributes, dimension names and fill value for the version 3 copy of an array."""
    assert node.array is not None
    attributes, dimensions = dict(node.attributes), node.array.dimensions
    if node.array.version == 2:  # xarray stores these two elsewhere in version 3
        for name, mark in fill_mark_v2(attributes, node.array.fill_value).items():
            attributes.setdefault(name, encoded_mark(mark))
        if dimensions is not None:
            del attributes[DIMENSIONS_V2]
    return {"attributes": attributes, "dimension_names": dimensions, "fill_value": fill}


def _size(target: Path) -> int:
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


def _exit(error: Exception, code: int) -> NoReturn:
    print(f"penstock: {error}", file=sys.stderr)
    raise SystemExit(code) from None
