"""What a batch of steering pairs should be."""

from __future__ import annotations

import torch

from penstock.checks import BatchSchema, TensorSpec
from penstock.domains.steering.layout import ROUNDING, VARIANTS


def batch_schema(
    embedding_dim: int | None = None, n_neg: int | None = None, clusters: int | None = None
) -> BatchSchema:
    """The nine fields of a batch, no more; sizes that are not given may be any, but the same.

    >>> len(batch_schema().fields)
    9
    """
    vectors = TensorSpec(("batch", "dim"), torch.float32)
    cluster_high = None if clusters is None else clusters - 1
    distance = (-ROUNDING, 2 + ROUNDING)
    sizes = {"dim": embedding_dim, "negatives": n_neg}
    return BatchSchema(
        {
            "question_emb": vectors,
            "target_source_emb": vectors,
            "steering": vectors,
            "negative_embs": TensorSpec(("batch", "negatives", "dim"), torch.float32),
            "cluster_id": TensorSpec(("batch",), torch.int64, 0, cluster_high),
            "relevance": TensorSpec(("batch",), torch.float32, 0, 1),
            "centroid_distance": TensorSpec(("batch",), torch.float32, *distance),
            "steering_variant": TensorSpec(("batch",), torch.int64, 0, len(VARIANTS) - 1),
            "negative_tiers": TensorSpec(("batch", "negatives"), torch.int64, 1, 4),
        },
        sizes={name: size for name, size in sizes.items() if size is not None},
        exact=True,
    )
