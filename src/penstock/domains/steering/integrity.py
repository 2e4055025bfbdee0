"""Do tables fit each other? Shapes, dtypes, and references in range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from penstock.checks import Finding, InvalidDataError
from penstock.domains.steering.layout import BY_NAME, REFERENCES, Reference, Table

Place = Callable[[Table], str]


def first_of(findings: Iterable[Finding]) -> None:
    """Raise the first finding, if there is one."""
    for finding in findings:
        where = "" if finding.row is None else f" ({finding.file} row {finding.row})"
        raise InvalidDataError(f"{finding.problem}{where}")


def shape_faults(
    columns: Mapping[str, Any], dimensions: Mapping[str, int], place: Place
) -> Iterator[Finding]:
    """Tables of another dtype or shape than they should have, given these sizes.

    The number of pairs is that of ``pair_index``; a size that nothing else decides is free.
    """
    sizes = dict(dimensions)
    pairs = columns.get("pair_index")
    if pairs is not None and len(pairs.shape):
        sizes.setdefault("pairs", pairs.shape[0])
    for name, column in columns.items():
        table = BY_NAME[name]
        shape, dtype = tuple(column.shape), dtype_of(column)
        fits = len(shape) == len(table.shape) and all(
            size == (want if isinstance(want, int) else sizes.get(want, size))
            for want, size in zip(table.shape, shape, strict=True)
        )
        if not fits or dtype != table.dtype:
            named = (f"{w}={sizes[w]}" if w in sizes else str(w) for w in map(str, table.shape))
            yield Finding(
                place(table),
                f"{place(table)} must be {_brief(table.dtype)} of shape ({', '.join(named)}), "
                f"found {_brief(dtype)} of shape {shape}",
            )


def reference_faults(tensors: Mapping[str, torch.Tensor]) -> Iterator[Finding]:
    """Values that should be rows of another table, and are not; below zero too."""
    for reference in REFERENCES:
        if reference.name in tensors and reference.target in tensors:
            count = len(tensors[reference.target])
            yield from outside(reference, tensors[reference.name], count)


def outside(
    reference: Reference, values: torch.Tensor, count: int, first_row: int = 0
) -> Iterator[Finding]:
    """The first row of ``values`` that refers to none of ``count`` rows, and how many do."""
    if reference.column is not None:
        values = values[:, reference.column]
    if not values.numel():
        return
    low, high = torch.aminmax(values)
    if low >= 0 and high < count:
        return
    bad = (values < 0) | (values >= count)
    rows = bad if bad.ndim == 1 else bad.any(1)
    row = int(rows.nonzero()[0])
    value = int(values[row][bad[row]][0]) if bad.ndim > 1 else int(values[row])
    what = reference.what
    yield Finding(
        BY_NAME[reference.name].file,
        f"{reference.name} references {what} {value}, but only {count} {what}s exist",
        first_row + row,
        value,
        int(rows.sum()),
    )


def dtype_of(column: Any) -> Any:
    """The torch dtype of a column, wherever it is; a numpy one where torch has none."""
    if isinstance(column.dtype, torch.dtype):
        return column.dtype
    try:
        return torch.from_numpy(np.empty(0, column.dtype.newbyteorder("="))).dtype
    except TypeError:
        return column.dtype


def _brief(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
