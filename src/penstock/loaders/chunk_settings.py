"""The options of training in chunks, declared once.

`ChunkedTraining`, `SequenceDataset`, the section ``train`` of a configuration and `penstock plan`
all take their names, defaults, checks and arithmetic from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final, Self

from penstock.arguments import LARGEST_INTEGER, choice, flag, real_number, whole_number
from penstock.errors import ConfigError, PlanError
from penstock.loaders.chunk_schedule import chunk_schedule
from penstock.loaders.sampler import ORDERS, order_named
from penstock.order import Order

LARGEST_SEED: Final = (1 << 64) - 1
CHUNK_WORDS: Final = (
    "a whole number, at least 1 batch, {start, end, over_chunks}, a list of [first chunk, batches]"
    ", or a duration such as 10min"
)
INTERVAL_WORDS: Final = "a whole number of chunks, or {min, max, loss_change}"


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
            before: That of the chunk that was validated last; None if there is none.
        """
        if since >= self.max or since < self.min or self.loss_change is None:
            return since >= self.max
        if loss is None or before is None or not math.isfinite(loss + before):
            return True
        return abs(loss - before) >= self.loss_change * abs(before)


def validation_interval(value: Any, name: str = "validate_every") -> ValidationInterval | None:
    """Return the interval for a number of chunks or a ``{min, max, loss_change}``."""
    if value is None or isinstance(value, ValidationInterval):
        return value
    if isinstance(value, Mapping) and {*value} == {"min", "max", "loss_change"}:
        return ValidationInterval(**value)
    if isinstance(value, Mapping | str | list | tuple):
        raise PlanError(f"{name} must be {INTERVAL_WORDS}, got {value!r}")
    chunks = whole_number(name, value, minimum=1, unit="chunk")
    return ValidationInterval(chunks, chunks)


def skipped_positions(value: Any, name: str = "skip") -> tuple[tuple[int, int, int], ...] | None:
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


@dataclass(frozen=True, slots=True)
class ChunkOption:
    """One option: its names, its default and the values it accepts.

    Args:
        name: The field of `ChunkSettings`, and the argument of `ChunkedTraining`.
        key: The key under ``train`` in a configuration, and the argument of `SequenceDataset`.
        kind: ``"integer"`` (or None), ``"flag"``, ``"choice"``, or ``"parsed"``: what ``parse``
            accepts.
        default: The value if none is given.
        minimum: The smallest integer accepted.
        maximum: The largest integer accepted.
        unit: What an integer counts, for messages.
        choices: The values that a choice accepts.
        words: What is accepted, for messages of a configuration.
        parse: Returns a value that was parsed, or raises `PlanError`; called with the name, too.
    """

    name: str
    key: str
    kind: str
    default: Any
    minimum: int
    maximum: int
    unit: str
    choices: tuple[str, ...]
    words: str
    parse: Callable[[Any, str], Any] | None

    def check(
        self,
        value: Any,
        name: str | None = None,
        *,
        range_error: type[Exception] = ConfigError,
    ) -> None:
        """Raise `ConfigError` for a value that this option does not accept.

        Args:
            value: The value.
            name: The name to use in the message; the option's own by default.
            range_error: Raised instead for an integer out of range.
        """
        name = name or self.name
        if self.kind == "flag":
            flag(name, value, error=ConfigError)
        elif self.kind == "choice":
            choice(name, value, self.choices, error=ConfigError)
        elif self.parse is not None and not isinstance(value, int | float | None):
            self.accept(value, name)
        elif value is not None:
            whole_number(name, value, maximum=self.maximum, error=ConfigError)
            bounds: dict[str, Any] = {"minimum": self.minimum, "maximum": self.maximum}
            whole_number(name, value, unit=self.unit, error=range_error, **bounds)

    def accept(self, value: Any, name: str | None = None) -> Any:
        """Return a value as it is used; raise `ConfigError` for one that cannot be parsed."""
        if self.parse is None:
            return value
        try:
            return self.parse(value, name or self.name)
        except PlanError as error:
            raise ConfigError(str(error)) from error


def _integer(minimum: int, unit: str = "", *, maximum: int = LARGEST_INTEGER, **more: Any) -> Any:
    described = {"kind": "integer", "minimum": minimum, "maximum": maximum, "unit": unit}
    return field(default=more.pop("default", None), metadata=described | more)


def _flag(default: bool, **more: Any) -> Any:
    return field(default=default, metadata={"kind": "flag"} | more)


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

    train_chunk_size: Any = _integer(  # noqa: RUF009 - a field
        1, "batch", parse=chunk_schedule, words=CHUNK_WORDS
    )
    val_chunk_size: int | None = _integer(1, "batch")
    seed: int | None = _integer(0, maximum=LARGEST_SEED, default=42, key="chunk_seed")
    shuffle: bool = _flag(True, key="chunk_shuffle")
    order: str = field(
        default="shuffled",
        metadata={"kind": "choice", "choices": tuple(ORDERS), "key": "chunk_order"},
    )
    val_cycle: bool = _flag(False)
    cycle: bool = _flag(True)
    max_passes: int | None = _integer(1, "pass")
    start_chunk: int | None = _integer(0)
    validate_every: Any = _integer(  # noqa: RUF009
        1, "chunk", parse=validation_interval, words=INTERVAL_WORDS
    )
    skip: Any = _integer(  # noqa: RUF009
        0, parse=skipped_positions, words="a list of [epoch, start, stop]"
    )

    def __post_init__(self) -> None:
        for option in self.options():
            option.check(getattr(self, option.name))
            object.__setattr__(self, option.name, option.accept(getattr(self, option.name)))
        if not self.cycle and self.max_passes not in (None, 1):
            raise ConfigError(
                f"cycle=False is one pass, but max_passes={self.max_passes!r}: leave one out"
            )

    @staticmethod
    def options() -> tuple[ChunkOption, ...]:
        """Return the description of every option, in the order of the fields."""
        return _options()

    @classmethod
    def from_keys(cls, *, range_error: type[Exception] = ConfigError, **values: Any) -> Self:
        """Return the settings for values given by their configuration keys.

        Args:
            range_error: Raised for an integer out of range.
            **values: ``chunk_seed=7``, ``chunk_order="block"``, ...; messages use these names.
        """
        found = {}
        for option in cls.options():
            if option.key in values:
                option.check(values[option.key], option.key, range_error=range_error)
                found[option.name] = values[option.key]
        return cls(**found)

    @classmethod
    def of_config(cls, config: Any) -> Self:
        """Return the settings in the ``train`` section of a configuration; other keys are ignored.

        Args:
            config: A mapping, or an object with attributes, that has ``train``.
        """
        train = (
            config.get("train") if isinstance(config, Mapping) else getattr(config, "train", None)
        )
        if train is None:
            raise ConfigError(
                f"a configuration has a section 'train', this {type(config).__name__} has none: "
                "give train_chunk_size= and val_chunk_size= instead"
            )
        missing, get = object(), getattr(train, "get", None)
        found: dict[str, Any] = {
            option.key: get(option.key, missing)
            if callable(get)
            else getattr(train, option.key, missing)
            for option in cls.options()
        }
        return cls.from_keys(**{key: value for key, value in found.items() if value is not missing})

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


@cache
def _options() -> tuple[ChunkOption, ...]:
    empty: dict[str, Any] = {"minimum": 0, "maximum": LARGEST_INTEGER, "unit": "", "choices": ()}
    empty |= {"words": "", "parse": None}
    return tuple(
        ChunkOption(
            name=each.name, default=each.default, **empty | {"key": each.name, **each.metadata}
        )
        for each in fields(ChunkSettings)
    )


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
        if self.explicit_train is None and self.explicit_val is not None:
            return replace(self, train=train_batches())
        if self.explicit_val is None and self.explicit_train is not None:
            return replace(self, val=val_batches())
        return self


def partition_batches(samples: int, batch_size: int | None, world: int) -> int:
    """Return the batches of a whole partition on each of ``world`` ranks.

    >>> partition_batches(100, 32, world=1)
    4
    """
    return -(-samples // ((batch_size or 1) * world))
