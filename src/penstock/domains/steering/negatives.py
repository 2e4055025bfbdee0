"""Hard negatives in four tiers, and the tier of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.order import Indices, derive_key

Vectors = npt.NDArray[np.float32]

TIERS = (1, 2, 3, 4)  # same cluster, adjacent cluster, most like the question, any other cluster
ADJACENT_CLUSTERS = 3
POOL = 2048  # sources looked through for the third tier; all of them where there are fewer
ATTEMPTS = 16  # draws of a source that is not a true one, before all of them are listed


class Corpus(NamedTuple):
    """What negatives are mined from."""

    questions: Vectors
    sources: Vectors
    centroids: Vectors
    pairs: Indices  # rows of (question, source)
    pair_clusters: Indices
    source_clusters: Indices


def tier_counts(n_neg: int) -> tuple[int, ...]:
    """Negatives of each tier: equal parts, the rest to the first ones.

    >>> tier_counts(8), tier_counts(6)
    ((2, 2, 2, 2), (2, 2, 1, 1))
    """
    each, more = divmod(n_neg, len(TIERS))
    return tuple(each + (tier <= more) for tier in TIERS)


def mine_negatives(corpus: Corpus, n_neg: int, seed: int) -> tuple[Indices, Indices]:
    """Negatives of each pair and their tiers, in tier order; the same for the same seed.

    No true source of a pair's question is ever among its negatives. What a tier cannot give is
    drawn from all other sources, as tier 4.
    """
    if len(corpus.sources) < 2:
        raise PlanError("negatives need at least 2 sources, got 1")
    rng = np.random.default_rng(derive_key(seed, "negatives"))
    true = _TrueSources(corpus)
    columns, tiers = [], []
    for tier, count in zip(TIERS, tier_counts(n_neg), strict=True):
        ranked = _most_alike(corpus, true, count, rng) if tier == 3 and count else None
        for place in range(count):
            drawn = _draw(corpus, tier, rng) if ranked is None else ranked[:, place]
            for _ in range(ATTEMPTS if ranked is None else 0):
                if not (wrong := true.has(drawn)).any():
                    break
                drawn = np.where(wrong, _draw(corpus, tier, rng), drawn)
            labels = np.full(len(drawn), tier)
            missing = np.flatnonzero(true.has(drawn))
            drawn[missing], labels[missing] = true.others(missing, rng), 4
            columns.append(drawn)
            tiers.append(labels)
    return np.stack(columns, 1), np.stack(tiers, 1)


class _TrueSources:
    """Which sources belong to the question of each pair."""

    def __init__(self, corpus: Corpus) -> None:
        self._questions, self._count = corpus.pairs[:, 0], len(corpus.sources)
        self._known = np.unique(self._questions * self._count + corpus.pairs[:, 1])

    def has(self, drawn: Indices) -> npt.NDArray[np.bool_]:
        """Is what was drawn for each pair (below zero: nothing) no negative of it?"""
        keys = self._questions * self._count + drawn
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found: npt.NDArray[np.bool_] = (self._known[at] == keys) | (drawn < 0)
        return found

    def others(self, pairs: Indices, rng: np.random.Generator) -> Indices:
        """A source for each of these pairs that is none of its question's."""
        chosen = np.empty(len(pairs), np.int64)
        for i, pair in enumerate(pairs.tolist()):
            question = self._questions[pair]
            begin = np.searchsorted(self._known, question * self._count)
            end = np.searchsorted(self._known, (question + 1) * self._count)
            rest = np.setdiff1d(np.arange(self._count), self._known[begin:end] % self._count)
            if not rest.size:
                raise PlanError(f"question {question} has every source: no negative is left")
            chosen[i] = rng.choice(rest)
        return chosen


def _draw(corpus: Corpus, tier: int, rng: np.random.Generator) -> Indices:
    """A random source of the tier for each pair; -1 where the tier has none."""
    clusters = corpus.pair_clusters
    if tier == 2:
        near = _adjacent(corpus.centroids)
        if not near.shape[1]:
            return np.full(len(clusters), -1)
        clusters = near[clusters, rng.integers(near.shape[1], size=len(clusters))]
    by_cluster = np.argsort(corpus.source_clusters, kind="stable")
    sizes = np.bincount(corpus.source_clusters, minlength=len(corpus.centroids))
    starts = np.cumsum(sizes) - sizes
    if tier == 4:  # a place among the sources, leaping over the cluster's own
        inside, free = sizes[clusters], len(corpus.sources) - sizes[clusters]
        place = (rng.random(len(clusters)) * free).astype(np.int64)
        place += np.where(place >= starts[clusters], inside, 0)
        return np.where(free > 0, by_cluster[np.minimum(place, len(by_cluster) - 1)], -1)
    place = starts[clusters] + (rng.random(len(clusters)) * sizes[clusters]).astype(np.int64)
    found = by_cluster[np.minimum(place, len(by_cluster) - 1)]
    return np.where(sizes[clusters] > 0, found, -1)


def _adjacent(centroids: Vectors) -> Indices:
    """The nearest other clusters of each, by cosine."""
    unit = unit_rows(centroids)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1, kind="stable")[:, : min(ADJACENT_CLUSTERS, len(unit) - 1)]


def _most_alike(
    corpus: Corpus, true: _TrueSources, count: int, rng: np.random.Generator
) -> Indices:
    """The sources outside of each pair's cluster that are most like its question."""
    pool = np.arange(len(corpus.sources))
    if len(pool) > POOL:
        pool = np.sort(rng.choice(pool, POOL, replace=False))
    sources, questions = unit_rows(corpus.sources[pool]), unit_rows(corpus.questions)
    best = np.full((len(corpus.pairs), count), -1)
    for start in range(0, len(best), POOL):
        part = slice(start, start + POOL)
        alike = questions[corpus.pairs[part, 0]] @ sources.T
        inside = corpus.source_clusters[pool] == corpus.pair_clusters[part, None]
        alike[inside] = -np.inf
        top = _largest(alike, min(count + len(TIERS), len(pool)))  # some may be true sources
        best[part] = _first_allowed(top, pool, alike, corpus.pairs, true, part, count)
    return best


def _largest(values: Vectors, count: int) -> Indices:
    """Columns of the largest values of each row, the largest first."""
    some = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, order, 1)


def _first_allowed(
    top: Indices,
    pool: Indices,
    alike: Vectors,
    pairs: Indices,
    true: _TrueSources,
    part: slice,
    count: int,
) -> Indices:
    found = np.where(np.isfinite(np.take_along_axis(alike, top, 1)), pool[top], -1)
    for column in range(found.shape[1]):
        whole = np.full(len(pairs), -1)
        whole[part] = found[:, column]
        found[true.has(whole)[part], column] = -1
    order = np.argsort(found < 0, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(found, order, 1)
    return np.pad(chosen, ((0, 0), (0, count - chosen.shape[1])), constant_values=-1)


def unit_rows(vectors: Vectors) -> Vectors:
    """Each row divided by its length; zeros stay zeros.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = np.where(lengths > 1e-8, vectors / np.maximum(lengths, 1e-8), 0)
    return unit.astype(np.float32)
