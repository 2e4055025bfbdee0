"""The tables of a steering dataset: names, shapes, dtypes, references, and how to check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from penstock.checks import BatchSchema, Finding, InvalidDataError, TensorSpec

Faults: TypeAlias = Iterator[Finding]
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Locate: TypeAlias = "Callable[[Table], str]"
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
# tables whose values are row numbers of other tables: one for each column, or one for all columns
REFERENCES: Final = {
    "pair_index": ("question_embs", "source_embs"),
    "pair_cluster_id": ("centroid_embs",),
    "hard_negatives": ("source_embs",),
}


# -- checks of tables


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first finding as an `InvalidDataError`, if there is one."""
    for finding in findings:
        where = "" if finding.row is None else f" ({finding.file} row {finding.row})"
        raise InvalidDataError(f"{finding.problem}{where}")


def shape_faults(tables: Tensors, sizes: Mapping[str, int], locate: Locate) -> Faults:
    """Yield a finding for each table with a wrong dtype or shape.

    Args:
        tables: Tensors by name.
        sizes: Named sizes that are known. The number of pairs is that of ``pair_index``; sizes
            that are not known may be any.
        locate: Returns the name of a table's file for messages.
    """
    pairs = tables.get("pair_index")
    sizes = ({} if pairs is None else {"pairs": len(pairs)}) | dict(sizes)
    for name, tensor in tables.items():
        table, shape = BY_NAME[name], tuple(tensor.shape)
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in table.shape]
        fits = len(shape) == len(wanted) and all(
            isinstance(want, str) or want == size for want, size in zip(wanted, shape, strict=True)
        )
        if not fits or tensor.dtype != table.dtype:
            named = (f"{n}={sizes[n]}" if n in sizes else n for n in map(str, table.shape))
            place = locate(table)
            text = f"{place} must be {table.dtype} of shape ({', '.join(named)})"
            text += f", found {tensor.dtype} of shape {shape}"
            yield Finding(place, text.replace("torch.", ""))


def reference_faults(tables: Tensors, locate: Locate) -> Faults:
    """Yield a finding for each reference to a row that does not exist, negative ones included."""
    for name, targets in REFERENCES.items():
        for column, target in enumerate(targets):
            if name not in tables or target not in tables:
                continue
            values = tables[name] if len(targets) == 1 else tables[name][:, column]
            count, what = len(tables[target]), str(BY_NAME[target].shape[0])
            problem = f"{name} references {what[:-1]} {{}}, but only {count} {what} exist"
            yield from outside(locate(BY_NAME[name]), values, 0, count - 1, problem)


def outside(
    place: str, values: torch.Tensor, low: float, high: float, problem: str
) -> Iterator[Finding]:
    """Yield a finding for the first value that is not in ``[low, high]``.

    Args:
        place: The file of the values, for the finding.
        values: Rows of one or more values.
        low: Smallest value allowed.
        high: Largest value allowed.
        problem: The message; ``{}`` in it becomes the value.
    """
    if values.numel():
        smallest, largest = torch.aminmax(values)  # no mask in memory: nearly all tables pass
        if not (smallest >= low and largest <= high):
            yield from first_fault(place, values, (values < low) | (values > high), problem)


def split_faults(place: str, table: Table, rows: torch.Tensor, pairs: int) -> Faults:
    """Yield a finding for a split that is empty, or that has a row that is not one of the pairs."""
    if not len(rows):
        yield Finding(place, f"{table.name} has no pairs: a split needs at least one")
    problem = f"Split indices reference pair {{}}, but only {pairs} pairs exist"
    yield from outside(place, rows, 0, pairs - 1, problem)


def first_fault(place: str, values: torch.Tensor, bad: torch.Tensor, problem: str) -> Faults:
    """Yield a finding for the first row with a bad value, with the number of such rows.

    Args:
        place: The file of the values, for the finding.
        values: Rows of one or more values.
        bad: Which values are bad.
        problem: The message; ``{}`` in it becomes the value.
    """
    rows = bad if bad.ndim == 1 else bad.any(1)
    if bool(rows.any()):
        row = int(rows.nonzero()[0])
        value = values[row][bad[row]].reshape(-1)[0].item()
        yield Finding(place, problem.format(value), row, value, int(rows.sum()))


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
