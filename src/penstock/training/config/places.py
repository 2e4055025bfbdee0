"""Where a key was written: the file and line, or the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.extras import optional

yaml: Any = optional("yaml", extra="train")


@dataclass(frozen=True, slots=True)
class Layer:
    """A file of the composition, and the key its contents were put under."""

    file: Path
    package: tuple[str, ...]
    node: Any  # yaml's own, with the marks that tell lines

    def line_of(self, key: tuple[str, ...]) -> int | None:
        """The line that gives this key, counted from 1; None where this file does not."""
        if key[: len(self.package)] != self.package:
            return None
        return line_in(self.node, key[len(self.package) :])


@dataclass(frozen=True, slots=True)
class Places:
    """Every file and override a configuration was made of, the last one winning."""

    path: Path
    layers: tuple[Layer, ...]
    overrides: tuple[tuple[tuple[str, ...], str], ...]  # the key, and what was typed

    def where(self, key: str) -> str:
        """Words for where ``key`` (``train.seed``) was given last; else its section, its file."""
        parts = tuple(key.split("."))
        for given, text in reversed(self.overrides):
            if parts[: len(given)] == given:
                return f"{text!r} on the command line"
        for length in range(len(parts), 0, -1):
            found = self._around(parts[:length])
            if found is not None:
                return found
        return shown(self.path)

    def _around(self, key: tuple[str, ...]) -> str | None:
        for layer in reversed(self.layers):
            line = layer.line_of(key)
            if line is not None:
                return f"{shown(layer.file)}, line {line}"
        inside = [text for given, text in self.overrides if given[: len(key)] == key]
        return f"{inside[-1]!r} on the command line" if inside else None


def layer_of(file: Path, package: str) -> Layer:
    """The layer of a file whose contents go under ``package``; nothing runs, nothing is built."""
    node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    return Layer(file, tuple(package.split(".")) if package else (), node)


def line_in(node: Any, key: Sequence[str]) -> int | None:
    """The line of a key inside a YAML node."""
    line = None
    for part in key:
        found = [pair for pair in pairs_of(node) if str(pair[0].value) == part]
        if not found:
            return None
        name, node = found[-1]
        line = name.start_mark.line + 1
    return line


def pairs_of(node: Any) -> Iterator[tuple[Any, Any]]:
    """The keys and values of a mapping node, with those it merges (``<<: *base``) first."""
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        if name.tag == "tag:yaml.org,2002:merge":
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in merged:
                yield from pairs_of(each)
    for name, value in node.value:
        yield name, value


def shown(file: Path) -> str:
    """A path as people write it: relative to here where it is below."""
    file, here = file.absolute(), Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
