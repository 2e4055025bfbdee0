"""Builds steering dataset directories: steering vectors, hard negatives, splits, files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import LARGEST_SEED, a_path, mapping, whole_number
from penstock.atomic_files import replace_file, replace_text
from penstock.domains.steering.layout import CONFIG, COUNTS, SPLITS, VARIANTS, parse_config
from penstock.errors import PlanError
from penstock.order import Indices, Permutation, derive_key

Vectors = npt.NDArray[np.float32]

MAX_COUNT = 10_000_000  # of anything: tables are built in memory
TIERS = (1, 2, 3, 4)  # same cluster, adjacent cluster, similar to the question, other cluster
ADJACENT_CLUSTERS = 3
POOL = 256  # the most sources that are compared with a question, and pairs at a time


def build_steering_directory(
    directory: str | PathLike[str],
    *,
    pairs: int = 100,
    embedding_dim: int = 32,
    n_neg: int = 4,
    clusters: int = 5,
    keywords: int = 30,
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
        seed: Seed of all random draws.
        config: Further entries of config.json, such as "curriculum".
    """
    folder = a_path("directory", directory)
    whole_number("pairs", pairs, minimum=len(SPLITS), maximum=MAX_COUNT)
    counts = {"embedding_dim": embedding_dim, "n_neg": n_neg}
    for name, count in (counts | {"clusters": clusters, "keywords": keywords}).items():
        whole_number(name, count, minimum=1, maximum=MAX_COUNT)
    whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
    further_config = {} if config is None else mapping("config", config)

    rng = np.random.default_rng(derive_key(seed, "directory"))
    questions = max(len(SPLITS), pairs // 2)
    # more sources than one question can have, so that each has a negative
    sources = max(clusters + 1, pairs * 4 // 5, pairs - questions + 2)
    centroids = _near(np.zeros((clusters, embedding_dim), np.float32), 1.0, rng)
    source_clusters, keyword_clusters = (np.arange(n) % clusters for n in (sources, keywords))
    source_embs = _near(centroids[source_clusters], 0.5, rng)
    # every question is in a pair, some in two; the source of a pair is of its cluster
    asked = np.append(np.arange(questions), rng.integers(questions, size=pairs - questions))
    pair_clusters = rng.permutation(np.arange(questions) % clusters)[asked]
    of_cluster = (sources - 1 - pair_clusters) // clusters + 1
    answers = pair_clusters + clusters * rng.integers(of_cluster)
    question_embs = _near(source_embs[answers[:questions]], 0.5, rng)
    keyword_embs = _near(centroids[keyword_clusters], 0.5, rng)
    index = np.stack([asked, answers], 1)
    negatives, tiers = mine_negatives(
        (question_embs, source_embs, centroids), index, pair_clusters, source_clusters, n_neg, seed
    )
    arrays = {
        "question_embs": question_embs,
        "source_embs": source_embs,
        "keyword_embs": keyword_embs,
        "centroid_embs": centroids,
        "pair_index": index,
        "pair_cluster_id": pair_clusters,
        "pair_relevance": rng.random(pairs, np.float32),
        "hard_negatives": negatives,
        "negative_tiers": tiers,
    }
    words = [np.flatnonzero(keyword_clusters == c)[:3].tolist() for c in range(clusters)]
    keyword_ids = [words[c] for c in pair_clusters.tolist()]
    arrays |= steering_vectors(
        question_embs[asked], centroids[pair_clusters], keyword_embs, keyword_ids
    )
    tables: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    tables |= {"pair_keyword_ids": keyword_ids} | split_by_question(asked, seed)
    settings = {
        **counts,
        "steering_probabilities": dict.fromkeys(VARIANTS, 0.25),
        "storage_format": "pt",
        **{key: len(tables[table.name]) for key, (_, table) in COUNTS.items()},
        "split_ratios": [0.8, 0.1, 0.1],
        "random_seed": seed,
        **further_config,
    }
    parse_config(settings)  # raises if it could not be read again
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in tables.items():
        replace_file(folder / f"{name}.pt", partial(torch.save, value))
    # last, because a directory with a config.json is a complete one
    replace_text(folder / CONFIG, json.dumps(settings, indent=2))
    return folder


def steering_vectors(
    question: Vectors, centroid: Vectors, keywords: Vectors, keyword_ids: list[list[int]]
) -> dict[str, Vectors]:
    """Return the steering vectors of pairs by the name of their table, and the distances.

    The centroid vector of a pair is the unit vector from the question to its centroid. The keyword
    vector is the unit mean of the pair's keywords, or the centroid vector if it has none. The
    residual is the question minus its centroid.

    Args:
        question: The question of each pair.
        centroid: The centroid of each pair.
        keywords: One vector each.
        keyword_ids: The keywords of each pair.
    """
    towards = unit_rows(centroid - question)
    rows = zip(keyword_ids, towards, strict=True)
    means = [keywords[ids].mean(0) if ids else vector for ids, vector in rows]
    cosine = (unit_rows(question) * unit_rows(centroid)).sum(1)
    return {
        "steering_centroid": towards,
        "steering_keyword_weighted": unit_rows(np.stack(means)),
        "steering_residual": question - centroid,
        "centroid_distances": np.clip(1 - cosine, 0, 2),
    }


def split_by_question(questions: Indices, seed: int) -> dict[str, torch.Tensor]:
    """Return the pair rows of each split; all pairs of a question are in the same split.

    A tenth of the questions, but at least one, is in val, and as many are in test.

    Args:
        questions: The question of each pair; at least three.
        seed: Of the assignment.

    >>> split_by_question(np.array([0, 0, 1, 2]), seed=1)
    {'train_idx': tensor([3]), 'val_idx': tensor([2]), 'test_idx': tensor([0, 1])}
    """
    names, of_pair = np.unique(questions, return_inverse=True)
    count = len(names)
    part = max(1, count // 10)
    position = Permutation(count, derive_key(seed, "splits"))(np.arange(count))[of_pair]
    split = np.searchsorted([count - 2 * part, count - part], position, side="right")
    rows = (np.flatnonzero(split == number) for number in range(len(SPLITS)))
    return {f"{name}_idx": torch.from_numpy(each) for name, each in zip(SPLITS, rows, strict=True)}


# -- random corpora


def _near(centres: Vectors, spread: float, rng: np.random.Generator) -> Vectors:
    noise = rng.standard_normal(centres.shape, np.float32) * np.float32(spread)
    return unit_rows(centres + noise / np.float32(np.sqrt(centres.shape[1])))


def unit_rows(vectors: Vectors) -> Vectors:
    """Return each row divided by its length; zeros stay zeros.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.where(lengths > 1e-8, vectors / np.maximum(lengths, 1e-8), 0)
    return unit.astype(np.float32)


# -- hard negatives


def tier_counts(n_neg: int) -> tuple[int, ...]:
    """Return the number of negatives of each tier: equal parts, the first tiers get the rest.

    >>> tier_counts(8), tier_counts(6)
    ((2, 2, 2, 2), (2, 2, 1, 1))
    """
    each, more = divmod(n_neg, len(TIERS))
    return tuple(each + (tier <= more) for tier in TIERS)


def mine_negatives(
    vectors: tuple[Vectors, Vectors, Vectors],
    pairs: Indices,
    pair_clusters: Indices,
    source_clusters: Indices,
    n_neg: int,
    seed: int,
) -> tuple[Indices, Indices]:
    """Return the negatives of each pair and their tiers, in the order of the tiers.

    A true source of a pair's question is never one of its negatives. Where a tier has too few
    sources, any other source is used, as tier 4.

    Args:
        vectors: Questions, sources and centroids.
        pairs: Rows of (question, source).
        pair_clusters: The cluster of each pair.
        source_clusters: The cluster of each source.
        n_neg: Negatives per pair.
        seed: Of the random draws.
    """
    questions, sources, centroids = map(unit_rows, vectors)
    count = len(sources)
    rng = np.random.default_rng(derive_key(seed, "negatives"))
    pool = np.arange(count) if count <= POOL else np.sort(rng.choice(count, POOL, replace=False))
    sources, groups, adjacent = sources[pool], source_clusters[pool], _adjacent(centroids)
    # one number per question and source, so that one search finds all true sources
    asked, known = pairs[:, :1], pairs[:, 0] * count + pairs[:, 1]
    parts = []
    for start in range(0, len(asked), POOL):
        question = asked[start : start + POOL]
        cluster = pair_clusters[start : start + POOL, None]
        others = ~np.isin(question * count + pool, known)
        if not others.any(1).all():
            full = question[others.any(1).argmin(), 0]
            raise PlanError(f"question {full} has every source: no negative is left")
        chance = rng.random(others.shape, np.float32)
        same, cosine = groups == cluster, questions[question[:, 0]] @ sources.T
        tiers = (
            (same, chance),
            (adjacent[cluster[:, 0]][:, groups], chance),
            (~same, cosine),
            (~same, chance),
        )
        # a tier may run out of sources: any other source is then used, as tier 4
        spare = _ranked(np.where(others, chance, -np.inf), n_neg, again=True)
        ranked = [
            _ranked(np.where(others & allowed, score, -np.inf), number, again=False)
            for (allowed, score), number in zip(tiers, tier_counts(n_neg), strict=True)
        ]
        found = np.concatenate(ranked, axis=1)
        parts.append((pool[np.where(found < 0, spare, found)], found < 0))
    negatives, missing = (np.concatenate(each) for each in zip(*parts, strict=True))
    return negatives, np.where(missing, 4, np.repeat(TIERS, tier_counts(n_neg)))


def _adjacent(centroids: Vectors) -> npt.NDArray[np.bool_]:
    """Return which clusters are the nearest ones of each cluster, from unit vectors."""
    cosine = centroids @ centroids.T
    np.fill_diagonal(cosine, -np.inf)
    near = np.argsort(-cosine, axis=1, kind="stable")[
        :, : min(ADJACENT_CLUSTERS, len(centroids) - 1)
    ]
    adjacent = np.zeros(cosine.shape, np.bool_)
    np.put_along_axis(adjacent, near, True, axis=1)
    return adjacent


def _ranked(scores: Vectors, count: int, *, again: bool) -> Indices:
    """Return the columns of each row's largest scores that are finite, the largest first.

    If there are fewer, they repeat from the first one; without ``again``, the rest is -1.
    """
    order = np.argsort(-scores, axis=1)
    finite = np.isfinite(scores).sum(axis=1, keepdims=True)
    places = np.arange(count)
    found = np.take_along_axis(order, places % np.maximum(finite, 1), axis=1)
    return found if again else np.where(places < finite, found, -1)
