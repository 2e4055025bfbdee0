"""Synthetic directories: valid, repeatable, and as the format says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    validate_dataset,
)
from penstock.domains.steering.build import mine_negatives, steering_vectors, tier_counts
from penstock.errors import PlanError


def load(directory, name):
    return torch.load(directory / f"{name}.pt")


@settings(max_examples=15)
@given(st.integers(6, 60), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32))
@example(6, 1, 1, 503)
def test_any_directory_built_is_valid(tmp_path_factory, pairs, clusters, n_neg, seed):
    directory = build_steering_directory(
        tmp_path_factory.mktemp("any"),
        pairs=pairs,
        embedding_dim=4,
        clusters=clusters,
        n_neg=n_neg,
        seed=seed,
    )
    validate_dataset(directory).raise_if_any()
    index, negatives = load(directory, "pair_index"), load(directory, "hard_negatives")
    true = {tuple(pair) for pair in index.tolist()}
    for (question, _), row in zip(index.tolist(), negatives.tolist(), strict=True):
        assert not any((question, source) in true for source in row)


def test_the_same_seed_builds_the_same_bytes_and_another_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_steering_directory(tmp_path / name, pairs=40, embedding_dim=4, seed=seed)
    for name in ("question_embs", "hard_negatives", "train_idx", "pair_relevance"):
        a, b, c = (load(tmp_path / d, name) for d in "abc")
        assert torch.equal(a, b)
        assert a.shape != c.shape or not torch.equal(a, c)


def test_steering_vectors_are_what_the_format_says(built):
    question = load(built, "question_embs")[load(built, "pair_index")[:, 0]]
    centroid = load(built, "centroid_embs")[load(built, "pair_cluster_id")]
    towards, named = (load(built, f"steering_{n}") for n in ("centroid", "keyword_weighted"))
    assert torch.allclose(towards.norm(dim=1), torch.ones(120), atol=1e-5)
    assert torch.allclose(named.norm(dim=1), torch.ones(120), atol=1e-5)
    assert torch.allclose(load(built, "steering_residual"), question - centroid, atol=1e-6)
    assert torch.allclose(
        towards, torch.nn.functional.normalize(centroid - question, dim=1), atol=1e-5
    )
    distance = 1 - torch.cosine_similarity(question, centroid)
    assert torch.allclose(load(built, "centroid_distances"), distance, atol=1e-5)
    keywords, ids = load(built, "keyword_embs"), load(built, "pair_keyword_ids")
    mean = torch.nn.functional.normalize(keywords[ids[5]].mean(0), dim=0)
    assert torch.allclose(named[5], mean, atol=1e-5)


def test_tiers_come_in_order_and_number(tmp_path):
    directory = build_steering_directory(tmp_path, pairs=200, embedding_dim=8, n_neg=12, clusters=6)
    tiers, negatives = load(directory, "negative_tiers"), load(directory, "hard_negatives")
    assert tier_counts(12) == (3, 3, 3, 3)
    asked = torch.tensor([1] * 3 + [2] * 3 + [3] * 3 + [4] * 3)
    assert ((tiers == asked) | (tiers == 4)).all()
    assert (tiers == asked).float().mean() > 0.95
    near = torch.cdist(load(directory, "source_embs"), load(directory, "centroid_embs")).argmin(1)
    own = load(directory, "pair_cluster_id")[:, None]
    assert (near[negatives] == own)[tiers == 1].float().mean() > 0.9
    assert (near[negatives] != own)[tiers == 3].float().mean() > 0.9


def test_a_single_cluster_and_a_single_pair_have_vectors_and_negatives():
    one, both = np.eye(2, dtype=np.float32)[:1], np.eye(2, dtype=np.float32)
    found = steering_vectors(one, one, one, [[]])
    assert not found["steering_centroid"].any()  # the question is its centroid: no direction
    assert found["centroid_distances"].tolist() == [0]
    clusters = np.array([0]), np.array([0, 0])
    negatives, tiers = mine_negatives((one, both, one), np.array([[0, 0]]), *clusters, 3, 0)
    assert negatives.tolist() == [[1, 1, 1]] and tiers.tolist() == [[1, 4, 4]]
    with pytest.raises(PlanError, match="question 0 has every source"):
        pairs = np.array([[0, 0], [0, 1]])
        mine_negatives((one, both, one), pairs, np.array([0, 0]), clusters[1], 1, 0)


def test_the_config_is_complete_and_takes_more(tmp_path):
    directory = build_steering_directory(
        tmp_path, pairs=30, embedding_dim=4, config={"curriculum": {"mode": "cosine"}}
    )
    config = json.loads((directory / "config.json").read_text())
    assert config["n_pairs"] == 30 and config["curriculum"] == {"mode": "cosine"}
    assert JASPERSteeringDataset(directory, "train").seed == config["random_seed"] == 42
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        build_steering_directory(tmp_path, config={"curriculum": {"mode": "cosinus"}})


def test_too_few_pairs_for_three_splits_are_refused(tmp_path):
    with pytest.raises(PlanError, match="pairs must be at least 3, got 2"):
        build_steering_directory(tmp_path, pairs=2)
