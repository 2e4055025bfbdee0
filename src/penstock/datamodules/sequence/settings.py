"""Keys of a sequence dataset and their values: what is misspelt, and what is no number."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.registry import close_name

log = logging.getLogger("penstock")

OUR_KEYS: Final = (
    "train_chunk_size",
    "val_chunk_size",
    "chunk_seed",
    "chunk_shuffle",
    "chunk_order",
    "val_cycle",
)


def check_undeclared(dataset: object, keys: Iterable[str], declared: Iterable[str]) -> None:
    """Refuse a key that is almost a known one: it would have no effect, silently.

    Others become attributes, as S4's datasets take them; a log line says which. Those that the
    class has already, ``batch_size``, and S4's notes to itself (``__l_max``) need none.

    >>> check_undeclared(object(), ["sample_lenn"], ["sample_len", "bits"])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown key 'sample_lenn': did you mean 'sample_len'?
    """
    known, others = [*declared], list[str]()
    for key in keys:
        if key in known or key == "batch_size" or hasattr(type(dataset), key):
            continue
        near = close_name(key, [*known, "data_dir"])
        near = near or close_name(key, OUR_KEYS, cutoff=0.88)
        if near is not None:
            raise ConfigError(f"unknown key {key!r}: did you mean {near!r}?")
        if not key.startswith("__"):
            others.append(key)
    if others:
        log.info(
            "%s does not declare %s: kept as attributes, with no effect unless it reads them",
            type(dataset).__name__,
            ", ".join(others),
        )


def check_whole(dataset: Any, least: int, *names: str) -> None:
    """Refuse settings that are no whole numbers of at least ``least``; None is left to defaults.

    >>> from types import SimpleNamespace
    >>> check_whole(SimpleNamespace(sample_len="abc"), 1, "sample_len")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: sample_len must be a whole number, at least 1, got 'abc'
    """
    for name in names:
        value = getattr(dataset, name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number, at least {least}, got {value!r}")
