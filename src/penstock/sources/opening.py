"""`open_source`: the source for a path, a URL, or an object that holds samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.arguments import flag
from penstock.errors import SourceError
from penstock.extras import load_extensions
from penstock.registry import did_you_mean
from penstock.sources.advice import advice_for_file, advice_for_folder, advice_for_object
from penstock.sources.arrow import ArrowSource
from penstock.sources.base import Source
from penstock.sources.combine import ConcatenatedSource, ZippedSource
from penstock.sources.memory import MemorySource, is_tensor
from penstock.sources.npy import NpySource
from penstock.sources.remote import open_remote
from penstock.sources.requests import checked_names
from penstock.sources.urls import is_url, redacted
from penstock.sources.zarr import ZarrSource
from penstock.sources.zarr.opening import is_zarr
from penstock.sources.zarr.source import checked_along
from penstock.sources.zarr.stored import Directory

Option = Mapping[str, Any]


def open_source(
    where: Any,
    *,
    fields: Sequence[str] | None = None,
    along: int | str | None = None,
    decode: bool = True,
    **options: Any,
) -> Source:
    """The source for a path, a URL, arrays, tensors, a dataset, or several of them.

    A list is read one after the other, a mapping side by side, a source is returned as it is.

    Args:
        where: What holds the samples.
        fields: Names of the fields to read: arrays of a Zarr group, columns of a table or of a
            recording, names of a dict; all of them if None.
        along: The axis of samples, by number or by dimension name; only Zarr arrays have others
            than the first one. ``axis`` is another name for it.
        decode: Refuse Zarr arrays whose stored values are not the data, because of attributes
            such as ``scale_factor``. False reads the values as they are stored.
        options: For the kind of source that is opened: ``missing="error"`` for Zarr,
            ``columns=`` for a table, ``access_key_id=`` for object storage, and so on.

    >>> len(open_source(np.zeros((5, 2))))
    5
    >>> len(open_source([np.zeros((5, 2)), np.ones((3, 2))]))
    8
    >>> open_source("nowhere.npy")
    Traceback (most recent call last):
    ...
    penstock.errors.SourceError: there is nothing at nowhere.npy
    """
    chosen = Choices(
        checked_names("fields", fields), _along(along, options), flag("decode", decode)
    )
    return _opened(where, chosen, options)


@dataclass(frozen=True, slots=True)
class Choices:
    """The options of `open_source` that every kind of source is given."""

    fields: list[str] | None
    along: int | str
    decode: bool

    def for_zarr(self) -> dict[str, Any]:
        """As arguments of ``ZarrSource``."""
        return {"fields": self.fields, "along": self.along, "decode": self.decode}

    def check_along(self, name: str) -> None:
        """Refuse an axis of samples where there is only the first."""
        if self.along != 0 or isinstance(self.along, str):
            raise SourceError(
                f"{name} has samples along its first axis, got along={self.along!r}: only Zarr "
                "arrays can be read along another one"
            )

    def refuse_fields(self, name: str) -> None:
        """Refuse names of fields where there is one array without a name."""
        if self.fields is not None:
            raise SourceError(f"{name} has no named fields to choose from: leave out fields=")


def _opened(where: Any, chosen: Choices, options: Option) -> Source:
    if isinstance(where, Source):
        return _as_it_is(where, chosen, options)
    if isinstance(where, str | os.PathLike):
        return _from_path(os.fspath(where), chosen, options)
    if isinstance(where, np.ndarray) or is_tensor(where):
        chosen.refuse_fields("one array")
        return _in_memory(where, chosen, options)
    if type(where).__module__.startswith(("datasets.", "pyarrow.")):
        return _table(where, chosen, options)
    if isinstance(where, Mapping) and where:
        return _from_mapping(where, chosen, options)
    if isinstance(where, list | tuple) and where and not _is_number(where[0]):
        return ConcatenatedSource([_opened(each, chosen, options) for each in where])
    raise SourceError(f"cannot read samples from {_described(where)}: {advice_for_object(where)}")


def _as_it_is(source: Source, chosen: Choices, options: Option) -> Source:
    if options or chosen != Choices(None, 0, chosen.decode):
        given = [
            *options,
            *(["fields"] if chosen.fields else []),
            *(["along"] if chosen.along else []),
        ]
        raise SourceError(
            f"a source that is open already takes no options, got {', '.join(given)}: pass them "
            "where it is opened"
        )
    return source


def _in_memory(data: Any, chosen: Choices, options: Option) -> Source:
    chosen.check_along("data in memory")
    if options:
        raise SourceError(f"data in memory takes no options, got {', '.join(options)}")
    return MemorySource(data)


def _table(where: Any, chosen: Choices, options: Option) -> Source:
    chosen.check_along("a table")
    columns = {} if chosen.fields is None else {"columns": chosen.fields}
    return _with_options(ArrowSource, where, options, columns)


def _from_mapping(where: Mapping[str, Any], chosen: Choices, options: Option) -> Source:
    wrong = [name for name in where if not isinstance(name, str)]
    if wrong:
        raise SourceError(f"fields are named by strings, got {wrong[0]!r}")
    for name in chosen.fields or ():
        if name not in where:
            raise SourceError(f"no field {name!r} in the dict{did_you_mean(name, where)}")
    kept = {name: where[name] for name in chosen.fields or where}
    inner = replace(chosen, fields=None)
    if all(isinstance(each, np.ndarray) or is_tensor(each) for each in kept.values()):
        return _in_memory(kept, inner, options)
    return ZippedSource({name: _opened(each, inner, options) for name, each in kept.items()})


def _from_path(where: str | bytes, chosen: Choices, options: Option) -> Source:
    if isinstance(where, bytes) or "\0" in where:
        raise SourceError(f"a path must be text, got {where!r}")
    if is_url(where):
        return open_remote(where, **chosen.for_zarr(), **options)
    path, shown = Path(where.removeprefix("file://")), redacted(where)
    try:
        found = _kind_of(path)
        if found is None and not path.exists():
            raise SourceError(f"there is nothing at {shown}")
        if found is None and path.is_dir():
            raise SourceError(
                f"no samples can be read from the folder {shown}: {advice_for_folder(path)}"
            )
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"cannot read {shown}: {error.strerror}") from error
    if found is None:
        raise SourceError(f"the file {shown} is not read in place: {advice_for_file(path)}")
    if found is ZarrSource:
        return _with_options(found, path, options, chosen.for_zarr())
    if found is ArrowSource:
        return _table(path, chosen, options)
    chosen.check_along(shown)
    if hasattr(found, "accepts"):
        columns = {} if chosen.fields is None else {"columns": chosen.fields}
        return _with_options(found, path, options, columns)
    chosen.refuse_fields(shown)
    return _with_options(found, path, options, {})


def _kind_of(path: Path) -> Callable[..., Source] | None:
    """What reads the data at ``path``; None where nothing does."""
    if path.is_file():
        return _BY_SUFFIX.get(path.suffix.lower())
    if path.is_dir() and is_zarr(Directory(path)):
        return ZarrSource
    for extension in load_extensions("penstock.sources").values():
        if extension.accepts(path):
            return cast(Callable[..., Source], extension)
    return ArrowSource if path.is_dir() and any(path.rglob("*.parquet")) else None


_BY_SUFFIX: dict[str, Callable[..., Source]] = {
    ".npy": NpySource,
    ".parquet": ArrowSource,
    ".pq": ArrowSource,
    ".arrow": ArrowSource,
    ".feather": ArrowSource,
    ".ipc": ArrowSource,
}


def _with_options(
    make: Callable[..., Source], where: Any, options: Option, chosen: Mapping[str, Any]
) -> Source:
    twice = sorted(set(options) & set(chosen))
    if twice:
        raise SourceError(f"{twice[0]} is given twice: leave out fields=, or {twice[0]}=")
    try:
        return make(where, **chosen, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        name = redacted(str(where)) if isinstance(where, Path) else type(where).__name__
        raise SourceError(f"{name} cannot be opened like this: {error}") from error


def _along(along: int | str | None, options: dict[str, Any]) -> int | str:
    return checked_along(options.pop("axis", 0), along)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex | np.generic)


def _described(where: object) -> str:
    text = redacted(" ".join(repr(where).split()))
    return f"{type(where).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
