"""Strict checks: an unknown key near one of ours is refused, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from penstock.errors import ConfigError
from penstock.registry import close_name
from penstock.training.settings.keys import MOVED
from penstock.training.settings.places import Places
from penstock.training.settings.values import Kind


@dataclass(slots=True)
class Checker:
    """Checks keys and values, and collects what a user should hear about once."""

    places: Places
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, key: str, why: str) -> ConfigError:
        """The error for a key, with where it was given."""
        return ConfigError(f"{key} ({self.places.where(key)}) {why}")

    def value(self, key: str, value: Any, kind: Kind) -> None:
        """Refuse a value that is not of its kind."""
        if not kind.fits(value):
            raise self.refuse(key, f"must be {kind.words}, got {value!r}")

    def values(self, section: str, found: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        """Refuse every value that is not of its kind."""
        for name, kind in kinds.items():
            if name in found:
                self.value(_joined(section, name), found[name], kind)

    def unknown(self, section: str, name: str, known: Iterable[str], *, strict: bool) -> bool:
        """Refuse a key that is misspelt or misplaced; with ``strict``, every unknown one."""
        key, known = _joined(section, name), list(known)
        if (section, name) in MOVED:
            raise self.refuse(key, f"belongs elsewhere: give {MOVED[section, name]} instead")
        near = meant_by(name, known)
        if near is not None:
            raise self.refuse(key, f"is unknown: did you mean {near!r}?")
        if strict:
            raise self.refuse(key, f"is unknown: {section} has {', '.join(sorted(known))}")
        return True


def meant_by(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``name`` probably meant: one letter off first, then what is near.

    >>> meant_by("fecoder", ["encoder", "decoder"]), meant_by("weights", ["encoder"])
    ('decoder', None)
    """
    known = list(known)
    by_a_letter = [each for each in known if one_edit_apart(name, each)]
    return close_name(name, by_a_letter or known)


def one_edit_apart(a: str, b: str) -> bool:
    """Is one letter lost, added or wrong, or are two swapped?

    >>> [one_edit_apart("seed", each) for each in ("sed", "seeds", "send", "sede", "deed ")]
    [True, True, True, True, False]
    """
    same = _shared(a, b)
    a, b = a[same:], b[same:]
    ends = _shared(a[::-1], b[::-1])
    a, b = a[: len(a) - ends], b[: len(b) - ends]
    return max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])


def _shared(a: str, b: str) -> int:
    """How many letters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
