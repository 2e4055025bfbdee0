"""The YAML files of a configuration: where they are, how large they may be, what is on which line.

Nothing here composes the files; that is Hydra's work, in `compose`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.extras import optional

yaml: Any = optional("yaml", extra="train")

ROOT_NAMES: Final = ("configs", "conf", "config")
MOST_BYTES: Final = 4 << 20
MOST_VALUES: Final = 20_000  # with all aliases expanded: Hydra takes seconds for this many
DEEPEST: Final = 64  # nested lists and sections
ADVICE: Final = "keep long lists in a file of their own that your dataset reads"


def display_path(file: Path) -> str:
    """Return a path for messages: relative to the working directory where it is below it."""
    file, here = file.absolute(), Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)


# -- the tree that a file is in


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of configuration files.

    Args:
        root: The folder that names in ``defaults`` are relative to.
        name: The main file, relative to ``root`` and without ``.yaml``.
        beside: Another folder in which groups are looked up.
    """

    root: Path
    name: str
    beside: Path | None = None

    @property
    def folders(self) -> list[Path]:
        """All folders in which files are looked up."""
        return [self.root] if self.beside is None else [self.root, self.beside]

    def file_of(self, config_path: str) -> Path | None:
        """Return the file that Hydra calls ``config_path``; None for one of Hydra's own."""
        files = (folder / f"{config_path}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)


def existing_file(path: str | os.PathLike[str], config_dir: Path | None) -> Path:
    """Return the absolute path of a configuration file.

    Raises:
        ConfigError: It does not exist, is a folder, or is not a ``.yaml`` file.
    """
    file = Path(path)
    if not file.exists() and config_dir is not None and (config_dir / file).exists():
        file = config_dir / file
    if not file.exists():
        raise ConfigError(f"there is no configuration file {str(path)!r}: check its path")
    if not file.is_file():
        raise ConfigError(f"{str(path)!r} is a folder: give the configuration file in it")
    if file.suffix != ".yaml":
        raise ConfigError(f"a configuration is a .yaml file, got {str(path)!r}: rename it")
    return file.absolute()


def candidate_trees(file: Path, config_dir: Path | None) -> list[Tree]:
    """Return the trees that ``file`` may be part of, the most likely first."""
    if config_dir is not None:
        folder = config_dir.absolute()
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {display_path(folder)!r}: check config_dir")
        if not file.is_relative_to(folder):
            return [Tree(file.parent, file.stem, beside=folder)]
        return [_tree(folder, file)]
    entries = list(default_entries(file))
    if not entries:
        return [_tree(file.parent, file)]
    absolute = [f"{entry[1:]}.yaml" for entry in entries if entry.startswith("/")]
    fitting = [each for each in file.parents if all((each / name).is_file() for name in absolute)]
    named = [each for each in file.parents if each.name in ROOT_NAMES]
    return [_tree(folder, file) for folder in fitting or named[:1] or [file.parent]]


def _tree(root: Path, file: Path) -> Tree:
    return Tree(root, file.relative_to(root).with_suffix("").as_posix())


def default_entries(file: Path, *, overriding: bool = False) -> Iterator[str]:
    """Yield what the ``defaults`` of a file name: ``/trainer/default``, ``base``; not ``_self_``.

    Args:
        file: A file of the tree.
        overriding: Also yield ``override`` and ``optional`` entries, which need not exist.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        return  # Hydra reads it later and reports the line
    listed = content.get("defaults") if isinstance(content, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            yield entry.partition("@")[0]
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            group = str(group).partition("@")[0]
            if " " in group and not overriding:  # `override /model` and `optional /model`
                continue
            group = group.split()[-1] if group.split() else group
            for name in choice if isinstance(choice, list) else [choice]:
                if isinstance(name, str) and "${" not in name:
                    yield f"{group}/{name}"


# -- limits, checked in linear time before anything is built
#
# An alias (``*name``) stands for everything its anchor (``&name``) holds, so a few lines can stand
# for billions of values, and the YAML reader behind Hydra expands all of them.


def check_sizes(file: Path, tree: Tree, overrides: Sequence[str]) -> None:
    """Refuse files that are too large: ``file``, and those that defaults and overrides name."""
    waiting, seen = [file, *_overridden_files(tree, overrides)], set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        check_size(path)
        for entry in default_entries(path, overriding=True):
            folders = (path.parent, *tree.folders)
            waiting += [folder / f"{entry.lstrip('/')}.yaml" for folder in folders]


def _overridden_files(tree: Tree, overrides: Sequence[str]) -> Iterator[Path]:
    for override in overrides:
        key, _, values = override.lstrip("+~").partition("=")
        for value in values.strip("[]").split(","):
            for folder in tree.folders:
                yield folder / key.partition("@")[0] / f"{value.strip()}.yaml"


def check_size(path: Path) -> None:
    """Refuse a file that is too large, too deeply nested, or expands to too many values."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        most = f"a configuration at most {MOST_BYTES:,}: {ADVICE}"
        raise ConfigError(f"{display_path(path)} has {size:,} bytes, {most}")
    line = _first_excess(path.read_text(encoding="utf-8"))
    if line is not None:
        raise ConfigError(
            f"{display_path(path)}, line {line}: more than {MOST_VALUES:,} values, or more than "
            f"{DEEPEST} levels, with every alias written out: {ADVICE}"
        )


def _first_excess(text: str) -> int | None:
    """Return the line at which a limit is exceeded; None where none is."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}  # how many values an anchor stands for
    depths: dict[str, int] = {}
    opened: list[tuple[str | None, int, int]] = []  # anchor, values before, deepest inside so far
    values = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            inside = 0
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, values, 0))
                values += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before, inside = opened.pop()
                inside += 1
                if anchor is not None:
                    sizes[anchor], depths[anchor] = values - before, inside
            elif isinstance(event, yaml.AliasEvent):
                values += sizes.get(event.anchor, 1)
                inside = depths.get(event.anchor, 0)
            elif isinstance(event, yaml.ScalarEvent):
                values += 1
            if opened and inside > opened[-1][2]:
                opened[-1] = (*opened[-1][:2], inside)
            if values > MOST_VALUES or len(opened) + inside > DEEPEST:
                return int(event.start_mark.line) + 1
    except yaml.YAMLError:
        pass  # Hydra reads it later and reports the line
    return None


# -- the line of each key


@dataclass(frozen=True, slots=True)
class Layer:
    """A file of the composition, and the key that its contents are put under."""

    file: Path
    package: tuple[str, ...]
    node: Any  # yaml's node: it has the line numbers

    @classmethod
    def of(cls, file: Path, package: str) -> Layer:
        """Return the layer of a file; no object is built from its contents."""
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        return cls(file, tuple(package.split(".")) if package else (), node)

    def line_of(self, key: tuple[str, ...]) -> int | None:
        """Return the line that sets ``key``, counted from 1; None where this file does not."""
        if key[: len(self.package)] != self.package:
            return None
        line, node = None, self.node
        for part in key[len(self.package) :]:
            found = [pair for pair in _pairs(node) if str(pair[0].value) == part]
            if not found:
                return None
            name, node = found[-1]
            line = name.start_mark.line + 1
        return line


@dataclass(frozen=True, slots=True)
class Provenance:
    """The files and overrides that a configuration consists of; the last one wins.

    Args:
        path: The main file.
        layers: All files, in the order in which they are composed.
        overrides: The key of each override, and the override as it was typed.
    """

    path: Path
    layers: tuple[Layer, ...]
    overrides: tuple[tuple[tuple[str, ...], str], ...]

    def where(self, key: str) -> str:
        """Return where ``key`` (``train.seed``) was set last; else where its section was."""
        parts = tuple(key.split("."))
        for given, text in reversed(self.overrides):
            if parts[: len(given)] == given:
                return f"{text!r} on the command line"
        for length in range(len(parts), 0, -1):
            found = self._set_in(parts[:length])
            if found is not None:
                return found
        return display_path(self.path)

    def _set_in(self, key: tuple[str, ...]) -> str | None:
        for layer in reversed(self.layers):
            line = layer.line_of(key)
            if line is not None:
                return f"{display_path(layer.file)}, line {line}"
        inside = [text for given, text in self.overrides if given[: len(key)] == key]
        return f"{inside[-1]!r} on the command line" if inside else None


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield keys and values of a mapping node, those it merges (``<<: *base``) first."""
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        if name.tag == "tag:yaml.org,2002:merge":
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _pairs(each)
    yield from node.value
