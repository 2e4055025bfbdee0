"""Builds steering dataset directories: steering vectors, hard negatives, splits, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import LARGEST_SEED, a_path, mapping, real_number, shown, whole_number
from penstock.atomic_files import replace_file, replace_text
from penstock.domains.steering.curriculum import parse_config
from penstock.domains.steering.layout import CONFIG, COUNTS, SPLITS, VARIANTS
from penstock.errors import PlanError
from penstock.order import Indices, Permutation, derive_key

Vectors = npt.NDArray[np.float32]

MAX_COUNT = 10_000_000  # of anything: tables are built in memory
TIERS = (1, 2, 3, 4)  # same cluster, adjacent cluster, similar to the question, other cluster
ADJACENT_CLUSTERS = 3
POOL = 2048  # the most sources that are compared with a question
ATTEMPTS = 16  # random draws, before the sources that are not true ones are listed


def build_steering_directory(
    directory: str | PathLike[str],
    *,
    pairs: int = 100,
    embedding_dim: int = 32,
    n_neg: int = 4,
    clusters: int = 5,
    keywords: int = 30,
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 42,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a complete synthetic dataset, for tests and examples, and return its directory.

    Sources and keywords are random vectors near the centroid of their cluster, and each question is
    near the source that answers it; a question has about two pairs. Steering vectors, distances,
    negatives and splits are computed from them. Equal arguments give equal data, and
    `validate_dataset` has no findings.

    Args:
        directory: Created if it does not exist.
        pairs: Number of pairs of a question and a source.
        embedding_dim: Size of every vector.
        n_neg: Negatives per pair.
        clusters: Clusters of sources.
        keywords: Number of keywords, spread over the clusters.
        shares: Shares of the questions in train, val and test; each gets at least one.
        seed: Seed of all random draws.
        config: Further entries of config.json, such as "curriculum".
    """
    folder = a_path("directory", directory)
    whole_number("pairs", pairs, minimum=len(SPLITS), maximum=MAX_COUNT)
    counts = {
        "embedding_dim": embedding_dim,
        "n_neg": n_neg,
        "clusters": clusters,
        "keywords": keywords,
    }
    for name, count in counts.items():
        whole_number(name, count, minimum=1, maximum=MAX_COUNT)
    whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
    if not isinstance(shares, tuple | list) or len(shares) != len(SPLITS):
        raise PlanError(f"shares must be three numbers, got {shown(shares)}")
    if sum(real_number("shares", each, minimum=0, maximum=1) for each in shares) > 1 + 1e-6:
        raise PlanError(f"shares must sum to at most 1, got {shown(shares)}")
    further_config = {} if config is None else mapping("config", config)

    rng = np.random.default_rng(derive_key(seed, "directory"))
    questions = max(len(SPLITS), pairs // 2)
    # more sources than one question can have, so that each has a negative
    sources = max(clusters + 1, pairs * 4 // 5, pairs - questions + 2)
    centroids = _near(np.zeros((clusters, embedding_dim), np.float32), 1.0, rng)
    source_clusters, keyword_clusters = (_assign(clusters, n, rng) for n in (sources, keywords))
    source_embs = _near(centroids[source_clusters], 0.5, rng)
    answer = _assign(sources, questions, rng)
    further = rng.integers(questions, size=pairs - questions)
    asked = np.concatenate([np.arange(questions), further])
    groups = _Groups(source_clusters, clusters)
    further_answers = groups.pick(source_clusters[answer[further]], rng)
    corpus = Corpus(
        questions=_near(source_embs[answer], 0.5, rng),
        sources=source_embs,
        centroids=centroids,
        pairs=np.stack([asked, np.concatenate([answer, further_answers])], 1),
        pair_clusters=source_clusters[answer[asked]],
        source_clusters=source_clusters,
    )
    words = [np.flatnonzero(keyword_clusters == c)[:3].tolist() for c in range(clusters)]
    tables = steering_tables(
        corpus,
        keywords=_near(centroids[keyword_clusters], 0.5, rng),
        keyword_ids=[words[c] for c in corpus.pair_clusters.tolist()],
        relevance=rng.random(pairs, np.float32),
        n_neg=n_neg,
        seed=seed,
    )
    tables |= split_by_question(corpus.pairs[:, 0], shares, seed)
    _write(folder, tables, {"split_ratios": list(shares), "random_seed": seed} | further_config)
    return folder


class Corpus(NamedTuple):
    """Vectors and pairs that a dataset is computed from.

    Args:
        questions: One vector each.
        sources: One vector each.
        centroids: One vector per cluster.
        pairs: Rows of (question, source).
        pair_clusters: The cluster of each pair.
        source_clusters: The cluster of each source.
    """

    questions: Vectors
    sources: Vectors
    centroids: Vectors
    pairs: Indices
    pair_clusters: Indices
    source_clusters: Indices


def steering_tables(
    corpus: Corpus,
    *,
    keywords: Vectors,
    keyword_ids: list[list[int]],
    relevance: Vectors,
    n_neg: int,
    seed: int,
) -> dict[str, Any]:
    """Return all tables but the splits, by name.

    The centroid vector of a pair is the unit vector from the question to its centroid. The keyword
    vector is the unit mean of the pair's keywords, or the centroid vector if it has none. The
    residual is the question minus its centroid.

    Args:
        corpus: Vectors and pairs.
        keywords: One vector each.
        keyword_ids: The keywords of each pair.
        relevance: Of each pair.
        n_neg: Negatives per pair.
        seed: Of the negatives.
    """
    question = corpus.questions[corpus.pairs[:, 0]]
    centroid = corpus.centroids[corpus.pair_clusters]
    towards = unit_rows(centroid - question)
    means = [
        keywords[ids].mean(0) if ids else vector
        for ids, vector in zip(keyword_ids, towards, strict=True)
    ]
    cosine = (unit_rows(question) * unit_rows(centroid)).sum(1)
    negatives, tiers = mine_negatives(corpus, n_neg, seed)
    arrays = {
        "question_embs": corpus.questions,
        "source_embs": corpus.sources,
        "keyword_embs": keywords,
        "centroid_embs": corpus.centroids,
        "pair_index": corpus.pairs,
        "pair_cluster_id": corpus.pair_clusters,
        "pair_relevance": relevance,
        "hard_negatives": negatives,
        "negative_tiers": tiers,
        "steering_centroid": towards,
        "steering_keyword_weighted": unit_rows(np.stack(means)),
        "steering_residual": question - centroid,
        "centroid_distances": np.clip(1 - cosine, 0, 2),
    }
    tables: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tables | {"pair_keyword_ids": keyword_ids}


def split_by_question(
    questions: Indices, shares: tuple[float, float, float], seed: int
) -> dict[str, torch.Tensor]:
    """Return the pair rows of each split; all pairs of a question are in the same split.

    Args:
        questions: The question of each pair.
        shares: Shares of the questions in train, val and test; each gets at least one.
        seed: Of the assignment.

    >>> split_by_question(np.array([0, 0, 1, 2]), (0.8, 0.1, 0.1), seed=1)
    {'train_idx': tensor([3]), 'val_idx': tensor([2]), 'test_idx': tensor([0, 1])}
    """
    names, of_pair = np.unique(questions, return_inverse=True)
    count = len(names)
    if count < len(SPLITS):
        raise PlanError(f"{len(SPLITS)} splits need as many questions at least, got {count}")
    val = min(max(1, int(count * shares[1])), count - 2)
    test = min(max(1, int(count * shares[2])), count - 1 - val)
    position = Permutation(count, derive_key(seed, "splits"))(np.arange(count))[of_pair]
    ends = {"train": count - val - test, "val": count - test, "test": count}
    tables, begin = {}, 0
    for split, end in ends.items():
        rows = np.flatnonzero((begin <= position) & (position < end))
        tables[f"{split}_idx"], begin = torch.from_numpy(rows), end
    return tables


def _write(directory: Path, tables: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "embedding_dim": tables["question_embs"].shape[1],
        "n_neg": tables["hard_negatives"].shape[1],
        "steering_probabilities": dict.fromkeys(VARIANTS, 0.25),
        "storage_format": "pt",
        **{key: len(tables[table.name]) for key, (_, table) in COUNTS.items()},
        **config,
    }
    parse_config(settings)  # raises if it could not be read again
    for name, value in tables.items():
        replace_file(directory / f"{name}.pt", partial(torch.save, value))
    # last, because a directory with a config.json is a complete one
    replace_text(directory / CONFIG, json.dumps(settings, indent=2))


# -- random corpora


def _near(centres: Vectors, spread: float, rng: np.random.Generator) -> Vectors:
    noise = rng.standard_normal(centres.shape, np.float32) * np.float32(spread)
    return unit_rows(centres + noise / np.float32(np.sqrt(centres.shape[1])))


def _assign(groups: int, count: int, rng: np.random.Generator) -> Indices:
    """Return a group for each of ``count`` members, with sizes that differ by at most one."""
    return rng.permutation(np.arange(count) % groups)


def unit_rows(vectors: Vectors) -> Vectors:
    """Return each row divided by its length; zeros stay zeros.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.where(lengths > 1e-8, vectors / np.maximum(lengths, 1e-8), 0)
    return unit.astype(np.float32)


class _Groups:
    """Members of groups, so that a random one of a group can be picked."""

    def __init__(self, group_of: Indices, groups: int) -> None:
        self.members = np.argsort(group_of, kind="stable")
        self.sizes = np.bincount(group_of, minlength=groups)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def pick(self, groups: Indices, rng: np.random.Generator) -> Indices:
        """Return a random member of each of these groups; -1 where a group is empty."""
        sizes = self.sizes[groups]
        at = self.starts[groups] + (rng.random(len(groups)) * sizes).astype(np.int64)
        return np.where(sizes > 0, self.members[np.minimum(at, len(self.members) - 1)], -1)

    def pick_outside(self, groups: Indices, rng: np.random.Generator) -> Indices:
        """Return a random member of another group for each of these groups; -1 for none."""
        inside, free = self.sizes[groups], len(self.members) - self.sizes[groups]
        at = (rng.random(len(groups)) * free).astype(np.int64)
        at += np.where(at >= self.starts[groups], inside, 0)  # skip the group's own members
        return np.where(free > 0, self.members[np.minimum(at, len(self.members) - 1)], -1)


# -- hard negatives


def tier_counts(n_neg: int) -> tuple[int, ...]:
    """Return the number of negatives of each tier: equal parts, the first tiers get the rest.

    >>> tier_counts(8), tier_counts(6)
    ((2, 2, 2, 2), (2, 2, 1, 1))
    """
    each, more = divmod(n_neg, len(TIERS))
    return tuple(each + (tier <= more) for tier in TIERS)


def mine_negatives(corpus: Corpus, n_neg: int, seed: int) -> tuple[Indices, Indices]:
    """Return the negatives of each pair and their tiers, in the order of the tiers.

    A true source of a pair's question is never one of its negatives. Where a tier has too few
    sources, any other source is used, as tier 4.

    Args:
        corpus: Vectors and pairs.
        n_neg: Negatives per pair.
        seed: Of the random draws.
    """
    if len(corpus.sources) < 2:
        raise PlanError("negatives need at least 2 sources, got 1")
    rng = np.random.default_rng(derive_key(seed, "negatives"))
    true = _TrueSources(corpus)
    groups = _Groups(corpus.source_clusters, len(corpus.centroids))
    columns, tiers = [], []
    for tier, count in zip(TIERS, tier_counts(n_neg), strict=True):
        ranked = _most_similar(corpus, true, count, rng) if tier == 3 and count else None
        for column in range(count):
            if ranked is not None:
                drawn = ranked[:, column]
            else:
                drawn = _draw(corpus, groups, tier, rng)
                for _ in range(ATTEMPTS):
                    if not (wrong := true.has(drawn)).any():
                        break
                    drawn = np.where(wrong, _draw(corpus, groups, tier, rng), drawn)
            labels = np.full(len(drawn), tier)
            missing = np.flatnonzero(true.has(drawn))
            drawn[missing], labels[missing] = true.others(missing, rng), 4
            columns.append(drawn)
            tiers.append(labels)
    return np.stack(columns, 1), np.stack(tiers, 1)


class _TrueSources:
    """The sources of each pair's question."""

    def __init__(self, corpus: Corpus) -> None:
        self._questions, self._count = corpus.pairs[:, 0], len(corpus.sources)
        self._known = np.unique(self._questions * self._count + corpus.pairs[:, 1])

    def has(self, drawn: Indices, part: slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Return for which pairs (of ``part``) the source drawn is a true one, or negative."""
        keys = self._questions[part] * self._count + drawn
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found: npt.NDArray[np.bool_] = (self._known[at] == keys) | (drawn < 0)
        return found

    def others(self, pairs: Indices, rng: np.random.Generator) -> Indices:
        """Return for each of these pairs a random source that is not a true one."""
        chosen = np.empty(len(pairs), np.int64)
        for i, question in enumerate(self._questions[pairs]):
            ends = np.array([question, question + 1]) * self._count
            begin, end = np.searchsorted(self._known, ends)
            rest = np.setdiff1d(np.arange(self._count), self._known[begin:end] % self._count)
            if not rest.size:
                raise PlanError(f"question {question} has every source: no negative is left")
            chosen[i] = rng.choice(rest)
        return chosen


def _draw(corpus: Corpus, groups: _Groups, tier: int, rng: np.random.Generator) -> Indices:
    """Return a random source of the tier for each pair; -1 where the tier has none."""
    clusters = corpus.pair_clusters
    if tier == 4:
        return groups.pick_outside(clusters, rng)
    if tier == 2:
        unit = unit_rows(corpus.centroids)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, -np.inf)
        adjacent = min(ADJACENT_CLUSTERS, len(unit) - 1)
        if not adjacent:
            return np.full(len(clusters), -1)
        near = np.argsort(-cosine, axis=1, kind="stable")[:, :adjacent]
        clusters = near[clusters, rng.integers(adjacent, size=len(clusters))]
    return groups.pick(clusters, rng)


def _most_similar(
    corpus: Corpus, true: _TrueSources, count: int, rng: np.random.Generator
) -> Indices:
    """Return the sources outside of each pair's cluster that are most similar to its question."""
    pool = np.arange(len(corpus.sources))
    if len(pool) > POOL:
        pool = np.sort(rng.choice(pool, POOL, replace=False))
    sources, questions = unit_rows(corpus.sources[pool]), unit_rows(corpus.questions)
    best = np.full((len(corpus.pairs), count), -1)
    for start in range(0, len(best), POOL):
        part = slice(start, start + POOL)
        cosine = questions[corpus.pairs[part, 0]] @ sources.T
        cosine[corpus.source_clusters[pool] == corpus.pair_clusters[part, None]] = -np.inf
        top = _largest(cosine, min(count + len(TIERS), len(pool)))  # some may be true sources
        found = np.where(np.isfinite(np.take_along_axis(cosine, top, 1)), pool[top], -1)
        for column in found.T:  # views: true sources are replaced in place
            column[true.has(column, part)] = -1
        order = np.argsort(found < 0, axis=1, kind="stable")[:, :count]
        best[part, : order.shape[1]] = np.take_along_axis(found, order, 1)
    return best


def _largest(values: Vectors, count: int) -> Indices:
    """Return the columns of the largest values of each row, the largest first."""
    some = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)
