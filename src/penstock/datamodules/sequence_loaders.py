"""Loaders of the partitions of a sequence dataset: built, cached, and continued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from penstock.datamodules.tbptt import TBPTTDataLoader
from penstock.errors import ConfigError, StateError
from penstock.loaders import ChunkedDataLoader
from penstock.loaders.plan_settings import order_factory
from penstock.loaders.sampler import order_named
from penstock.registry import Registry, unknown_name
from penstock.seeds import Seed

loader_registry: Final[Registry[type[ChunkedDataLoader]]] = Registry(
    "loader", {"tbptt": TBPTTDataLoader}
)

# set by the partition and by its chunk size, never by a loader's keys
RESERVED: Final = {"self", "dataset", "chunk_size", "evaluation", "order"}


@dataclass(frozen=True, slots=True)
class CachedLoader:
    """A loader and the arguments it was built from."""

    dataset: Any
    options: Mapping[str, Any]
    loader: ChunkedDataLoader


class LoaderCache:
    """One loader per partition. A loader built from other options continues at the same position.

    States may be loaded before the loaders exist: they wait here until the loader is built.
    """

    def __init__(self) -> None:
        self._cached: dict[str, CachedLoader] = {}
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
        before = self._cached.get(name)
        if before is not None and before.dataset is dataset and before.options == options:
            return before.loader
        loader = build()
        state = self._states.pop(name, None)
        if state is None and before is not None and before.dataset is dataset:
            state = _common_state(before.loader, loader)
        if state is not None:
            loader.load_state_dict(state)
        if before is not None:
            before.loader.close()
        self._cached[name] = CachedLoader(dataset, dict(options), loader)
        return loader

    def __getitem__(self, name: str) -> ChunkedDataLoader | None:
        cached = self._cached.get(name)
        return None if cached is None else cached.loader

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of all loaders whose position changes, by partition."""
        found = {name: state_of(cached.loader) for name, cached in self._cached.items()}
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
        for cached in self._cached.values():
            cached.loader.close()


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
