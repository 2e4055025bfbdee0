"""How large a configuration file may be: found out in linear time, before anything is built of it.

An alias (``*name``) stands for all that its anchor (``&name``) holds, so that a few lines can
stand for billions of values. The readers of YAML behind Hydra write all of them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.training.config.places import shown, yaml
from penstock.training.config.tree import Tree, entries_of

MOST_BYTES: Final = 4 << 20
MOST_VALUES: Final = 20_000  # with all aliases written out; Hydra needs seconds for so many
DEEPEST: Final = 64  # lists and sections within each other
ADVICE: Final = "keep long lists in a file of their own that your dataset reads"


def check_files(file: Path, tree: Tree, overrides: Sequence[str]) -> None:
    """Refuse files that are too large: this one, and those that defaults and overrides name."""
    waiting, seen = [file, *_chosen(tree, overrides)], set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        check_file(path)
        for entry in entries_of(path, overriding=True):
            folders = (path.parent, tree.root, tree.beside or tree.root)
            waiting += [folder / f"{entry.lstrip('/')}.yaml" for folder in folders]


def _chosen(tree: Tree, overrides: Sequence[str]) -> Iterator[Path]:
    for override in overrides:
        key, _, values = override.lstrip("+~").partition("=")
        for value in values.strip("[]").split(","):
            for folder in (tree.root, tree.beside or tree.root):
                yield folder / key.partition("@")[0] / f"{value.strip()}.yaml"


def check_file(path: Path) -> None:
    """Refuse a file that is too large, too deep, or stands for too many values."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(
            f"{shown(path)} has {size:,} bytes, a configuration at most {MOST_BYTES:,}: {ADVICE}"
        )
    with path.open(encoding="utf-8") as file:
        for line in _too_large(file.read()):
            raise ConfigError(
                f"{shown(path)}, line {line}: more than {MOST_VALUES:,} values, or more than "
                f"{DEEPEST} levels, with every alias written out: {ADVICE}"
            )


def _too_large(text: str) -> Iterator[int]:
    """The line at which it is too much, if it ever is."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}  # values that an anchor stands for
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
                yield event.start_mark.line + 1
                return
    except yaml.YAMLError:
        return  # Hydra's reading of it says what is wrong, and where
