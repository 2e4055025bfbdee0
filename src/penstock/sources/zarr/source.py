"""A Zarr array, or the arrays of a group, as a source of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from penstock.arguments import choice, flag, whole_number
from penstock.errors import PlanError, SourceError
from penstock.sources.readers import ReaderSource
from penstock.sources.requests import checked_names, checked_path
from penstock.sources.zarr.opening import ReadSettings, ZarrArray, open_arrays
from penstock.sources.zarr.stored import Directory, StoredBytes


class ZarrSource(ReaderSource):
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Arrays of subgroups are fields by their path, such as ``"images/raw"``; scalar arrays are left
    out. Chunks with common codecs are decoded straight into their place (``reader`` says
    "direct"), anything else is read by zarr-python; both give equal arrays. Damaged chunks are an
    error that names the file.

    Args:
        path: A directory, or an object that gives stored bytes.
        fields: Paths of arrays in a group; all of them if None.
        axis: The axis of samples in every array, by number or by dimension name.
        direct: False leaves every array to zarr-python.
        along: Another name for ``axis``.
        decode: Refuse arrays whose stored values are not the data, because of the attributes
            ``scale_factor``, ``add_offset``, ``_FillValue`` or ``missing_value``. False reads the
            values as they are stored.
        missing: What a chunk that is not stored means: ``"fill"``, the array's fill value, as in
            every Zarr library, or ``"error"``. In an array that is gone as a whole, a missing
            chunk is always an error.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StoredBytes,
        *,
        fields: Sequence[str] | None = None,
        axis: int | str = 0,
        direct: bool = True,
        along: int | str | None = None,
        decode: bool = True,
        missing: str = "fill",
    ) -> None:
        settings = ReadSettings(
            along=checked_along(axis, along),
            direct=flag("direct", direct),
            decode=flag("decode", decode),
            missing_refused=choice("missing", missing, ("fill", "error")) == "error",
        )
        stored = _stored(path)
        self._name = stored.name("")
        #: reads that storage likes at once; None where it is local, and cores are what counts
        self.in_flight: int | None = getattr(stored, "concurrency", None)
        self._arrays: Mapping[str, ZarrArray] = open_arrays(
            stored, fields=checked_names("fields", fields), settings=settings
        )
        super().__init__(self._arrays, self._name)

    @property
    def readers(self) -> Mapping[str, str]:
        """Who decodes each field: "direct", or "zarr-python" and why."""
        return {name: _reader(array) for name, array in self._arrays.items()}

    @property
    def reader(self) -> str:
        """Who decodes: "direct" if all fields are, otherwise "zarr-python"."""
        direct = all(array.reader == "direct" for array in self._arrays.values())
        return "direct" if direct else "zarr-python"

    def __repr__(self) -> str:
        readers = ", ".join(f"{name!r}: {reader}" for name, reader in self.readers.items())
        return f"ZarrSource({self._name!r}, {len(self)} samples, {{{readers}}})"


def checked_along(axis: object, along: object) -> int | str:
    """The axis of samples, which may be given by either of two names.

    >>> checked_along(0, "time"), checked_along(2, None)
    ('time', 2)
    """
    name, given = ("axis", axis) if along is None else ("along", along)
    if along is not None and axis not in (0, along):
        raise PlanError(f"axis={axis!r} and along={along!r} are the same argument: pass one")
    if isinstance(given, str):
        return given
    return whole_number(name, given)


def _stored(path: object) -> StoredBytes:
    if isinstance(path, str | os.PathLike):
        return Directory(checked_path(path))
    if isinstance(path, StoredBytes):
        return path
    raise SourceError(f"a Zarr store is given by its path, got {type(path).__name__}")


def _reader(array: ZarrArray) -> str:
    return array.reader if array.reader == "direct" else f"{array.reader} ({array.why})"
