"""Builds steering dataset directories: from embeddings, or small synthetic ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.arguments import LARGEST_SEED, a_path, mapping, real_number, shown, whole_number
from penstock.atomic_files import replace_file, replace_text
from penstock.domains.steering.config import parse_config
from penstock.domains.steering.layout import CONFIG, SPLITS, VARIANTS
from penstock.domains.steering.negatives import Corpus, Vectors, mine_negatives, unit_rows
from penstock.domains.steering.splits import split_by_question
from penstock.errors import PlanError
from penstock.order import Indices, derive_key

SHARES = (0.8, 0.1, 0.1)  # of the questions: train, val, test
MOST = 10_000_000  # of anything: tables are built in memory


def build_steering_directory(
    directory: str | PathLike[str],
    *,
    pairs: int = 100,
    embedding_dim: int = 32,
    n_neg: int = 4,
    clusters: int = 5,
    keywords: int = 30,
    shares: tuple[float, float, float] = SHARES,
    seed: int = 42,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A complete synthetic directory, the same for the same arguments, for tests and examples.

    Sources and keywords lie around the centroids of their clusters, each question around the source
    that answers it; there are about two pairs for a question. Steering vectors, distances,
    negatives and splits are computed from them as the format says, and `validate_dataset` finds
    nothing in it.

    Args:
        directory: Where; created if it does not exist.
        pairs: Pairs of a question and a source.
        embedding_dim: Of every vector.
        n_neg: Negatives of a pair.
        clusters: Clusters of sources.
        keywords: Keywords, spread over the clusters.
        shares: Of the questions that go to train, val and test; at least one goes to each.
        seed: Of everything that is drawn.
        config: Further entries of config.json, a "curriculum" for instance.
    """
    folder = a_path("directory", directory)
    counts = {
        "pairs": (pairs, len(SPLITS)),
        "embedding_dim": (embedding_dim, 1),
        "n_neg": (n_neg, 1),
        "clusters": (clusters, 1),
        "keywords": (keywords, 1),
    }
    for name, (count, least) in counts.items():
        whole_number(name, count, minimum=least, maximum=MOST)
    whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
    _check_shares(shares)
    given = {} if config is None else mapping("config", config)
    rng = np.random.default_rng(derive_key(seed, "directory"))
    questions = max(len(SPLITS), pairs // 2)
    sources = max(clusters + 1, pairs * 4 // 5, pairs - questions + 2)  # no question has them all
    centroids = _around(np.zeros((clusters, embedding_dim), np.float32), 1.0, rng)
    of_source, of_keyword = (_spread(clusters, n, rng) for n in (sources, keywords))
    source_embs = _around(centroids[of_source], 0.5, rng)
    answer = _spread(sources, questions, rng)
    further = rng.integers(questions, size=pairs - questions)
    asked = np.concatenate([np.arange(questions), further])
    answers = [answer, _in_cluster(of_source[answer[further]], of_source, rng)]
    corpus = Corpus(
        questions=_around(source_embs[answer], 0.5, rng),
        sources=source_embs,
        centroids=centroids,
        pairs=np.stack([asked, np.concatenate(answers)], 1),
        pair_clusters=of_source[answer[asked]],
        source_clusters=of_source,
    )
    words = [np.flatnonzero(of_keyword == c)[:3].tolist() for c in range(clusters)]
    tables = steering_tables(
        corpus,
        keywords=_around(centroids[of_keyword], 0.5, rng),
        keyword_ids=[words[c] for c in corpus.pair_clusters.tolist()],
        relevance=rng.random(pairs, np.float32),
        n_neg=n_neg,
        seed=seed,
    )
    tables |= split_by_question(corpus.pairs[:, 0], shares, seed)
    return write_directory(folder, tables, seed, shares, given)


def steering_tables(
    corpus: Corpus,
    *,
    keywords: Vectors,
    keyword_ids: list[list[int]],
    relevance: Vectors,
    n_neg: int,
    seed: int,
) -> dict[str, Any]:
    """All tables but the splits, by name: steering vectors, distances and negatives computed.

    The centroid vector is the unit vector from the question to its centroid, the keyword vector
    the unit mean of the pair's keywords (the centroid vector where it has none), the residual
    the question less its centroid, as it is.
    """
    question = corpus.questions[corpus.pairs[:, 0]]
    centroid = corpus.centroids[corpus.pair_clusters]
    towards = unit_rows(centroid - question)
    means = [keywords[ids].mean(0) if ids else None for ids in keyword_ids]
    named = np.stack([t if m is None else m for m, t in zip(means, towards, strict=True)])
    alike = (unit_rows(question) * unit_rows(centroid)).sum(1)
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
        "steering_keyword_weighted": unit_rows(named),
        "steering_residual": question - centroid,
        "centroid_distances": np.clip(1 - alike, 0, 2),
    }
    tables: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tables | {"pair_keyword_ids": keyword_ids}


def write_directory(
    directory: Path,
    tables: Mapping[str, Any],
    seed: int,
    shares: tuple[float, float, float],
    config: Mapping[str, Any],
) -> Path:
    """Write tables and the config that fits them."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "embedding_dim": tables["question_embs"].shape[1],
        "n_neg": tables["hard_negatives"].shape[1],
        "split_ratios": list(shares),
        "steering_probabilities": dict.fromkeys(VARIANTS, 0.25),
        "n_pairs": len(tables["pair_index"]),
        "n_questions": len(tables["question_embs"]),
        "n_sources": len(tables["source_embs"]),
        "n_keywords": len(tables["keyword_embs"]),
        "n_clusters": len(tables["centroid_embs"]),
        "storage_format": "pt",
        "random_seed": seed,
    } | dict(config)
    parse_config(settings)  # refuses a config that cannot be read again
    for name, value in tables.items():
        replace_file(directory / f"{name}.pt", partial(torch.save, value))
    replace_text(directory / CONFIG, json.dumps(settings, indent=2))  # last: all of it is there
    return directory


def _check_shares(shares: Any) -> None:
    if not isinstance(shares, tuple | list) or len(shares) != len(SPLITS):
        raise PlanError(f"shares must be three numbers, got {shown(shares)}")
    if sum(real_number("shares", each, minimum=0, maximum=1) for each in shares) > 1 + 1e-6:
        raise PlanError(f"shares must sum to at most 1, got {shown(shares)}")


def _around(centres: Vectors, spread: float, rng: np.random.Generator) -> Vectors:
    noise = rng.standard_normal(centres.shape, np.float32) * np.float32(spread)
    return unit_rows(centres + noise / np.float32(np.sqrt(centres.shape[1])))


def _spread(groups: int, count: int, rng: np.random.Generator) -> Indices:
    """A group for each, as evenly as can be."""
    return rng.permutation(np.arange(count) % groups)


def _in_cluster(clusters: Indices, of_source: Indices, rng: np.random.Generator) -> Indices:
    """A source of each of these clusters."""
    by_cluster = np.argsort(of_source, kind="stable")
    sizes = np.bincount(of_source)
    starts = np.cumsum(sizes) - sizes
    place = (rng.random(len(clusters)) * sizes[clusters]).astype(np.int64)
    return np.take(by_cluster, starts[clusters] + place)
