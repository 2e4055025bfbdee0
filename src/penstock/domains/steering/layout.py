"""What lies in a steering dataset's directory: files, shapes, dtypes, and what refers to what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from penstock.arguments import choice
from penstock.errors import ConfigError

CONFIG: Final = "config.json"
HDF5: Final = "dataset.h5"
SPLITS: Final = ("train", "val", "test")
VARIANTS: Final = ("zero", "centroid", "keyword", "residual")  # by number: 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Table:
    """One tensor on disk: its name, the shape by named dimensions, and where HDF5 keeps it.

    Args:
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
    """A table (or one column of it) whose values are rows of another table."""

    name: str
    column: int | None
    what: str
    target: str


ROUNDING = 1e-5  # a cosine distance computed in float32 may leave [0, 2] by so much

_EMBEDDINGS = (
    Table("question_embs", ("questions", "dim"), torch.float32, "embeddings/questions"),
    Table("source_embs", ("sources", "dim"), torch.float32, "embeddings/sources"),
    Table("keyword_embs", ("keywords", "dim"), torch.float32, "embeddings/keywords"),
    Table("centroid_embs", ("clusters", "dim"), torch.float32, "embeddings/centroids"),
)
_PAIRS = (
    Table("pair_index", ("pairs", 2), torch.int64, "pair_data/index"),
    Table("pair_cluster_id", ("pairs",), torch.int64, "pair_data/cluster_id"),
    Table("pair_relevance", ("pairs",), torch.float32, "pair_data/relevance", 0, 1),
)
NEGATIVES: Final = (
    Table("hard_negatives", ("pairs", "negatives"), torch.int64, "negatives/hardnegatives"),
    Table("negative_tiers", ("pairs", "negatives"), torch.int64, "negatives/tiers", 1, 4),
)
_STEERING = (
    Table("steering_centroid", ("pairs", "dim"), torch.float32, "steering/centroid"),
    Table(
        "steering_keyword_weighted", ("pairs", "dim"), torch.float32, "steering/keyword_weighted"
    ),
    Table("steering_residual", ("pairs", "dim"), torch.float32, "steering/residual"),
    Table(
        "centroid_distances",
        ("pairs",),
        torch.float32,
        "steering/distances",
        -ROUNDING,
        2 + ROUNDING,
    ),
)
TABLES: Final = (*_EMBEDDINGS, *_PAIRS, *NEGATIVES, *_STEERING)
SPLIT_TABLES: Final = {
    split: Table(f"{split}_idx", (split,), torch.int64, f"splits/{split}") for split in SPLITS
}
KEYWORDS: Final = Table("pair_keyword_ids", ("pairs",), torch.int64, "pair_data/keyword_ids")
BY_NAME: Final = {table.name: table for table in (*TABLES, *SPLIT_TABLES.values(), KEYWORDS)}

REFERENCES: Final = (
    Reference("pair_index", 0, "question", "question_embs"),
    Reference("pair_index", 1, "source", "source_embs"),
    Reference("pair_cluster_id", None, "cluster", "centroid_embs"),
    Reference("hard_negatives", None, "source", "source_embs"),
)


def checked_split(split: str) -> str:
    """The split, refused where there is none of that name."""
    return choice("Split file not found: split", split, SPLITS, error=ConfigError)
