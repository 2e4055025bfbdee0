"""A batch out of the tables: one operation for each tensor."""

from __future__ import annotations

import numpy as np
import torch

from penstock.datasets.steering.tables import SteeringTables
from penstock.order import Indices

STEERING = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")


def gather_batch(
    tables: SteeringTables, rows: torch.Tensor, variants: Indices
) -> dict[str, torch.Tensor]:
    """The nine fields of the pairs in these rows, each steered by its variant."""
    pairs, negatives = (take(tables[name], rows) for name in ("pair_index", "hard_negatives"))
    sources = tables["source_embs"]
    return {
        "question_emb": take(tables["question_embs"], pairs[:, 0]),
        "target_source_emb": take(sources, pairs[:, 1]),
        "steering": steer(tables, rows, variants),
        "negative_embs": take(sources, negatives),
        "cluster_id": take(tables["pair_cluster_id"], rows),
        "relevance": take(tables["pair_relevance"], rows),
        "centroid_distance": take(tables["centroid_distances"], rows),
        "steering_variant": torch.from_numpy(variants).to(rows.device),
        "negative_tiers": take(tables["negative_tiers"], rows),
    }


def take(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a table, in the shape of ``rows``.

    >>> take(torch.tensor([5, 6, 7]), torch.tensor([[2, 0]]))
    tensor([[7, 5]])
    """
    if table.device.type == "cpu":
        # in this thread: torch's pool is faster by half on idle cores, and stalls on busy ones
        return torch.from_numpy(np.take(table.numpy(), rows.numpy(), axis=0))
    flat = table.index_select(0, rows.reshape(-1))
    return flat.view(*rows.shape, *table.shape[1:])


def steer(tables: SteeringTables, rows: torch.Tensor, variants: Indices) -> torch.Tensor:
    """The steering vector of each row in its variant, on the device of the tables."""
    first = int(variants[0]) if len(variants) else 0
    name = STEERING[first]
    if name is not None and (variants == first).all():
        return take(tables[name], rows)
    vectors = tables["steering_centroid"]
    out = vectors.new_zeros((len(rows), vectors.shape[1]))
    for variant, name in enumerate(STEERING):
        where = np.flatnonzero(variants == variant)
        if name is not None and where.size:
            at = torch.from_numpy(where).to(rows.device)
            _put(out, at, take(tables[name], rows[at]))
    return out


def _put(out: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    if out.device.type == "cpu":
        out.numpy()[rows.numpy()] = values.numpy()
    else:
        out.index_copy_(0, rows, values)
