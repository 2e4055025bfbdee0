"""Which chunk sizes there are: given, found in loaders or a data module, or inferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from penstock.extras import optional
from penstock.integrations.lightning.chunk_replacing import batches_of, samples_of
from penstock.integrations.lightning.source import knows_its_place
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_report import chunks_in_words, length_in_words, scores_in_words
from penstock.loaders.chunk_settings import ChunkSettings

sized_len = optional("lightning.fabric.utilities.data", extra="lightning").sized_len


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Batches a chunk has on this rank.

    Args:
        explicit_train: Given to the callback, the data module or the training loader.
        explicit_val: The same of validation.
        train: That, or the whole of its partition; None where neither is known.
        val: The same of validation.
    """

    explicit_train: int | None = None
    explicit_val: int | None = None
    train: int | None = None
    val: int | None = None

    @classmethod
    def detect(
        cls, settings: ChunkSettings, data: Any, train: Sequence[Any], val: Sequence[Any]
    ) -> Self:
        """What is said: by the settings, else by a data module, else by the loaders."""
        sizes = []
        for kind, loaders in (("train", train), ("val", val)):
            size = getattr(settings, f"{kind}_chunk_size")
            if size is None:
                size = getattr(data, f"explicit_{kind}_chunk_size", None)
            if size is None and not getattr(data, "use_chunked_training", False):
                size = max(filter(None, map(chunk_of, loaders)), default=None)
            sizes.append(size)
        return cls(*sizes, *sizes)

    @property
    def enabled(self) -> bool:
        """Is there any?"""
        return self.explicit_train is not None or self.explicit_val is not None

    def inferred(self, train: Sequence[Any], val: Sequence[Any]) -> Self:
        """With one of them given, the other is the whole of its partition."""
        if not self.enabled:
            return self
        whole_train = max(filter(None, map(whole_of, train)), default=None)
        whole_val = max(filter(None, map(whole_of, val)), default=None)
        return replace(
            self,
            train=whole_train if self.explicit_train is None else self.explicit_train,
            val=whole_val if self.explicit_val is None else self.explicit_val,
        )


def chunk_of(loader: Any) -> int | None:
    """The chunk size of a loader of Penstock."""
    return loader.position.chunk if knows_its_place(loader) else None


def whole_of(loader: Any) -> int | None:
    """Batches of the whole partition behind a loader, on this rank; None where nobody knows."""
    if not knows_its_place(loader):
        length: int | None = sized_len(loader)
        return length
    steps = loader.position.plan.steps
    samples = samples_of(loader) if isinstance(loader, ChunkedDataLoader) else steps.size
    return batches_of(samples, steps.batch, steps.world)


def block_of_words(
    sizes: ChunkSizes,
    loader: Loader | None,
    validation: Sequence[Any],
    ignored: Mapping[str, str],
    *,
    epochs: int | None,
    settings: ChunkSettings,
) -> str:
    """One readable block: what a chunk is, what a validation is, how long it will be."""
    lines: list[str | None] = []
    if loader is not None:
        plan = loader.position.plan
        lines += [
            chunks_in_words(plan.steps, ignored.get("limit_train_batches")),
            f"order: {plan.order.kind}, seed {plan.order.seed}",
        ]
    else:
        size = sizes.train if sizes.train is not None else "an unknown number of"
        lines.append(f"chunked: training is left to its own loader, {size} batches an epoch")
    validation = [each for each in validation if sized_len(each) != 0]
    if validation:
        whole = max(filter(None, map(whole_of, validation)), default=None)
        moves = any(knows_its_place(each) and not each.position.evaluation for each in validation)
        how = "others each time, all of them in turns" if moves else "the same ones each time"
        lines.append(scores_in_words(sizes.val, whole, how, ignored.get("limit_val_batches")))
    else:
        lines.append("validation: none")
    steps = None if loader is None else loader.position.plan.steps
    lines.append(length_in_words(epochs, settings.passes, steps))
    return "\n".join(line for line in lines if line)
