"""A source for whatever holds the samples: picked by what it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import SourceError
from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Source
from penstock.sources.combine import ConcatenatedSource, ZippedSource
from penstock.sources.memory import MemorySource, is_tensor
from penstock.sources.npy import NpySource
from penstock.sources.recording import RecordingSource, recording_at
from penstock.sources.remote import is_url, open_remote
from penstock.sources.zarr import ZarrSource
from penstock.sources.zarr.opening import is_zarr
from penstock.sources.zarr.stored import Directory

ACCEPTED = (
    "a .zarr, .npy, .parquet or .arrow path, a directory of one of these or of a recording, an "
    "s3://, gs://, az:// or http(s):// URL of a Zarr store, a Hugging Face dataset, a pyarrow "
    "table, arrays or tensors, a dict of those, a list of sources, or a source"
)


def open_source(where: Any, **options: Any) -> Source:
    """The source for a path, a URL, arrays, tensors, a dataset, or several of them.

    A list is read one after the other, a mapping side by side, a source is given back as it is.
    ``options`` go to the source that is picked (``fields=``, ``axis=``, ``columns=``, ...).

    >>> len(open_source(np.zeros((5, 2))))
    5
    >>> len(open_source([np.zeros((5, 2)), np.ones((3, 2))]))
    8
    >>> open_source("nowhere.npy")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: there is nothing at nowhere.npy
    """
    if isinstance(where, Source):
        return _without_options(lambda: where, options)
    if isinstance(where, str | os.PathLike):
        return _from_path(os.fspath(where), options)
    if isinstance(where, np.ndarray) or is_tensor(where):
        return _without_options(lambda: MemorySource(where), options)
    if type(where).__module__.startswith(("datasets.", "pyarrow.")):
        return _with_options(ArrowSource, where, options)
    if isinstance(where, Mapping) and where:
        return _from_mapping(where, options)
    if isinstance(where, list | tuple) and where and not _is_number(where[0]):
        return ConcatenatedSource([open_source(each, **options) for each in where])
    raise SourceError(f"cannot make a source of {_described(where)}: give {ACCEPTED}")


def _from_mapping(where: Mapping[str, Any], options: dict[str, Any]) -> Source:
    if all(isinstance(each, np.ndarray) or is_tensor(each) for each in where.values()):
        return _without_options(lambda: MemorySource(where), options)
    return ZippedSource({name: open_source(each, **options) for name, each in where.items()})


def _from_path(where: str, options: dict[str, Any]) -> Source:
    if is_url(where):
        return open_remote(where, **options)
    path = Path(where.removeprefix("file://"))
    found = _kind_of(path)
    if found is None and not path.exists():
        raise SourceError(f"there is nothing at {where}")
    if found is None:
        kind = "a directory" if path.is_dir() else "a file"
        raise SourceError(f"cannot make a source of {kind} like {where}: give {ACCEPTED}")
    return _with_options(found, path, options)


def _kind_of(path: Path) -> Callable[..., Source] | None:
    """Who reads what is at ``path``; None where nobody does."""
    if path.is_file():
        return _BY_SUFFIX.get(path.suffix)
    if path.is_dir() and is_zarr(Directory(path)):
        return ZarrSource
    if recording_at(path) is not None:
        return RecordingSource
    return ArrowSource if path.is_dir() and any(path.rglob("*.parquet")) else None


_BY_SUFFIX: dict[str, Callable[..., Source]] = {
    ".npy": NpySource,
    ".parquet": ArrowSource,
    ".pq": ArrowSource,
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
    ".ipc": ArrowSource,
}


def _with_options(make: Callable[..., Source], where: Any, options: dict[str, Any]) -> Source:
    try:
        return make(where, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        text = where if isinstance(where, Path) else type(where).__name__
        raise SourceError(f"{text} cannot be opened with options {options}: {error}") from error


def _without_options(make: Callable[[], Source], options: dict[str, Any]) -> Source:
    if options:
        raise SourceError(f"data in memory, or a source, takes no options, got {options}")
    return make()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.generic)


def _described(where: object) -> str:
    text = repr(where)
    return f"{type(where).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
