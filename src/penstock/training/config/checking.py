"""Strict checks: an unknown key near one of ours is refused, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.arguments import shown
from penstock.errors import ConfigError
from penstock.registry import close_name
from penstock.training.config.keys import MOVED
from penstock.training.config.places import Places
from penstock.training.config.values import Kind


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
            raise self.refuse(key, f"must be {kind.words}, got {shown(value)}")

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
        near = close_name(name, known)
        if near is not None:
            raise self.refuse(key, f"is unknown: did you mean {near!r}?")
        if strict:
            raise self.refuse(key, f"is unknown: {section} has {', '.join(sorted(known))}")
        return True


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name
