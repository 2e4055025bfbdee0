"""`penstock convert`: write data in a layout made for streaming. `penstock stats`: describe it.

Most data becomes Zarr. Domains add converters of their own (entry points `penstock.converters`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import whole_number
from penstock.atomic_files import new_directory, replace_text
from penstock.cli.zarr_writer import Part, Progressed, advice, write_parts
from penstock.errors import ConfigError, PenstockError, RunFailedError, SourceError
from penstock.extras import load_extensions, optional, progress_bar
from penstock.sources import Source, ZarrSource, hdf5, open_source
from penstock.sources.array_source import StoreSource
from penstock.sources.base import composed
from penstock.sources.cf import DIMENSIONS_V2, encoded_mark, zarr_attributes
from penstock.sources.sliceable import numpy_dtype
from penstock.sources.storage import ByteStore, DirectoryStore
from penstock.sources.zarr.source import Node, array_paths, read_node
from penstock.sources.zarr.stores import ZipByteStore

HDF5_SUFFIXES = (".h5", ".hdf5", ".nc", ".nc4", ".cdf")


def run_convert(source: Path, target: Path, *, chunk_rows: int | None) -> None:
    """Convert with a progress bar.

    Raises:
        PenstockError: It is refused; nothing was written.
        RunFailedError: It failed after it had begun.
    """
    convert = check_conversion(source, target, chunk_rows)
    for line in convert.plan:
        print(line)
    try:
        with progress_bar(f"writing {target}", convert.rows) as advance:
            convert.run(advance)
    except (PenstockError, OSError) as error:
        raise RunFailedError(f"{error}; the same command continues where this one ended") from error
    print(f"{target} written: {_size(target) / 1e6:,.1f} MB")


def run_stats(source: str, output: Path | None, *, per: int | str | None, **options: Any) -> None:
    """Print the statistics of each field, and write them as JSON.

    Args:
        source: What `open_source` opens.
        output: The file to write; None for none.
        per: An axis of a sample, by number or name.
        options: ``fields=`` and ``along=`` of `open_source`.
    """
    found = composed(open_source(source, **options)).statistics(per=per)
    if output is not None:
        named = {name: each.to_dict() for name, each in found.items()}
        replace_text(output, json.dumps(named, indent=1) + "\n")
    columns = ("mean", "std", "min", "max", "count", "nans")
    width = max([5, *map(len, found)])
    print(f"{'field':{width}}" + "".join(f" {column:>12}" for column in columns))
    for name, each in found.items():
        cells = [_cell(getattr(each, column)) for column in columns]
        print(f"{name or 'array':{width}}" + "".join(f" {cell:>12}" for cell in cells))


def _cell(value: Any) -> str:
    low, high = np.min(value), np.max(value)
    return f"{low:.6g}" if np.ndim(value) == 0 else f"{low:.3g}..{high:.3g}"


class Conversion(NamedTuple):
    """A conversion that was checked and can begin.

    Attributes:
        run: Converts; called with a function that takes numbers of rows as they are written.
        plan: What will be written, and why, a line for each array.
        rows: The number of rows to write.
    """

    run: Callable[[Progressed], None]
    plan: Sequence[str] = ()
    rows: int = 1


def check_conversion(source: Path, target: Path, chunk_rows: int | None = None) -> Conversion:
    """Return the conversion of ``source``; raise before anything is written.

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
            return Conversion(partial(_convert_with, converter, source, target))
    if target.suffix not in ("", ".zarr"):
        raise ConfigError(
            f"{target.name!r} ends in {target.suffix!r}, but a Zarr directory is written: "
            "use the suffix '.zarr', or none"
        )
    parts, groups = _parts_of(source)
    return Conversion(
        partial(write_parts, parts, groups, target, chunk_rows),
        list(advice(parts, chunk_rows)),
        sum(part.rows for part in parts),
    )


def _convert_with(converter: Any, source: Path, target: Path, progressed: Progressed) -> None:
    with new_directory(target) as beside:
        converter.convert(source, beside)
    progressed(1)


def _parts_of(source: Path) -> tuple[list[Part], dict[str, Mapping[str, Any]]]:
    """Return the arrays to write, and the attributes of groups by their path."""
    store = DirectoryStore(source)
    if source.is_dir() and read_node(store, "") is not None:
        return _zarr_parts(store)
    if source.is_file() and source.suffix.lower() in HDF5_SUFFIXES:
        return _hdf5_parts(source)
    if source.is_file() and source.suffix.lower() == ".zip":
        return _zarr_parts(ZipByteStore(source))
    if (source / "state.json").is_file() and (source / "dataset_info.json").is_file():
        datasets: Any = optional("datasets", extra="arrow")
        found = open_source(datasets.load_from_disk(str(source)))  # of Hugging Face
    else:
        found = open_source(source)
    return source_parts(found), {}


def source_parts(source: Source) -> list[Part]:
    """Return an array for each field of a source; refuse fields that are not arrays."""
    ragged = [name for name, each in source.fields.items() if getattr(each, "ragged", False)]
    if ragged:
        raise SourceError(
            f"samples of {ragged} have different lengths, which an array of Zarr cannot hold: "
            "leave them out, or keep the data as it is"
        )
    dims = getattr(source, "dims", {})
    parts = []
    for name in source.fields:
        names = (None, *(dim or None for dim in dims[name])) if dims.get(name) else None
        options = {} if names is None else {"dimension_names": names}
        parts.append(Part(name, source, name, options=options))
    return parts


# -- HDF5 and netCDF


class _Text:
    """Text of variable length in an HDF5 file, as zarr-python takes it."""

    dtype = str

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, array.shape

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self._array[key], object)
        text = [e.decode("utf-8", "replace") if isinstance(e, bytes) else e for e in found.flat]
        return np.array(text, object).reshape(found.shape)


def _hdf5_parts(path: Path) -> tuple[list[Part], dict[str, Mapping[str, Any]]]:
    """Return every array of a file with its attributes and dimension names."""
    _, arrays = hdf5.arrays_of_hdf5(path)
    parts, refused = [], []
    for name, stored in arrays.items():
        options = {
            "attributes": {key: _json_value(key, each) for key, each in stored.attributes.items()},
            "dimension_names": stored.dims,
        }
        try:
            if stored.raw.is_text:
                parts.append(Part(name, None, whole=_Text(stored.raw), options=options))
            elif not stored.shape:
                value = np.array(stored.raw[()], numpy_dtype(stored.raw.dtype, stored.name))
                parts.append(Part(name, None, whole=value, options=options))
            else:
                source = StoreSource(str(path), {name: stored}, fields=[name], decode=False)
                parts.append(Part(name, source, name, options=options))
        except SourceError as error:
            refused.append(str(error))
    if refused:
        raise SourceError(f"cannot convert {path}: {'; '.join(refused)}")
    file = next(iter(arrays.values())).raw.file
    groups: dict[str, Mapping[str, Any]] = {
        group: {key: _json_value(key, each) for key, each in attributes.items()}
        for group, attributes in hdf5.group_attributes(file).items()
    }
    return parts, groups


def _json_value(name: str, value: Any) -> Any:
    """Return an attribute as JSON has it; a mark of missing data as xarray writes it."""
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "replace")
    return encoded_mark(plain) if name == "_FillValue" else plain


# -- Zarr


def _zarr_parts(store: ByteStore) -> tuple[list[Part], dict[str, Mapping[str, Any]]]:
    """Return every array of a Zarr store, each with its own length, as it is stored."""
    root = read_node(store, "")
    paths = [""] if root is not None and root.array is not None else array_paths(store)
    if not paths:
        raise SourceError(f"the Zarr group {store.name('')} has no arrays")
    nodes = {path: node for path in paths if (node := read_node(store, path)) is not None}
    groups: dict[str, Mapping[str, Any]] = {}
    for path in [] if paths == [""] else paths:
        for parent in ["", *accumulate(path.split("/")[:-1], "{}/{}".format)]:
            group = read_node(store, parent)
            groups[parent] = {} if group is None else group.attributes
    return [_zarr_part(store, node) for node in nodes.values()], groups


def _zarr_part(store: ByteStore, node: Node) -> Part:
    zarr = optional("zarr", extra="zarr")
    opened, prefix = store.zarr_store()
    try:
        array = zarr.open_array(opened, path=prefix + node.path, mode="r")
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise SourceError(f"zarr-python cannot open {store.name(node.path)}: {error}") from error
    options = _array_options(node, array.fill_value)
    if not array.shape or array.dtype.hasobject or array.dtype.kind == "T":
        return Part(node.path, None, whole=array, options=options)
    # each array by itself: a group may hold coordinates of other lengths
    fields = [node.path] if node.path else None
    source = ZarrSource(store, fields=fields, decode=False)
    return Part(node.path, source, node.path, options=options)


def _array_options(node: Node, fill: Any) -> dict[str, Any]:
    """Return attributes, dimension names and fill value for the version 3 copy of an array."""
    assert node.array is not None
    attributes, dimensions = dict(node.attributes), node.array.dimensions
    if node.array.version == 2:  # xarray stores these two elsewhere in version 3
        marked = zarr_attributes(attributes, fill_value=node.array.fill_value, version=2)
        if "_FillValue" in marked:
            attributes["_FillValue"] = encoded_mark(marked["_FillValue"])
        if dimensions is not None:
            del attributes[DIMENSIONS_V2]
    return {"attributes": attributes, "dimension_names": dimensions, "fill_value": fill}


def _size(target: Path) -> int:
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
