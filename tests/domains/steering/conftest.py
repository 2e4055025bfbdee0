"""Steering directories to test on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.domains.steering import build_steering_directory

Make = Callable[..., Path]

CURRICULUM = {"zero_prob_start": 0.5, "zero_prob_end": 0.1, "epochs_total": 100}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """100 random pairs, 70 / 15 / 15: as others wrote such directories, not as our builder does."""
    draw = torch.Generator().manual_seed(0)
    directory = tmp_path / "plain"
    directory.mkdir()

    def vectors(count: int) -> torch.Tensor:
        return torch.randn(count, 64, generator=draw)

    def rows(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    tables: dict[str, Any] = {
        "question_embs": vectors(50),
        "source_embs": vectors(80),
        "keyword_embs": vectors(30),
        "centroid_embs": vectors(5),
        "pair_index": torch.stack([rows(50, 100), rows(80, 100)], 1),
        "pair_cluster_id": rows(5, 100),
        "pair_relevance": torch.rand(100, generator=draw),
        "pair_keyword_ids": ([[0, 1, 2], [1, 3], []] * 34)[:100],
        "hard_negatives": rows(80, 100, 4),
        "negative_tiers": rows(5, 100, 4, low=1),
        "steering_centroid": vectors(100),
        "steering_keyword_weighted": vectors(100),
        "steering_residual": vectors(100),
        "centroid_distances": torch.rand(100, generator=draw) * 2,
        "train_idx": torch.arange(70),
        "val_idx": torch.arange(70, 85),
        "test_idx": torch.arange(85, 100),
    }
    for name, value in tables.items():
        torch.save(value, directory / f"{name}.pt")
    config = {
        "embedding_dim": 64,
        "n_neg": 4,
        "n_pairs": 100,
        "steering_probabilities": dict.fromkeys(("zero", "centroid", "keyword", "residual"), 0.25),
        "curriculum": CURRICULUM,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A valid directory of our builder."""
    return build_steering_directory(
        tmp_path / "built", pairs=120, embedding_dim=16, config={"curriculum": CURRICULUM}
    )
