"""The options of training in chunks, declared once.

`ChunkedTraining`, `SequenceDataset`, the section ``train`` of a configuration and `penstock plan`
all take their names, defaults, checks and arithmetic from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple, Self

from penstock.arguments import LARGEST_SEED, choice, flag, real_number, whole_number
from penstock.errors import ConfigError, PlanError
from penstock.loaders.chunk_schedule import chunk_schedule
from penstock.loaders.plan_settings import ORDERS, order_named
from penstock.order import Order


class ChunkOptionError(PlanError, ConfigError):
    """An option of chunks is invalid: an argument of a loader, and a key of a configuration."""


@dataclass(frozen=True, slots=True)
class ValidationInterval:
    """When to validate: after at least ``min`` chunks, at the latest after ``max``.

    Between these, a validation is due when the mean training loss of a chunk has changed by
    ``loss_change``, as a share of what it was at the last validation.

    Args:
        min: The fewest chunks between two validations.
        max: The most.
        loss_change: The relative change of the loss, such as 0.05; None for ``max`` chunks always.

    >>> interval = ValidationInterval(1, 4, loss_change=0.1)
    >>> [interval.due(since, loss, 2.0) for since, loss in [(1, 1.9), (1, 1.7), (4, 2.0)]]
    [False, True, True]
    """

    min: int
    max: int
    loss_change: float | None = None

    def __post_init__(self) -> None:
        whole_number("min", self.min, minimum=1, unit="chunk")
        whole_number("max", self.max, minimum=self.min, unit="chunk")
        if self.loss_change is not None:
            real_number("loss_change", self.loss_change, minimum=0)

    def due(self, since: int, loss: float | None, before: float | None) -> bool:
        """Return whether to validate after a chunk.

        Args:
            since: Chunks since the last validation, this one included.
            loss: The mean training loss of this chunk; None if it is unknown.
            before: The loss of the chunk that was validated last; None if there is none.
        """
        if since >= self.max or since < self.min or self.loss_change is None:
            return since >= self.max
        if loss is None or before is None or not math.isfinite(loss + before):
            return True
        return abs(loss - before) >= self.loss_change * abs(before)


def validation_interval(name: str, value: Any) -> ValidationInterval | None:
    """Return the interval for a number of chunks or a ``{min, max, loss_change}``."""
    if value is None or isinstance(value, ValidationInterval):
        return value
    if isinstance(value, Mapping) and {*value} == {"min", "max", "loss_change"}:
        return ValidationInterval(**value)
    if isinstance(value, Mapping | str | list | tuple):
        raise PlanError(
            f"{name} must be a whole number of chunks, or {{min, max, loss_change}}, got {value!r}"
        )
    chunks = whole_number(name, value, minimum=1, unit="chunk")
    return ValidationInterval(chunks, chunks)


def skipped_positions(name: str, value: Any) -> tuple[tuple[int, int, int], ...] | None:
    """Return ranges of positions for a list of ``[epoch, start, stop]``."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, list | tuple) and len(each) == 3 for each in value
    ):
        raise PlanError(f"{name} must be a list of [epoch, start, stop], got {value!r}")
    for epoch, start, stop in value:
        whole_number(f"epoch of {name}", epoch, minimum=0)
        start = whole_number(f"start of {name}", start, minimum=0)
        whole_number(f"stop of {name}", stop, minimum=start)
    return tuple((epoch, start, stop) for epoch, start, stop in value)


class ChunkOption(NamedTuple):
    """One option: its names, its default and the values it accepts.

    Args:
        name: The field of `ChunkSettings`, and the argument of `ChunkedTraining`.
        key: The key under ``train`` in a configuration, and the argument of `SequenceDataset`.
        default: The value if none is given.
        parse: Called with a name for messages and a value; returns the value as it is used.
    """

    name: str
    key: str
    default: Any
    parse: Callable[[str, Any], Any]

    def check(self, value: Any, name: str | None = None) -> Any:
        """Return a value as it is used; raise `ChunkOptionError` for one that is not accepted.

        Args:
            value: The value.
            name: The name to use in the message; the option's own by default.
        """
        try:
            return self.parse(name or self.name, value)
        except PlanError as error:
            raise ChunkOptionError(str(error)) from error


def _option(default: Any, parse: Callable[[str, Any], Any], key: str | None = None) -> Any:
    return field(default=default, metadata={"parse": parse, "key": key})


def _number(**bounds: Any) -> Callable[[str, Any], int | None]:
    return lambda name, value: None if value is None else whole_number(name, value, **bounds)


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """Sizes, order and end of training in chunks; checked when created.

    Args:
        train_chunk_size: Batches of this rank between two validations, or sizes that change; see
            `chunk_schedule`. None if not given.
        val_chunk_size: Batches of this rank in a validation; None if not given.
        seed: Seed of the order and of the choice of validation samples. None draws one and logs it.
        shuffle: False means ``order="sequential"``.
        order: ``"shuffled"``, ``"sequential"``, or ``"block"``: runs of neighbouring samples, for
            data that is slow to read at random.
        val_cycle: Validate on the next chunk each time, until all samples were used.
        cycle: False ends training after one pass over the dataset.
        max_passes: Training ends after this number of passes.
        start_chunk: The first chunk, counted from 0 over all passes.
        validate_every: Chunks between two validations, or ``{"min", "max", "loss_change"}``; see
            `ValidationInterval`. None validates after every chunk.
        skip: Positions to leave out, each ``[epoch, start, stop]``; see `Loader.skip`.

    >>> ChunkSettings.of_config({"train": {"train_chunk_size": 2000, "chunk_seed": 7}}).seed
    7
    >>> [option.key for option in ChunkSettings.options()][:4]
    ['train_chunk_size', 'val_chunk_size', 'chunk_seed', 'chunk_shuffle']
    """

    train_chunk_size: Any = _option(None, lambda n, v: chunk_schedule(v, n))  # noqa: RUF009 - a field
    val_chunk_size: int | None = _option(None, _number(minimum=1, unit="batch"))
    seed: int | None = _option(42, _number(minimum=0, maximum=LARGEST_SEED), "chunk_seed")
    shuffle: bool = _option(True, flag, "chunk_shuffle")
    order: str = _option("shuffled", partial(choice, allowed=ORDERS), "chunk_order")
    val_cycle: bool = _option(False, flag)
    cycle: bool = _option(True, flag)
    max_passes: int | None = _option(None, _number(minimum=1, unit="pass"))
    start_chunk: int | None = _option(None, _number(minimum=0))
    validate_every: Any = _option(None, validation_interval)  # noqa: RUF009
    skip: Any = _option(None, skipped_positions)  # noqa: RUF009

    def __post_init__(self) -> None:
        for option in self.options():
            object.__setattr__(self, option.name, option.check(getattr(self, option.name)))
        if not self.cycle and self.max_passes not in (None, 1):
            raise ConfigError(
                f"cycle=False is one pass, but max_passes={self.max_passes!r}: leave one out"
            )

    @staticmethod
    @cache
    def options() -> tuple[ChunkOption, ...]:
        """Return the description of every option, in the order of the fields."""
        return tuple(
            ChunkOption(
                each.name, each.metadata["key"] or each.name, each.default, each.metadata["parse"]
            )
            for each in fields(ChunkSettings)
        )

    @classmethod
    def from_keys(cls, **values: Any) -> Self:
        """Return the settings for values given by their configuration keys.

        Args:
            **values: ``chunk_seed=7``, ``chunk_order="block"``, ...; messages use these names.
        """
        given = [option for option in cls.options() if option.key in values]
        return cls(**{each.name: each.check(values[each.key], each.key) for each in given})

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Return the settings in the ``train`` section of a configuration; other keys are ignored.

        Args:
            config: A mapping, or an object with attributes, that has ``train``.
        """
        train = _item(config, "train")
        if train is None:
            raise ConfigError(
                f"this {type(config).__name__} is not a configuration with a section 'train': "
                "pass train_chunk_size= and val_chunk_size= instead"
            )
        found = {each.key: _item(train, each.key, each.default) for each in cls.options()}
        return cls.from_keys(**found)

    @property
    def passes(self) -> int | None:
        """Passes over the dataset after which training ends; None if nothing here ends it."""
        return self.max_passes if self.cycle else 1

    @property
    def sized(self) -> bool:
        """Whether a chunk size is given."""
        return self.train_chunk_size is not None or self.val_chunk_size is not None

    @property
    def order_name(self) -> str:
        """The order to use, with ``shuffle`` taken into account."""
        return self.order if self.shuffle else "sequential"

    def order_of(self, size: int, seed: int) -> Order:
        """Return the order of ``size`` samples for ``seed``."""
        return order_named(self.order_name, size, seed)


def _item(section: Any, name: str, default: Any = None) -> Any:
    """Return an item of a mapping, or an attribute of an object."""
    get = getattr(section, "get", None)
    return get(name, default) if callable(get) else getattr(section, name, default)


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Batches of a chunk on this rank, as given and as used.

    Args:
        explicit_train: The training chunk size that was given; None if none was.
        explicit_val: The validation chunk size that was given; None if none was.
        train: The training chunk size in use; None if unknown.
        val: The validation chunk size in use; None if unknown.

    >>> ChunkSizes.given(train=200, val=None).infer(lambda: 1000, lambda: 31)
    ChunkSizes(explicit_train=200, explicit_val=None, train=200, val=31)
    """

    explicit_train: int | None = None
    explicit_val: int | None = None
    train: int | None = None
    val: int | None = None

    @classmethod
    def given(cls, train: int | None, val: int | None) -> Self:
        """Return the sizes before anything is inferred."""
        return cls(train, val, train, val)

    @property
    def enabled(self) -> bool:
        """Whether training is chunked: one of the sizes is given."""
        return self.explicit_train is not None or self.explicit_val is not None

    def infer(
        self, train_batches: Callable[[], int | None], val_batches: Callable[[], int | None]
    ) -> Self:
        """Return the sizes with a missing one replaced by its whole partition.

        Without any given size, both stay None.

        Args:
            train_batches: Returns the batches of the whole training partition; None if unknown.
            val_batches: The same for validation.
        """
        if not self.enabled:
            return self
        train = train_batches() if self.explicit_train is None else self.train
        return replace(
            self, train=train, val=val_batches() if self.explicit_val is None else self.val
        )


def partition_batches(samples: int, batch_size: int | None, world: int) -> int:
    """Return the batches of a whole partition on each of ``world`` ranks.

    >>> partition_batches(100, 32, world=1)
    4
    """
    return -(-samples // ((batch_size or 1) * world))
