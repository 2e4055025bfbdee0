"""The tables of a steering dataset: names, shapes, dtypes, references, and how to check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from penstock.checks import BatchSchema, Finding, InvalidDataError, TensorSpec

Faults: TypeAlias = Iterator[Finding]
CONFIG: Final = "config.json"
HDF5: Final = "dataset.h5"
SPLITS: Final = ("train", "val", "test")
VARIANTS: Final = ("zero", "centroid", "keyword", "residual")  # by number: 0, 1, 2, 3
ROUNDING: Final = 1e-5  # a cosine distance computed in float32 may exceed [0, 2] by this much


@dataclass(frozen=True, slots=True)
class Table:
    """One tensor on disk.

    Args:
        name: Also the name of its .pt file.
        shape: Sizes, or names of sizes that several tables share.
        dtype: Of its values.
        hdf5: Its path in an HDF5 file.
        low: Smallest value allowed.
        high: Largest value allowed.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: torch.dtype
    hdf5: str
    low: float | None = None
    high: float | None = None

    @property
    def file(self) -> str:
        """Its file in the directory."""
        return f"{self.name}.pt"


@dataclass(frozen=True, slots=True)
class Reference:
    """A table, or one column of it, whose values are row numbers of another table.

    Args:
        name: The table.
        column: The column; None for all of them.
        what: What a row of the target is, for messages.
        target: The table referred to.
    """

    name: str
    column: int | None
    what: str
    target: str


def _vectors(name: str, rows: str, hdf5: str) -> Table:
    return Table(name, (rows, "dim"), torch.float32, hdf5)


NEGATIVES: Final = (
    Table("hard_negatives", ("pairs", "negatives"), torch.int64, "negatives/hardnegatives"),
    Table("negative_tiers", ("pairs", "negatives"), torch.int64, "negatives/tiers", 1, 4),
)
TABLES: Final = (
    _vectors("question_embs", "questions", "embeddings/questions"),
    _vectors("source_embs", "sources", "embeddings/sources"),
    _vectors("keyword_embs", "keywords", "embeddings/keywords"),
    _vectors("centroid_embs", "clusters", "embeddings/centroids"),
    Table("pair_index", ("pairs", 2), torch.int64, "pair_data/index"),
    Table("pair_cluster_id", ("pairs",), torch.int64, "pair_data/cluster_id"),
    Table("pair_relevance", ("pairs",), torch.float32, "pair_data/relevance", 0, 1),
    *NEGATIVES,
    _vectors("steering_centroid", "pairs", "steering/centroid"),
    _vectors("steering_keyword_weighted", "pairs", "steering/keyword_weighted"),
    _vectors("steering_residual", "pairs", "steering/residual"),
    Table(
        *("centroid_distances", ("pairs",), torch.float32, "steering/distances"),
        low=-ROUNDING,
        high=2 + ROUNDING,
    ),
)
SPLIT_TABLES: Final = {
    split: Table(f"{split}_idx", (split,), torch.int64, f"splits/{split}") for split in SPLITS
}
KEYWORDS: Final = Table("pair_keyword_ids", ("pairs",), torch.int64, "pair_data/keyword_ids")
BY_NAME: Final = {table.name: table for table in (*TABLES, *SPLIT_TABLES.values(), KEYWORDS)}
# Sizes that a config.json may name: its key, what is counted, and the table that has it.
COUNTS: Final = {
    "n_pairs": ("pairs", BY_NAME["pair_index"]),
    "n_questions": ("questions", BY_NAME["question_embs"]),
    "n_sources": ("sources", BY_NAME["source_embs"]),
    "n_keywords": ("keywords", BY_NAME["keyword_embs"]),
    "n_clusters": ("clusters", BY_NAME["centroid_embs"]),
}
REFERENCES: Final = (
    Reference("pair_index", 0, "question", "question_embs"),
    Reference("pair_index", 1, "source", "source_embs"),
    Reference("pair_cluster_id", None, "cluster", "centroid_embs"),
    Reference("hard_negatives", None, "source", "source_embs"),
)


# -- checks of tables


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first finding as an `InvalidDataError`, if there is one."""
    for finding in findings:
        where = "" if finding.row is None else f" ({finding.file} row {finding.row})"
        raise InvalidDataError(f"{finding.problem}{where}")


def shape_faults(
    columns: Mapping[str, Any], sizes: Mapping[str, int], locate: Callable[[Table], str]
) -> Faults:
    """Yield a finding for each table with a wrong dtype or shape.

    Args:
        columns: Tables by name, as anything with a shape and a dtype.
        sizes: Named sizes that are known. The number of pairs is that of ``pair_index``; sizes
            that are not known may be any.
        locate: Returns the name of a table's file for messages.
    """
    sizes = dict(sizes)
    pairs = columns.get("pair_index")
    if pairs is not None and len(pairs.shape):
        sizes.setdefault("pairs", pairs.shape[0])
    for name, column in columns.items():
        table = BY_NAME[name]
        shape, dtype = tuple(column.shape), _torch_dtype(column.dtype)
        fits = len(shape) == len(table.shape) and all(
            size == (want if isinstance(want, int) else sizes.get(want, size))
            for want, size in zip(table.shape, shape, strict=True)
        )
        if not fits or dtype != table.dtype:
            named = (f"{w}={sizes[w]}" if w in sizes else w for w in map(str, table.shape))
            wanted = f"{table.dtype} of shape ({', '.join(named)})".removeprefix("torch.")
            found = f"{dtype} of shape {shape}".removeprefix("torch.")
            place = locate(table)
            yield Finding(place, f"{place} must be {wanted}, found {found}")


def _torch_dtype(dtype: Any) -> Any:
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:  # torch has no such dtype
        return dtype


def reference_faults(tensors: Mapping[str, torch.Tensor]) -> Faults:
    """Yield a finding for each reference to a row that does not exist, negative ones included."""
    for reference in REFERENCES:
        if reference.name in tensors and reference.target in tensors:
            count = len(tensors[reference.target])
            yield from outside(reference, tensors[reference.name], count)


def outside(reference: Reference, values: torch.Tensor, count: int, first_row: int = 0) -> Faults:
    """Yield a finding if rows of ``values`` refer to none of ``count`` rows.

    Args:
        reference: What the values refer to.
        values: Rows of the table.
        count: Rows of the table referred to.
        first_row: Number of the first of the rows.
    """
    if reference.column is not None:
        values = values[:, reference.column]
    if not values.numel():
        return
    low, high = torch.aminmax(values)  # without memory for a mask, as nearly all tables pass
    if low >= 0 and high < count:
        return
    what, file = reference.what, BY_NAME[reference.name].file
    problem = f"{reference.name} references {what} {{}}, but only {count} {what}s exist"
    yield from first_fault(file, values, (values < 0) | (values >= count), problem, first_row)


def first_fault(
    file: str, values: torch.Tensor, bad: torch.Tensor, problem: str, first_row: int = 0
) -> Faults:
    """Yield a finding for the first row with a bad value, with the number of such rows.

    Args:
        file: The file of the values, for the finding.
        values: Rows of one or more values.
        bad: Which values are bad.
        problem: The message; ``{}`` in it becomes the value.
        first_row: Number of the first row of ``values``.
    """
    rows = bad if bad.ndim == 1 else bad.any(1)
    if bool(rows.any()):
        row = int(rows.nonzero()[0])
        value = values[row][bad[row]].reshape(-1)[0].item()
        yield Finding(file, problem.format(value), first_row + row, value, int(rows.sum()))


def batch_schema(
    embedding_dim: int | None = None, n_neg: int | None = None, clusters: int | None = None
) -> BatchSchema:
    """Return the schema of a batch: exactly nine fields; sizes not given are only compared.

    >>> len(batch_schema().fields)
    9
    """
    vectors = TensorSpec(("batch", "dim"), torch.float32)
    cluster_high = None if clusters is None else clusters - 1
    sizes = {"dim": embedding_dim, "negatives": n_neg}
    return BatchSchema(
        {
            "question_emb": vectors,
            "target_source_emb": vectors,
            "steering": vectors,
            "negative_embs": TensorSpec(("batch", "negatives", "dim"), torch.float32),
            "cluster_id": TensorSpec(("batch",), torch.int64, 0, cluster_high),
            "relevance": TensorSpec(("batch",), torch.float32, 0, 1),
            "centroid_distance": TensorSpec(("batch",), torch.float32, -ROUNDING, 2 + ROUNDING),
            "steering_variant": TensorSpec(("batch",), torch.int64, 0, len(VARIANTS) - 1),
            "negative_tiers": TensorSpec(("batch", "negatives"), torch.int64, 1, 4),
        },
        sizes={name: size for name, size in sizes.items() if size is not None},
        exact=True,
    )
