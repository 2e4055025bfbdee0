"""What may be said about training in chunks: in a call, or in a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from penstock.arguments import LARGEST_INTEGER, choice, flag, whole_number
from penstock.errors import ConfigError
from penstock.loaders.sampler import ORDERS, order_named
from penstock.order import Order

KEYS: Final = {  # under `train:`; those named otherwise than here
    "chunk_seed": "seed",
    "chunk_shuffle": "shuffle",
    "chunk_order": "order",
}


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """Sizes, order and end of training in chunks, checked.

    Args:
        train_chunk_size: Batches between two validations; None: not said here.
        val_chunk_size: Batches of a validation; None: not said here.
        seed: Of the order, and of the choice of validation samples; None draws one and logs it.
        shuffle: False is ``order="sequential"``.
        order: ``"shuffled"``, ``"sequential"``, or ``"block"``: runs of samples that lie together,
            for data slow to read at random.
        val_cycle: Validate on another chunk each time, until all samples were there.
        cycle: False ends training after one pass.
        max_passes: Training ends after so many.
        start_chunk: The chunk to begin with, counted from 0 over all passes.

    >>> ChunkSettings.of_config({"train": {"train_chunk_size": 2000, "chunk_seed": 7}}).seed
    7
    """

    train_chunk_size: int | None = None
    val_chunk_size: int | None = None
    seed: int | None = 42
    shuffle: bool = True
    order: str = "shuffled"
    val_cycle: bool = False
    cycle: bool = True
    max_passes: int | None = None
    start_chunk: int | None = None

    def __post_init__(self) -> None:
        for name, least, unit in (
            ("train_chunk_size", 1, "batch"),
            ("val_chunk_size", 1, "batch"),
            ("max_passes", 1, "pass"),
            ("start_chunk", 0, ""),
            ("seed", 0, ""),
        ):
            value, most = getattr(self, name), (1 << 64) - 1 if name == "seed" else LARGEST_INTEGER
            if value is not None:
                whole_number(name, value, minimum=least, maximum=most, unit=unit, error=ConfigError)
        for name in ("shuffle", "val_cycle", "cycle"):
            flag(name, getattr(self, name), error=ConfigError)
        choice("order", self.order, ORDERS, error=ConfigError)
        if not self.cycle and self.max_passes not in (None, 1):
            raise ConfigError(
                f"cycle=False is one pass, but max_passes={self.max_passes!r}: leave one out"
            )

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """What the ``train`` section of a configuration says; its other keys are not ours."""
        train = (
            config.get("train") if isinstance(config, Mapping) else getattr(config, "train", None)
        )
        if train is None:
            raise ConfigError(
                f"a configuration has a section 'train', this {type(config).__name__} has none: "
                "give train_chunk_size= and val_chunk_size= instead"
            )
        names = {field.name: field.name for field in fields(cls)}
        names |= {ours: theirs for theirs, ours in KEYS.items()}
        missing = object()
        found = {ours: _value(train, theirs, missing) for ours, theirs in names.items()}
        return cls(**{name: value for name, value in found.items() if value is not missing})

    @property
    def passes(self) -> int | None:
        """Passes of the dataset that training ends after; None: others decide."""
        return self.max_passes if self.cycle else 1

    @property
    def sized(self) -> bool:
        """Is a chunk size given?"""
        return self.train_chunk_size is not None or self.val_chunk_size is not None

    def order_of(self, size: int, seed: int) -> Order:
        """The order of so many samples."""
        return order_named(self.order if self.shuffle else "sequential", size, seed)


def _value(section: Any, name: str, missing: object) -> Any:
    get = getattr(section, "get", None)
    return get(name, missing) if callable(get) else getattr(section, name, missing)
