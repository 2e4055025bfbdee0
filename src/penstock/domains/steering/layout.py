"""The format of a steering dataset: its tables, how to check them, config.json, the curriculum."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from penstock.arguments import choice, mapping, real_number, shown, whole_number
from penstock.checks import BatchSchema, Finding, InvalidDataError, TensorSpec
from penstock.errors import ConfigError
from penstock.order import Indices, Permutation, derive_key
from penstock.registry import did_you_mean

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


def split_faults(place: str, rows: torch.Tensor, pairs: int) -> Faults:
    """Yield a finding for a split that is empty, or that has a row that is not one of the pairs."""
    if not len(rows):
        yield Finding(place, f"{place} has no pairs: a split needs at least one")
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


SEED: Final = 42  # where the config names none; the default of the format's own builder
MODES: Final = ("fixed", "linear", "cosine")
_DISTANCES: Final = {"start_distance": 0.3, "end_distance": 0.7, "warmup_epochs": 10}
_NUMBERS: Final = ("zero_prob_start", "zero_prob_end", "epochs_total", *_DISTANCES)


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Probabilities of the steering variants in each epoch.

    The probability of "zero" moves from ``zero_prob_start`` to ``zero_prob_end``; the others keep
    their proportions.

    Args:
        base: Probabilities of the variants in the config, in the order of `VARIANTS`.
        mode: "linear", "cosine", or "fixed", which uses ``base`` in every epoch.
        zero_prob_start: Probability of "zero" in epoch 0.
        zero_prob_end: Probability of "zero" from epoch ``epochs_total`` on.
        epochs_total: Epochs that the change takes.
        start_distance: `distance_limit` in epoch 0; None for no limit.
        end_distance: `distance_limit` from epoch ``warmup_epochs`` on.
        warmup_epochs: Epochs that the change of the limit takes.

    >>> linear = Curriculum.from_config({name: 0.25 for name in VARIANTS}, {"mode": "linear"})
    >>> [round(linear.probabilities(epoch)["zero"], 2) for epoch in (0, 50, 100, 500)]
    [0.5, 0.3, 0.1, 0.1]
    """

    base: tuple[float, ...]
    mode: str = "fixed"
    zero_prob_start: float = 0.5
    zero_prob_end: float = 0.1
    epochs_total: float = 100
    start_distance: float | None = None
    end_distance: float | None = None
    warmup_epochs: float = _DISTANCES["warmup_epochs"]

    @classmethod
    def from_config(cls, probabilities: Any, curriculum: Any) -> Curriculum:
        """Return the curriculum of a config.json.

        Args:
            probabilities: Its ``steering_probabilities``.
            curriculum: Its ``curriculum``; without one the probabilities are fixed.

        Raises:
            ConfigError: A key is unknown or a value makes no sense.
        """
        if not isinstance(probabilities, Mapping) or set(probabilities) != set(VARIANTS):
            found = shown(probabilities)
            raise ConfigError(f"steering_probabilities must have exactly {VARIANTS}, got {found}")
        names = {name: f"steering_probabilities.{name}" for name in VARIANTS}
        base = tuple(_number(names[name], probabilities[name]) for name in VARIANTS)
        if abs(sum(base) - 1) > 1e-6:
            raise ConfigError(f"steering_probabilities must sum to 1, got {sum(base)!r}")
        if not curriculum:
            return cls(base)
        given = mapping("curriculum", curriculum, error=ConfigError)
        for key in given:
            if key not in (known := ("mode", *_NUMBERS)):
                raise ConfigError(f"curriculum has no key {shown(key)}{did_you_mean(key, known)}")
        mode = choice("curriculum mode", given.pop("mode", "linear"), MODES, error=ConfigError)
        numbers = {key: _number(key, value) for key, value in given.items()}
        if _DISTANCES.keys() & numbers:  # one of these keys implies the defaults of the others
            numbers = _DISTANCES | numbers
        return cls(base, mode, **numbers)

    def probabilities(self, epoch: int) -> dict[str, float]:
        """Return the probability of each variant in an epoch; they sum to 1."""
        shares = self.base
        if self.mode != "fixed":
            zero = self._between(self.zero_prob_start, self.zero_prob_end, epoch, self.epochs_total)
            if self.base[0] >= 1:  # the others have no proportions: "centroid" gets the rest
                shares = (zero, 1 - zero, 0.0, 0.0)
            else:
                scale = (1 - zero) / (1 - self.base[0])
                shares = (zero, *(p * scale for p in self.base[1:]))
        return dict(zip(VARIANTS, shares, strict=True))

    def distance_limit(self, epoch: int) -> float | None:
        """Return the centroid distance scheduled for an epoch; None where the config names none.

        It does not exclude any pairs: a loss may weigh pairs by it.
        """
        if self.start_distance is None or self.end_distance is None:
            return None
        if self.mode == "fixed":
            return self.start_distance
        return self._between(self.start_distance, self.end_distance, epoch, self.warmup_epochs)

    def _between(self, start: float, end: float, epoch: int, epochs: float) -> float:
        t = min(epoch / max(epochs, 1), 1.0)
        if self.mode == "cosine":
            t = (1 - math.cos(math.pi * t)) / 2
        return start + (end - start) * t


def _number(key: str, value: Any) -> float:
    most = 1.0 if "prob" in key else 2.0 if "distance" in key else 1e9
    return real_number(key, value, minimum=0, maximum=most, error=ConfigError)


@lru_cache(maxsize=4)
def assign_variants(size: int, shares: tuple[float, ...], seed: int, epoch: int) -> Indices:
    """Return the variant of each of ``size`` pairs in an epoch.

    The pairs are permuted by (seed, epoch), and the variants are assigned along that order from a
    random start. So each pair has each variant with exactly its probability, and an epoch has each
    variant exactly in its share, to within one pair: there is no sampling noise between epochs.

    Args:
        size: Pairs.
        shares: Probability of each variant.
        seed: Of the assignment.
        epoch: Of the assignment.

    >>> np.bincount(assign_variants(1000, (0.5, 0.3, 0.2, 0.0), seed=42, epoch=7)).tolist()
    [500, 300, 200]
    """
    position = Permutation(size, derive_key(seed, "steering", epoch))(np.arange(size))
    start = (derive_key(seed, "steering start", epoch) >> 11) * 2.0**-53
    upper = np.cumsum(shares)
    upper[np.flatnonzero(shares)[-1] :] = np.inf  # rounding must not reach a share of zero
    assigned = np.searchsorted(upper, (position + start) / size, side="right")
    assigned.setflags(write=False)
    return assigned


# -- config.json


@dataclass(frozen=True, slots=True)
class SteeringConfig:
    """The checked contents of a config.json.

    Args:
        raw: All of it.
        embedding_dim: Size of every vector.
        n_neg: Negatives per pair.
        curriculum: Of the steering variants.
        seed: Of shuffle and variants, unless another one is passed.
    """

    raw: Mapping[str, Any]
    embedding_dim: int
    n_neg: int
    curriculum: Curriculum
    seed: int

    @property
    def counts(self) -> dict[str, int]:
        """Sizes that it names, by key. Only `validate_dataset` compares tables with them."""
        return {key: self.raw[key] for key in COUNTS if type(self.raw.get(key)) is int}

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that tables must have."""
        return {"dim": self.embedding_dim, "negatives": self.n_neg}


def read_config(directory: Path) -> SteeringConfig:
    """Return the config of a dataset directory; raise `InvalidDataError` if it is not valid."""
    if not directory.is_dir():
        raise InvalidDataError(f"Dataset directory not found: {directory}")
    path = directory / CONFIG
    if not path.is_file():
        raise InvalidDataError(f"Config file not found: {path}; every dataset directory has one")
    try:
        return parse_config(mapping("config.json", json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError) as error:  # also of a value in it
        raise InvalidDataError(f"{path} is not a valid config: {error}") from error


def parse_config(raw: Mapping[str, Any]) -> SteeringConfig:
    """Return the checked contents of a config; raise `ConfigError` if a value makes no sense.

    >>> parse_config({"embedding_dim": 8, "n_neg": 2}).curriculum.probabilities(0)["zero"]
    0.25
    """
    numbers = {}
    for key, least in (("embedding_dim", 1), ("n_neg", 1), ("random_seed", 0)):
        value = raw.get(key, SEED if key == "random_seed" else None)
        numbers[key] = whole_number(key, value, minimum=least, error=ConfigError)
    equal = dict.fromkeys(VARIANTS, 0.25)  # the format's documented default
    shares = raw.get("steering_probabilities", equal)
    curriculum = Curriculum.from_config(shares, raw.get("curriculum"))
    return SteeringConfig(
        raw, numbers["embedding_dim"], numbers["n_neg"], curriculum, numbers["random_seed"]
    )
