"""What a loader of a sequence dataset may be asked for, checked before one is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torch.utils.data import DataLoader

from penstock.datamodules.sequence.tbptt import TBPTTDataLoader
from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader
from penstock.registry import Registry, unknown_name

loader_registry: Final[Registry[type[ChunkedDataLoader]]] = Registry(
    "loader", {"tbptt": TBPTTDataLoader}
)

# decided by the side a loader is for, and by the sizes of its chunks
DECIDED: Final = {"self", "dataset", "chunk_size", "evaluation", "order"}


def kind_of(name: str | None) -> type[ChunkedDataLoader]:
    """The loader of that ``_name_``; the usual one without.

    >>> kind_of(None).__name__, kind_of("tbptt").__name__
    ('ChunkedDataLoader', 'TBPTTDataLoader')
    """
    return ChunkedDataLoader if name is None else loader_registry.find(name)


def check_keys(kind: type[Any], options: Mapping[str, Any], further: Sequence[str]) -> None:
    """Refuse a key that neither the loader nor the collation knows.

    >>> check_keys(ChunkedDataLoader, {"batch_sise": 4}, ["resolution"])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown loader key 'batch_sise': did you mean 'batch_size'? ...
    """
    known = [*further]
    for each in (kind, ChunkedDataLoader, DataLoader):
        for name, parameter in inspect.signature(each.__init__).parameters.items():
            named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if named and name not in {*DECIDED, *known}:
                known.append(name)
    for key in options:
        if key not in known:
            raise ConfigError(unknown_name("loader key", key, known))


def loader_options(
    loader: Mapping[str, Any],
    collate_args: Sequence[str],
    loader_args: Sequence[str],
    collation: Callable[..., Any],
) -> tuple[type[ChunkedDataLoader], dict[str, Any]]:
    """The kind of loader asked for and its arguments; those of the collation are given to it."""
    options = {key: value for key, value in loader.items() if key != "_name_"}
    kind = kind_of(loader.get("_name_"))
    check_keys(kind, options, [*collate_args, *loader_args])
    collate = {key: options.pop(key) for key in collate_args if key in options}
    options.setdefault("collate_fn", partial(collation, **collate) if collate else collation)
    options.setdefault("batch_size", 1)
    return kind, options
