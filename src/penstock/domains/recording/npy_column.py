"""One column of a recording kept as one ``.npy`` array."""

from __future__ import annotations

import numpy as np

from penstock.fingerprints import digest
from penstock.sources.base import Field
from penstock.sources.npy import NpySource
from penstock.sources.readers import Rows


class NpyColumn:
    """Column ``column`` of the first ``neurons`` neurons of an array (timesteps, neurons, 9)."""

    def __init__(self, source: NpySource, neurons: int, column: int) -> None:
        self._source, self._neurons, self._column = source, neurons, column
        self.samples = len(source)
        self.field = Field((neurons,), source.fields[""].dtype)
        self.chunk_samples = source.block_samples

    def read(self, start: int, stop: int, out: Rows) -> None:
        """Fill ``out`` with timesteps ``start:stop``."""
        rows = self.view(start, stop)
        if rows is None:  # another byte order
            whole = np.empty((stop - start, *self._source.fields[""].shape), self.field.dtype)
            self._source.read(start, stop, {"": whole})
            rows = whole[:, : self._neurons, self._column]
        np.copyto(out, rows)

    def view(self, start: int, stop: int) -> Rows | None:
        """Timesteps ``start:stop`` over mapped pages, strided."""
        whole = self._source.view(start, stop)
        return None if whole is None else whole[""][:, : self._neurons, self._column]

    def fingerprint(self) -> str:
        """Identity of the data: that of the file, and which part of it."""
        return digest([self._source.fingerprint(), self._neurons, self._column], [])
