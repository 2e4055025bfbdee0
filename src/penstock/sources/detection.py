"""`open_source`: find the source for a path, a URL, or an object that holds samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.arguments import flag
from penstock.errors import SourceError
from penstock.extras import load_extensions
from penstock.registry import did_you_mean
from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Source, checked_names
from penstock.sources.combine import concatenate, zip_sources
from penstock.sources.memory import MemorySource, is_tensor
from penstock.sources.npy import NpySource
from penstock.sources.remote import open_remote
from penstock.sources.storage import DirectoryStore, is_url, redacted
from penstock.sources.zarr import ZarrSource
from penstock.sources.zarr.hierarchy import is_zarr
from penstock.sources.zarr.source import checked_along

BY_SUFFIX: dict[str, Callable[..., Source]] = {
    ".npy": NpySource,
    ".parquet": ArrowSource,
    ".pq": ArrowSource,
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
    ".ipc": ArrowSource,
}


def open_source(
    where: Any,
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
    **options: Any,
) -> Source:
    """Return the source for a path, a URL, arrays, tensors, a dataset, or several of these.

    A list is concatenated, a mapping is zipped, and a source is returned as it is.

    Args:
        where: What holds the samples.
        fields: Names of the fields to read: arrays of a Zarr group, columns of a table or of a
            recording, keys of a dict; all of them if None.
        along: The axis of samples, by number or by dimension name; only Zarr arrays can have
            another than the first. ``axis`` is an alias.
        decode: Refuse Zarr arrays whose stored values are not the data, because of attributes
            such as ``scale_factor``. False reads the stored values.
        options: Options of the source that is opened: ``missing="error"`` for Zarr,
            ``columns=`` for a table, ``access_key_id=`` for object storage, and so on.

    Raises:
        SourceError: No source reads this. The message says what to do instead.

    >>> len(open_source(np.zeros((5, 2))))
    5
    >>> len(open_source([np.zeros((5, 2)), np.ones((3, 2))]))
    8
    >>> open_source("nowhere.npy")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: there is nothing at nowhere.npy
    """
    axis = checked_along(options.pop("axis", 0), along)
    request = _Request(checked_names("fields", fields), axis, flag("decode", decode), options)
    return _open(where, request)


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of one call of `open_source`."""

    fields: list[str] | None
    along: int | str
    decode: bool
    options: Mapping[str, Any]

    def for_zarr(self) -> dict[str, Any]:
        return {"fields": self.fields, "along": self.along, "decode": self.decode}

    def refuse_along(self, name: str) -> None:
        if self.along != 0:
            raise SourceError(
                f"{name} has samples along its first axis, got along={self.along!r}: only Zarr "
                "arrays can be read along another axis"
            )

    def refuse_fields(self, name: str) -> None:
        if self.fields is not None:
            raise SourceError(f"{name} has no named fields to choose from: leave out fields=")

    def refuse_options(self, name: str) -> None:
        if self.options:
            raise SourceError(f"{name} takes no options, got {', '.join(self.options)}")


def _open(where: Any, request: _Request) -> Source:
    if isinstance(where, Source):
        _check_untouched(request)
        return where
    if isinstance(where, str | os.PathLike):
        return _open_path(os.fspath(where), request)
    if _is_array(where):
        request.refuse_fields("one array")
        return _open_memory(where, request)
    if type(where).__module__.startswith(("datasets.", "pyarrow.")):
        return _open_columns(ArrowSource, where, "a table", request)
    if isinstance(where, Mapping) and where:
        return _open_mapping(where, request)
    is_list = isinstance(where, list | tuple) and len(where) > 0
    if is_list and not isinstance(where[0], int | float | complex | np.generic):
        return concatenate([_open(each, request) for each in where])
    raise SourceError(f"cannot read samples from {_shown(where)}: {_advice_for_object(where)}")


def _is_array(where: object) -> bool:
    return isinstance(where, np.ndarray) or is_tensor(where)


def _check_untouched(request: _Request) -> None:
    given = list(request.options)
    given += ["fields"] if request.fields else []
    given += ["along"] if request.along != 0 else []
    if given:
        raise SourceError(
            f"a source that is open already takes no options, got {', '.join(given)}: pass them "
            "where it is opened"
        )


def _open_memory(data: Any, request: _Request) -> Source:
    request.refuse_along("data in memory")
    request.refuse_options("data in memory")
    return MemorySource(data)


def _open_mapping(where: Mapping[str, Any], request: _Request) -> Source:
    wrong = [name for name in where if not isinstance(name, str)]
    if wrong:
        raise SourceError(f"field names must be strings, got {wrong[0]!r}")
    for name in request.fields or ():
        if name not in where:
            raise SourceError(f"no field {name!r} in the dict{did_you_mean(name, where)}")
    chosen = {name: where[name] for name in request.fields or where}
    inner = replace(request, fields=None)
    if all(_is_array(each) for each in chosen.values()):
        return _open_memory(chosen, inner)
    return zip_sources({name: _open(each, inner) for name, each in chosen.items()})


def _open_path(where: str | bytes, request: _Request) -> Source:
    if isinstance(where, bytes) or "\0" in where:
        raise SourceError(f"a path must be text, got {where!r}")
    if is_url(where):
        return open_remote(where, **request.for_zarr(), **request.options)
    path, shown = Path(where.removeprefix("file://")), redacted(where)
    try:
        found = _source_class(path)
        if found is None and not path.exists():
            raise SourceError(f"there is nothing at {shown}")
        if found is None and path.is_dir():
            raise SourceError(f"no source reads the folder {shown}: {_advice_for_folder(path)}")
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"cannot read {shown}: {error.strerror}") from error
    if found is None:
        raise SourceError(f"no source reads the file {shown}: {_advice_for_file(path)}")
    if found is ZarrSource:
        return _call(found, path, request.for_zarr(), request)
    if found is ArrowSource or hasattr(found, "accepts"):
        return _open_columns(found, path, shown, request)
    request.refuse_along(shown)
    request.refuse_fields(shown)
    return _call(found, path, {}, request)


def _source_class(path: Path) -> Callable[..., Source] | None:
    """Return the class that reads the data at ``path``, or None if there is none."""
    if path.is_file():
        return BY_SUFFIX.get(path.suffix.lower())
    if path.is_dir() and is_zarr(DirectoryStore(path)):
        return ZarrSource
    for extension in load_extensions("penstock.sources").values():
        if extension.accepts(path):
            return cast(Callable[..., Source], extension)
    return ArrowSource if path.is_dir() and any(path.rglob("*.parquet")) else None


def _open_columns(make: Callable[..., Source], where: Any, name: str, request: _Request) -> Source:
    request.refuse_along(name)
    columns = {} if request.fields is None else {"columns": request.fields}
    return _call(make, where, columns, request)


def _call(
    make: Callable[..., Source], where: Any, chosen: Mapping[str, Any], request: _Request
) -> Source:
    twice = sorted(set(request.options) & set(chosen))
    if twice:
        raise SourceError(f"{twice[0]} is given twice: leave out fields=, or {twice[0]}=")
    try:
        return make(where, **chosen, **request.options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        name = redacted(str(where)) if isinstance(where, Path) else type(where).__name__
        raise SourceError(f"{name} cannot be opened with these options: {error}") from error


def _shown(where: object) -> str:
    text = redacted(" ".join(repr(where).split()))
    return f"{type(where).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# -- advice about data that no source reads

_DATASET = (
    "write a torch Dataset that loads one file for each sample, and pass it to ChunkedDataLoader"
)
_BINARY = "pass its dtype and shape: open_source(np.memmap({path!r}, dtype, 'r', shape=shape))"
_HDF5 = "copy the arrays you need: np.save('x.npy', h5py.File({path!r})['name'][...])"
_JSON = "read it as a table: open_source(pyarrow.json.read_json({path!r}))"
_PICKLED = "load it, and pass the tensors: open_source(torch.load({path!r}, weights_only=True))"
_ZIP = "unpack it, and open what is inside"

ADVICE = {
    **dict.fromkeys((".bin", ".dat", ".raw"), _BINARY),
    **dict.fromkeys((".h5", ".hdf5", ".h5ad"), _HDF5),
    **dict.fromkeys((".json", ".jsonl"), _JSON),
    **dict.fromkeys((".pt", ".pth"), _PICKLED),
    **dict.fromkeys((".tar", ".tgz"), f"unpack it; then {_DATASET}"),
    **dict.fromkeys((".zip", ".gz"), _ZIP),
    ".csv": "read it as a table: open_source(pyarrow.csv.read_csv({path!r}))",
    ".tsv": "read it as a table: pyarrow.csv.read_csv, with delimiter='\\t' in its parse_options",
    ".mat": "load it with scipy.io.loadmat, and pass the arrays to open_source as a dict",
    ".nc": "write it as Zarr, with xarray.open_dataset({path!r}).to_zarr('data.zarr')",
    ".npz": "load it, and pass the arrays: open_source(dict(np.load({path!r})))",
    ".txt": _DATASET,
}
ACCEPTED = (
    "open_source reads .zarr, .npy, .parquet and .arrow paths, URLs of Zarr stores, Hugging Face "
    "datasets, pyarrow tables, arrays, tensors, and dicts and lists of these"
)


def _advice_for_file(path: Path) -> str:
    return ADVICE.get(path.suffix.lower(), ACCEPTED).format(path=str(path))


def _advice_for_folder(path: Path) -> str:
    entries = islice(path.iterdir(), 1000)  # enough to know what it is
    suffixes = {"/" if entry.is_dir() else entry.suffix.lower() for entry in entries}
    if not suffixes:
        return "it is empty"
    if suffixes <= {".npy"}:
        return f"pass its files as a list: open_source(sorted(Path({str(path)!r}).glob('*.npy')))"
    if "/" in suffixes and any((entry / "zarr.json").exists() for entry in path.iterdir()):
        return "open one of the Zarr stores in it"
    suffix = min(suffixes)
    if len(suffixes) == 1 and suffix in ADVICE:
        return f"for each of its {suffix} files: {ADVICE[suffix].format(path='...')}"
    return _DATASET


def _advice_for_object(value: object) -> str:
    package = type(value).__module__.partition(".")[0]
    if package == "pandas":
        return "convert it with pyarrow.Table.from_pandas"
    if package in ("xarray", "h5py", "zarr"):
        return "pass the path of its store"
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        return ACCEPTED
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return "pass a dataset with __getitem__ and __len__ to ChunkedDataLoader"
    if hasattr(value, "__iter__"):
        return "samples that can only be iterated over need a torch DataLoader"
    return ACCEPTED
