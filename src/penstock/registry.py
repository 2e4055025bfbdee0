"""Lookup of names from files and callers; an unknown one is answered with "did you mean"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import takewhile
from typing import Generic, TypeVar

from penstock.errors import ConfigError
from penstock.extras import load_extensions

T = TypeVar("T")


def close_name(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """Return the known name that ``name`` probably means; None if none is close.

    A name that is one letter off comes before others that are equally close.

    Args:
        name: What was written.
        known: The valid names.
        cutoff: How similar they must be, from 0 (anything) to 1 (equal except for case).

    >>> close_name("vison", ["text", "vision"]), close_name("fecoder", ["encoder", "decoder"])
    ('vision', 'decoder')
    >>> close_name("zebra", ["text", "vision"])
    """
    by_lower = {each.lower(): each for each in known}
    by_a_letter = [each for each in by_lower if _one_edit_apart(name.lower(), each)]
    near = get_close_matches(name.lower(), by_a_letter or by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def _one_edit_apart(a: str, b: str) -> bool:
    """Return whether one letter is missing, added or wrong, or two are swapped.

    >>> [_one_edit_apart("seed", each) for each in ("sed", "seeds", "send", "sede", "deed ")]
    [True, True, True, True, False]
    """
    same = _shared(a, b)
    a, b = a[same:], b[same:]
    ends = _shared(a[::-1], b[::-1])
    a, b = a[: len(a) - ends], b[: len(b) - ends]
    return max(len(a), len(b)) == 1 or (len(a) == 2 and a == b[::-1])


def _shared(a: str, b: str) -> int:
    """Return the length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def did_you_mean(name: object, known: Iterable[str], *, otherwise: str = "it has") -> str:
    """Return the end of a message about an unknown name: the closest known one, or all of them.

    Args:
        name: What was written.
        known: The valid names.
        otherwise: The words before the list of all names.

    >>> did_you_mean("voltge", ["voltage", "stimulus"])
    ": did you mean 'voltage'?"
    >>> did_you_mean("x", ["voltage", "stimulus"])
    ': it has voltage, stimulus'
    """
    names = list(known)
    near = close_name(str(name), names)
    if near is not None:
        return f": did you mean {near!r}?"
    return f": {otherwise} {', '.join(names) or 'none'}"


def shortened(name: object) -> object:
    """Return a name, or its beginning if it is too long for a message."""
    return f"{name[:60]}..." if isinstance(name, str) and len(name) > 60 else name


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return a message about an unknown name, with the closest name and all available ones.

    Args:
        kind: What the names are: "collator".
        name: What was written.
        known: The valid names.

    >>> unknown_name("collator", "vison", ["text", "vision"])
    "unknown collator 'vison': did you mean 'vision'? (available: text, vision)"
    """
    names, name = list(known), shortened(name)
    near = close_name(str(name), names)
    available = ", ".join(names) or "none"
    if near is None:
        return f"unknown {kind} {name!r}: available are {available}"
    return f"unknown {kind} {name!r}: did you mean {near!r}? (available: {available})"


class Registry(Generic[T]):
    """Objects by name, in order of registration; users may add some or replace them.

    Args:
        kind: What the entries are, for messages.
        entries: The first entries.
        extensions: A group of entry points to load before a name is reported as unknown.

    >>> colours = Registry("colour", {"red": 1})
    >>> colours.add("blue", 2)
    >>> colours.find("blue"), list(colours)
    (2, ['red', 'blue'])
    >>> colours.find("bleu")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown colour 'bleu': did you mean 'blue'? ...
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T] | None = None, *, extensions: str | None = None
    ) -> None:
        self.kind = kind
        self._entries: dict[str, T] = dict(entries or {})
        self._extensions = extensions  # None once loaded; importing them adds entries

    def add(self, name: str, entry: T) -> None:
        """Add ``entry`` as the latest one; an earlier one of the same name is replaced."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a {self.kind} needs a name that is a non-empty str, got {name!r}")
        self._entries.pop(name, None)  # so that a name registered again counts as the latest
        self._entries[name] = entry

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that adds a function or class under ``name``."""

        def decorate(entry: T) -> T:
            self.add(name, entry)
            return entry

        return decorate

    def find(self, name: str) -> T:
        """Return the entry of that name; raise a `ConfigError` if there is none."""
        if not isinstance(name, str):
            raise ConfigError(f"the name of a {self.kind} must be a str, got {name!r}")
        if name not in self._entries:
            self._load_extensions()
        if name not in self._entries:
            raise ConfigError(unknown_name(self.kind, name, self._entries))
        return self._entries[name]

    def _load_extensions(self) -> None:
        if self._extensions is not None:
            group, self._extensions = self._extensions, None
            load_extensions(group)

    def entries(self) -> list[T]:
        """Return all entries, the latest last."""
        self._load_extensions()
        return list(self._entries.values())

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._load_extensions()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_extensions()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load_extensions()
        return len(self._entries)
