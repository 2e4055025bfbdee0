"""Loaders of sequence datasets, and collation of samples ``(x, y, *extras)`` as in S4."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.arguments import whole_number
from penstock.collate.default import CollateError, stack, unequal
from penstock.errors import BatchError, ConfigError, StateError
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.base import LoaderIterator, stale_iterator
from penstock.loaders.plan_settings import order_factory, order_named
from penstock.order import Cursor
from penstock.ranks import Seed
from penstock.registry import Registry, unknown_name
from penstock.sources.contract import DatasetLike

IGNORED = -100  # the target that torch's cross-entropy ignores


class SequenceCollation:
    """Stacks samples to a batch; subclasses override one of the hooks.

    >>> SequenceCollation._collate_fn([(torch.zeros(3), 1), (torch.ones(3), 0)])
    (tensor([[0., 0., 0.],
            [1., 1., 1.]]), tensor([1, 0]), {})
    """

    _collate_arg_names: ClassVar[Sequence[str]] = ()  # names of the values after x and y
    collate_args: ClassVar[Sequence[str]] = ()  # loader arguments that are passed to the hooks

    @classmethod
    def _collate_callback(cls, x: Any, **collate_args: Any) -> Any:
        """Return the batched x; override it to transform x."""
        return x

    @classmethod
    def _return_callback(cls, batch: tuple[Any, ...], **collate_args: Any) -> tuple[Any, ...]:
        """Return the final batch, with the values after x and y in a dict by name."""
        x, y, *extras = batch
        if len(extras) != len(cls._collate_arg_names):
            raise CollateError(
                f"samples have {len(extras)} values beyond x and y, {cls.__name__} names "
                f"{list(cls._collate_arg_names)!r}: set _collate_arg_names to one name for each"
            )
        return x, y, dict(zip(cls._collate_arg_names, extras, strict=True))

    @classmethod
    def _collate(cls, values: Sequence[Any], **collate_args: Any) -> Any:
        """Return the values of all samples as one tensor."""
        if isinstance(values[0], torch.Tensor):
            return cls._collate_callback(stack(values, "x"), **collate_args)
        try:
            arrays = isinstance(values[0], np.ndarray)
            return torch.tensor(np.stack(values) if arrays else values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise unequal(values, "x") from error

    @classmethod
    def _collate_fn(cls, samples: Sequence[Any], **collate_args: Any) -> tuple[Any, ...]:
        """Return the batch of ``samples``."""
        x, y, *extras = zip(*samples, strict=True)
        batch = (
            cls._collate(x, **collate_args),
            cls._collate(y),
            *(cls._collate(extra) for extra in extras),
        )
        return cls._return_callback(batch, **collate_args)


@dataclass(frozen=True, slots=True)
class PaddedCollation:
    """Batches ``(x, y, {"lengths": ...})`` of samples ``(x, y)`` with different lengths.

    x is padded to the next power of two, or to ``limit`` if that is shorter, and y with it, so
    that both end at the same step. Lengths are those of x before padding.

    Args:
        zero: Padding value of x.
        limit: Length that padding never exceeds; None for no limit.
        lead_steps: Steps by which every y is shorter than its x.
        ignored: Padding value of y.

    >>> samples = [(torch.tensor([1, 2, 3]), torch.tensor([[2], [3], [4]]))] * 2
    >>> x, y, extras = PaddedCollation(zero=128)(samples)
    >>> x[0], y[0, :, 0], extras["lengths"]
    (tensor([  1,   2,   3, 128]), tensor([   2,    3,    4, -100]), tensor([3, 3]))
    """

    zero: float
    limit: int | None = None
    lead_steps: int = 0
    ignored: int = IGNORED

    def __call__(self, samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Return the batch of ``samples``."""
        x, y = zip(*samples, strict=True)
        lengths = torch.tensor([len(each) for each in x])
        steps = self.width(int(lengths.max()))
        targets = max(steps - self.lead_steps, *(len(each) for each in y))
        return _filled(x, steps, self.zero), _filled(y, targets, self.ignored), {"lengths": lengths}

    def width(self, longest: int) -> int:
        """Return the padded length of a batch whose longest x has ``longest`` steps.

        >>> [PaddedCollation(0, limit=100).width(steps) for steps in (5, 8, 70)]
        [8, 8, 100]
        """
        power = 1 << (longest - 1).bit_length()
        return max(longest, power if self.limit is None else min(power, self.limit))


def _filled(rows: Sequence[torch.Tensor], steps: int, fill: float) -> torch.Tensor:
    """Return rows (L, ...) as one tensor (B, steps, ...) with ``fill`` after their ends."""
    out = rows[0].new_full((len(rows), steps, *rows[0].shape[1:]), fill)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out


# set by the partition and by its chunk size, never by a loader's keys
RESERVED: Final = {"self", "dataset", "chunk_size", "evaluation", "order"}


class TBPTTDataLoader(ChunkedDataLoader):
    """Batches ``(x, y, dict)`` cut along their length, for truncated backpropagation through time.

    Every piece of x has ``chunk_len`` new steps and the ``overlap_len - 1`` steps before them;
    at the start these are zeros (the dataset's ``zero``). ``dict["reset"]`` is True for the first
    piece of a batch, where the model must start with a new state.

    Every step of a sequence is delivered; the last piece may be short. ``chunk_size`` counts whole
    batches and ``len`` counts pieces, so a chunk never ends inside a sequence. A state saved inside
    a sequence resumes at its start, because checkpoints do not contain the state of the model.

    Args:
        dataset: Map-style; samples are ``(x, y, *extras)``.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches of a chunk; None for whole epochs.
        chunk_len: New steps of a piece.
        overlap_len: Steps that the model looks back, the current one included.
        **options: More arguments of `ChunkedDataLoader`.

    >>> batch = torch.arange(1, 6).reshape(1, 5), torch.arange(5).reshape(1, 5, 1), {}
    >>> loader = TBPTTDataLoader(
    ...     [batch], 1, chunk_len=3, overlap_len=2, collate_fn=lambda samples: samples[0]
    ... )
    >>> [(x.tolist(), y.flatten().tolist(), z["reset"]) for x, y, z in loader]
    [([[0, 1, 2, 3]], [0, 1, 2], True), ([[3, 4, 5]], [3, 4], False)]
    >>> len(loader)
    2
    """

    def __init__(
        self,
        dataset: DatasetLike,
        batch_size: int | None,
        chunk_size: int | None = None,
        *,
        chunk_len: int,
        overlap_len: int,
        **options: Any,
    ) -> None:
        for name, value in (("chunk_len", chunk_len), ("overlap_len", overlap_len)):
            whole_number(name, value, minimum=1, unit="step")
        super().__init__(dataset, batch_size, chunk_size, **options)
        self.chunk_len, self.overlap_len = chunk_len, overlap_len
        self.zero = getattr(dataset, "zero", 0)
        self._steps: int | None = None  # of every batch, if the dataset has no lengths()

    # -- iterating

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the pieces of the rest of the current chunk (or epoch)."""
        batches = super().__iter__()
        return batches if self.pass_through is None else _Pieces(batches, self._cut)

    def _iterate(self) -> Iterator[Any]:
        return _CutIterator(self)

    def _cut(self, batch: Any) -> list[Any]:
        x, y, extras = batch
        steps = x.shape[1]
        if self._steps is not None and self._pieces(steps) != self._pieces(self._steps):
            raise BatchError(
                f"a batch has {steps} steps, the first one had {self._steps}: add a method "
                "lengths(indices) to the dataset, so that the number of pieces is known"
            )
        if y.ndim == 3 and y.shape[1] != steps:
            raise BatchError(
                f"x has {steps} steps and y has {y.shape[1]}: pieces need both of one length; "
                "remove context_len and pad_len"
            )
        early = x.new_full((x.shape[0], self.overlap_len - 1, *x.shape[2:]), self.zero)
        padded = torch.cat([early, x], dim=1)
        return [
            self._piece(padded, y, extras, begin, min(begin + self.chunk_len, steps), steps)
            for begin in range(0, steps, self.chunk_len)
        ]

    def _piece(
        self, padded: torch.Tensor, y: Any, extras: dict[str, Any], begin: int, end: int, steps: int
    ) -> Any:
        def of(value: Any) -> Any:
            long = isinstance(value, torch.Tensor) and value.ndim > 1 and value.shape[1] == steps
            return value[:, begin:end] if long else value

        x = padded[:, begin : end + self.overlap_len - 1]
        named = {name: of(value) for name, value in extras.items()}
        return x, of(y) if y.ndim == 3 else y, {**named, "reset": begin == 0}

    def peek(self) -> Any:
        """Return the first piece of the next ``iter()``; the position does not change."""
        return self._cut(super().peek())[0]

    # -- counting

    def __len__(self) -> int:
        """Return the pieces of the current chunk (epoch) on this rank; constant throughout it."""
        if self.pass_through is not None:
            return super().__len__() * self._pieces(self._steps_of_first())
        position, steps = self.position, self.plan.steps
        here = Cursor() if position.evaluation else position.cursor.normal(steps)
        # a schedule of chunk sizes gives each epoch steps of its own
        steps = steps.of(here.epoch)
        done = steps.chunk_length(here.position) - steps.left_in_chunk(here.position)
        first = steps.step_of(here.position) - done
        begin = Cursor(here.epoch, steps.start(first) if first else 0)
        return self._count(begin, position.length)

    @property
    def remaining(self) -> int:
        """Pieces that the next ``iter()`` yields."""
        if self.pass_through is not None:
            return len(self)
        return self._count(self.position.start, self.position.remaining)

    def _count(self, begin: Cursor, batches: int) -> int:
        """Return the number of pieces in ``batches`` batches from ``begin`` on."""
        lengths = getattr(self.dataset, "lengths", None)
        if lengths is None:
            return batches * self._pieces(self._steps_of_first()) if batches else 0
        width = getattr(self.collate_fn, "width", int)
        walked = self.plan.walk(begin, batches)
        return sum(self._pieces(width(int(lengths(batch.samples).max()))) for batch in walked)

    def _pieces(self, steps: int) -> int:
        return -(-steps // self.chunk_len)

    def _steps_of_first(self) -> int:
        if self._steps is None:
            self._steps = int(super().peek()[0].shape[1])
        return self._steps


class _Pieces(Iterator[Any]):
    """The pieces of the batches of torch's own loader; continues after an error."""

    def __init__(self, batches: Iterator[Any], cut: Callable[[Any], list[Any]]) -> None:
        self._batches, self._cut = batches, cut
        self._waiting: deque[Any] = deque()

    def __next__(self) -> Any:
        if not self._waiting:
            self._waiting.extend(self._cut(next(self._batches)))
        return self._waiting.popleft()


class _CutIterator(LoaderIterator[Any]):
    """One iteration in pieces; a batch counts as delivered with its last piece."""

    def __init__(self, loader: TBPTTDataLoader) -> None:
        super().__init__(loader)
        self._tbptt = loader
        self._waiting: deque[Any] = deque()

    def close(self) -> None:
        """End this iteration; pieces of the current batch that are left are discarded."""
        self._waiting.clear()
        super().close()

    def __next__(self) -> Any:
        if self._waiting:
            if self.position.iteration != self._iteration:
                raise stale_iterator()
        else:
            self._after, batch = self._fetch()
            try:
                self._waiting.extend(self._tbptt._cut(batch))
            except BatchError:
                assert self._plan is not None
                self._left += 1  # not delivered
                self.position.fail(self._plan)
                raise
        piece = self._waiting.popleft()
        if not self._waiting:
            self.position.delivered(self._after)
        return piece


loader_registry: Final[Registry[type[ChunkedDataLoader]]] = Registry(
    "loader", {"tbptt": TBPTTDataLoader}
)


class LoaderCache:
    """One loader per partition. A loader built from other options continues at the same position.

    States may be loaded before the loaders exist: they wait here until the loader is built.
    """

    def __init__(self) -> None:
        self._cached: dict[str, ChunkedDataLoader] = {}
        self._built_from: dict[str, tuple[Any, Mapping[str, Any]]] = {}  # data and options
        self._states: dict[str, dict[str, Any]] = {}  # of loaders that are not built yet

    def get(
        self,
        name: str,
        dataset: Any,
        options: Mapping[str, Any],
        build: Callable[[], ChunkedDataLoader],
    ) -> ChunkedDataLoader:
        """Return the loader of that name: the cached one, if it has the same data and options.

        Args:
            name: The partition.
            dataset: The data of the partition.
            options: Everything else the loader is built from.
            build: Builds the loader.
        """
        before, (data, used) = self._cached.get(name), self._built_from.get(name, (None, None))
        if before is not None and data is dataset and used == options:
            return before
        loader = build()
        state = self._states.pop(name, None)
        if state is None and before is not None and data is dataset:
            state = _common_state(before, loader)
        if state is not None:
            loader.load_state_dict(state)
        if before is not None:
            before.close()
        self._cached[name], self._built_from[name] = loader, (dataset, dict(options))
        return loader

    def __getitem__(self, name: str) -> ChunkedDataLoader | None:
        return self._cached.get(name)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of all loaders whose position changes, by partition."""
        found = {name: state_of(loader) for name, loader in self._cached.items()}
        return self._states | {name: state for name, state in found.items() if state is not None}

    def load_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Load the states now, or when a loader is built."""
        for name, state in states.items():
            loader = self[name]
            if loader is None:
                self._states[name] = dict(state)
            else:
                loader.load_state_dict(state)

    def close(self) -> None:
        """Stop all threads and processes of the loaders; they can be iterated again."""
        for loader in self._cached.values():
            loader.close()


def state_of(loader: ChunkedDataLoader) -> dict[str, Any] | None:
    """Return the state of a loader; None if it always starts at the beginning or has no state."""
    try:
        return None if loader.position.evaluation else loader.state_dict()
    except StateError:
        return None


def _common_state(before: ChunkedDataLoader, loader: ChunkedDataLoader) -> dict[str, Any] | None:
    """Return the state of ``before`` if ``loader`` has the same samples in the same order."""
    was, now = state_of(before), state_of(loader)
    if was is None or now is None:
        return None
    same = {*was, *now} - {"epoch", "position"}
    return was if all(was.get(key) == now.get(key) for key in same) else None


# -- building


def training_loader(
    dataset: Any,
    chunk_size: int | None,
    *,
    batch_size: int | None,
    order: str,
    kind: type[ChunkedDataLoader],
    seed: Seed | int | None,
    shuffle: bool | None = None,
    **options: Any,
) -> ChunkedDataLoader:
    """Return a loader in the order of that name, or in torch's if an argument requires it.

    Args:
        dataset: The training partition.
        chunk_size: Batches of a chunk; None for whole epochs.
        batch_size: Samples of this rank's batch.
        order: ``"shuffled"``, ``"sequential"`` or ``"block"``.
        kind: The class of the loader.
        seed: Seed of the order.
        shuffle: False means ``order="sequential"``.
        **options: More arguments of the loader.
    """
    given = {"batch_size": batch_size, "chunk_size": chunk_size, "seed": seed, **options}
    own_order = any(options.get(key) is not None for key in ("sampler", "batch_sampler"))
    if own_order or isinstance(dataset, IterableDataset):
        return kind(dataset, **given)
    if batch_size is None or options.get("generator") is not None:
        return kind(dataset, shuffle=shuffle is not False, **given)
    name = "sequential" if shuffle is False else order
    return kind(dataset, order=order_factory(partial(order_named, name)), **given)


def loader_options(
    loader: Mapping[str, Any],
    collate_args: Sequence[str],
    loader_args: Sequence[str],
    collation: Callable[..., Any],
) -> tuple[type[ChunkedDataLoader], dict[str, Any]]:
    """Return the class of a loader and its arguments, with the collation's bound to it.

    Args:
        loader: The keys a user gave; ``_name_`` selects the class.
        collate_args: Keys that are passed to the collation.
        loader_args: Keys that the dataset itself uses.
        collation: Forms batches.
    """
    options = {key: value for key, value in loader.items() if key != "_name_"}
    name = loader.get("_name_")
    kind = ChunkedDataLoader if name is None else loader_registry.find(name)
    check_keys(kind, options, [*collate_args, *loader_args])
    collate = {key: options.pop(key) for key in collate_args if key in options}
    options.setdefault("collate_fn", partial(collation, **collate) if collate else collation)
    options.setdefault("batch_size", 1)
    return kind, options


def check_keys(kind: type[Any], options: Mapping[str, Any], further: Sequence[str]) -> None:
    """Raise `ConfigError` for a key that neither the loader nor the collation knows.

    >>> check_keys(ChunkedDataLoader, {"batch_sise": 4}, ["resolution"])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown loader key 'batch_sise': did you mean 'batch_size'? ...
    """
    known = [*further]
    for each in (kind, ChunkedDataLoader, DataLoader):
        for name, parameter in inspect.signature(each.__init__).parameters.items():
            named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if named and name not in {*RESERVED, *known}:
                known.append(name)
    for key in options:
        if key not in known:
            raise ConfigError(unknown_name("loader key", key, known))
