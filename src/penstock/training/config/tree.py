"""The folder of a configuration tree: where `defaults` of a file are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.training.config.places import shown, yaml

ROOT_NAMES = ("configs", "conf", "config")


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder, the name of a file in it without ``.yaml``, and where else groups may be."""

    root: Path
    name: str
    beside: Path | None = None

    def file_of(self, config_path: str) -> Path | None:
        """The file that Hydra calls ``config_path``; None for one of Hydra's own."""
        for folder in (self.root, self.beside):
            if folder is not None and (file := folder / f"{config_path}.yaml").is_file():
                return file
        return None


def existing(path: str | os.PathLike[str], config_dir: Path | None) -> Path:
    """The configuration file that is meant, or why it cannot be one."""
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


def trees_for(file: Path, config_dir: Path | None) -> list[Tree]:
    """The trees ``file`` may belong to, the likeliest first."""
    if config_dir is not None:
        return [_in_folder(file, config_dir.absolute())]
    wanted = list(entries_of(file))
    if not wanted:
        return [_tree(file.parent, file)]
    fitting = [folder for folder in file.parents if _resolves(folder, wanted)]
    named = [folder for folder in file.parents if folder.name in ROOT_NAMES]
    return [_tree(folder, file) for folder in fitting or named[:1] or [file.parent]]


def _in_folder(file: Path, folder: Path) -> Tree:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {shown(folder)!r} of configurations: check its path")
    if file.is_relative_to(folder):
        return _tree(folder, file)
    return Tree(file.parent, file.stem, beside=folder)


def _tree(root: Path, file: Path) -> Tree:
    return Tree(root, file.relative_to(root).with_suffix("").as_posix())


def _resolves(folder: Path, wanted: list[str]) -> bool:
    absolute = (entry[1:] for entry in wanted if entry.startswith("/"))
    return all((folder / f"{entry}.yaml").is_file() for entry in absolute)


def entries_of(file: Path, *, overriding: bool = False) -> Iterator[str]:
    """What the ``defaults`` of a file name: ``/trainer/default``, ``base``; not ``_self_``.

    Args:
        file: A file of the tree.
        overriding: Also what it overrides or names as optional, which need not be there.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError):
        return  # Hydra's reading of it says what is wrong, and where
    listed = content.get("defaults") if isinstance(content, dict) else None
    for entry in listed if isinstance(listed, list) else ():
        yield from _names(entry, overriding=overriding)


def _names(entry: Any, *, overriding: bool) -> Iterator[str]:
    if isinstance(entry, str):
        if entry != "_self_":
            yield entry.partition("@")[0]
        return
    for group, choice in entry.items() if isinstance(entry, dict) else ():
        group = str(group).partition("@")[0]
        if " " in group and not overriding:  # `override /model` and `optional /model`
            continue
        group = group.split()[-1] if group.split() else group
        for name in choice if isinstance(choice, list) else [choice]:
            if isinstance(name, str) and "${" not in name:
                yield f"{group}/{name}"
