"""Errors of objects as they are made, with the key, file and line that they are about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any, Final, get_args

from torch import Tensor

from penstock.errors import ConfigError, PlanError, SourceError
from penstock.training.config import Settings

OURS: Final = (ConfigError, PlanError, SourceError)
NUMBERS: Final = {int: "a whole number", float: "a number", bool: "true or false"}


@contextmanager
def refused_with_place(
    settings: Settings, key: str, section: Mapping[str, Any], *, foreign: bool = False
) -> Iterator[None]:
    """A block whose refusals tell where their key was given.

    Args:
        settings: Know files and lines.
        key: Where the section is: ``"dataset"``.
        section: Its keys, one of which an error may be about.
        foreign: TypeError and ValueError of others are refusals, too.
    """
    try:
        yield
    except OURS as error:
        kind = next(each for each in OURS if isinstance(error, each))
        raise kind(_placed(settings, key, section, str(error))) from error
    except (TypeError, ValueError) as error:
        if not foreign:
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        name = _by_value(section, lines[0])
        place, what = _joined(key, name), "" if name is None else f": {key}"
        raise ConfigError(
            f"{place} ({settings.where(place)}){what} cannot be made: {lines[0]}"
        ) from error


def _placed(settings: Settings, key: str, section: Mapping[str, Any], text: str) -> str:
    name = _named_in(section, text)
    place = _joined(key, name)
    if name is not None and text.startswith(f"{name} "):
        return f"{place} ({settings.where(place)}) {text.removeprefix(name).lstrip()}"
    return f"{place} ({settings.where(place)}): {text}"


def _joined(key: str, name: str | None) -> str:
    return key if name is None else f"{key}.{name}"


def _named_in(section: Mapping[str, Any], text: str) -> str | None:
    """The key that our sentence names first: at its beginning, in quotes, or as ``key=``.

    >>> _named_in({"bits": 8, "bist": 4}, "unknown key 'bist': did you mean 'bits'?")
    'bist'
    """
    found = {}
    for name in map(str, section):
        same = re.escape(name)
        match = re.search(rf"^{same}\b|'{same}'|\b{same}=", text)
        if match:
            found[name] = match.start()
    return min(found, key=lambda name: found[name]) if found else None


def _by_value(section: Mapping[str, Any], text: str) -> str | None:
    """The one key whose number a sentence ends with.

    >>> _by_value({"_name_": "sgd", "lr": -1}, "Invalid learning rate: -1")
    'lr'
    """
    numbers = {n: v for n, v in section.items() if isinstance(v, int | float)}
    found = [str(name) for name, value in numbers.items() if text.endswith(f" {value!r}")]
    return found[0] if len(found) == 1 else None


def number_words(annotation: Any) -> str | None:
    """What a parameter may be that takes nothing but numbers, in words; None for any other.

    >>> number_words(float | None), number_words(str | int)
    ('a number or null', None)
    """
    kinds = get_args(annotation) or (annotation,)
    if not all(kind in (*NUMBERS, NoneType, None, Tensor) for kind in kinds):
        return None
    words = [words for kind, words in NUMBERS.items() if kind in kinds]
    null = ["null"] if NoneType in kinds or None in kinds else []
    return " or ".join(words + null) if words else None
