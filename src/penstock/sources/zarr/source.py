"""A Zarr array, or the arrays of a group, as a source of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from penstock.sources.readers import ReaderSource
from penstock.sources.zarr.opening import ZarrArray, open_arrays
from penstock.sources.zarr.stored import Directory, StoredBytes


class ZarrSource(ReaderSource):
    """Samples along one axis of a Zarr array (version 2 or 3), or of all arrays of a group.

    Chunks with common codecs are decoded straight into their place (``reader`` says "direct"),
    anything else is read by zarr-python; both give equal arrays. Missing chunks are fill values,
    damaged ones an error that names the file.

    Args:
        path: A directory, or an object that gives stored bytes.
        fields: Names of arrays in a group (paths such as ``"a/b"`` too); all of them if None.
        axis: The axis of samples, in every array.
        direct: False leaves every array to zarr-python.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | StoredBytes,
        *,
        fields: Sequence[str] | None = None,
        axis: int = 0,
        direct: bool = True,
    ) -> None:
        stored = Directory(path) if isinstance(path, str | os.PathLike) else path
        self._name = stored.name("")
        #: reads that storage likes at once; None where it is local, and cores are what counts
        self.in_flight: int | None = getattr(stored, "concurrency", None)
        self._arrays: Mapping[str, ZarrArray] = open_arrays(
            stored, fields=fields, axis=axis, direct=direct
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


def _reader(array: ZarrArray) -> str:
    return array.reader if array.reader == "direct" else f"{array.reader} ({array.why})"
