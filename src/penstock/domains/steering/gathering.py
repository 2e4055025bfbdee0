"""A batch out of the tables: one operation for each tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.domains.steering.tables import SteeringTables
from penstock.order import Indices

STEERING = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")


def gather_batch(
    tables: SteeringTables, rows: Indices, variants: Indices
) -> dict[str, torch.Tensor]:
    """The nine fields of the pairs in these rows, each steered by its variant.

    On the CPU numpy gathers, in this thread: torch's pool of threads is faster by half where all
    cores are idle, and stalls for milliseconds where one is not.
    """
    here = tables.index(rows)
    pairs, negatives = tables.take("pair_index", here), tables.take("hard_negatives", here)
    fields = {
        "question_emb": tables.take("question_embs", pairs[:, 0]),
        "target_source_emb": tables.take("source_embs", pairs[:, 1]),
        "steering": steer(tables, rows, variants),
        "negative_embs": tables.take("source_embs", negatives),
        "cluster_id": tables.take("pair_cluster_id", here),
        "relevance": tables.take("pair_relevance", here),
        "centroid_distance": tables.take("centroid_distances", here),
        "steering_variant": tables.index(variants),
        "negative_tiers": tables.take("negative_tiers", here),
    }
    if tables.on_cpu:
        return {name: torch.from_numpy(field) for name, field in fields.items()}
    return fields


def steer(tables: SteeringTables, rows: Indices, variants: Indices) -> Any:
    """The steering vector of each row in its variant, where the tables are."""
    first = int(variants[0]) if len(variants) else 0
    name = STEERING[first]
    if name is not None and (variants == first).all():
        return tables.take(name, tables.index(rows))
    out = tables.zeros(len(rows))
    for variant, name in enumerate(STEERING):
        where = np.flatnonzero(variants == variant)
        if name is not None and where.size:
            out[tables.index(where)] = tables.take(name, tables.index(rows[where]))
    return out
