"""A configuration as Hydra composes it, without a trace of Hydra afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.config.faults import Fault, read_faults
from penstock.training.config.limits import check_file, check_files
from penstock.training.config.places import Places, layer_of, shown
from penstock.training.config.tree import Tree, existing, trees_for

VERSION = "1.3"  # of Hydra's rules: what a file says beats its `defaults`
GROUP = "experiment/"  # whose files are whole runs, each with a directory of its own


@dataclass(frozen=True, slots=True)
class Composed:
    """What was composed, not yet resolved, and where each of its keys comes from."""

    config: Any  # OmegaConf's DictConfig
    places: Places
    root: Path
    experiments: tuple[str, ...]  # files of the group that were chosen: ``audio/mine``


def compose(path: Any, overrides: Sequence[str], config_dir: Path | None) -> Composed:
    """The file at ``path`` with its ``defaults`` and the overrides; working folder untouched."""
    file = existing(path, config_dir)
    with suppress(UnicodeDecodeError):  # said below, as of every file of the tree
        check_file(file)
    nearest, *further = trees_for(file, config_dir)
    try:
        return _composed(nearest, file, tuple(overrides))
    except Fault as fault:
        for tree in further if fault.missing else ():
            with suppress(Fault):  # what is wrong with the nearest one is what the user can mend
                return _composed(tree, file, tuple(overrides))
        raise ConfigError(str(fault)) from fault


def _composed(tree: Tree, file: Path, overrides: tuple[str, ...]) -> Composed:
    with read_faults(file, tree, overrides), hydra_loader(tree.root) as hydra:
        check_files(file, tree, overrides)
        parsed = hydra.parse(overrides)
        given = [_addable(override, tree) for override in parsed]
        if tree.beside is not None:
            given.append(f"hydra.searchpath=[file://{tree.beside}]")
        used = hydra.files(tree.name, given)
        config = hydra.compose(tree.name, given)
    keys = [(each.key_or_group, each.input_line) for each in parsed if not _group(each, tree)]
    places = _places(file, tree, used, keys)
    primary = next((each for each in used if each.primary), None)
    if primary is not None and primary.package:
        raise Fault(
            f"{shown(file)} is in the group {primary.package!r} of {shown(tree.root)}: begin it "
            "with the line '# @package _global_'"
        )
    return Composed(config, places, tree.root, _experiments(tree, used))


def _experiments(tree: Tree, used: Sequence[Any]) -> tuple[str, ...]:
    """The experiments that the file was given; not those that an experiment is based on."""
    if tree.name.startswith(GROUP):
        return ()
    chosen = dict.fromkeys(each.config_path for each in used if each.parent == tree.name)
    return tuple(path.removeprefix(GROUP) for path in chosen if path.startswith(GROUP))


def _addable(override: Any, tree: Tree) -> str:
    """The override as Hydra takes it; a key that no file has may be given without its ``+``."""
    text: str = override.input_line
    plain = override.type is not None and override.type.name == "CHANGE"
    return f"++{text}" if plain and not _group(override, tree) else text


def _group(override: Any, tree: Tree) -> bool:
    """Does it choose a file of a group, and not the value of a key?"""
    folders = [folder for folder in (tree.root, tree.beside) if folder is not None]
    chosen = any((folder / override.key_or_group).is_dir() for folder in folders)
    return chosen or override.package is not None


def _places(file: Path, tree: Tree, used: Sequence[Any], keys: Sequence[Any]) -> Places:
    found = [(tree.file_of(each.config_path), each.package or "") for each in used]
    return Places(
        file,
        layers=tuple(layer_of(each, package) for each, package in found if each is not None),
        overrides=tuple((tuple(key.split(".")), text) for key, text in keys),
    )


class _Hydra:
    """The four things that are asked of Hydra while it is set up for a folder."""

    def __init__(self) -> None:
        self._instance = optional("hydra.core.global_hydra", extra="train").GlobalHydra.instance()
        self._parser = optional("hydra.core.override_parser.overrides_parser", extra="train")
        self._run = optional("hydra.types", extra="train").RunMode.RUN
        self._compose = optional("hydra", extra="train").compose

    def parse(self, overrides: Sequence[str]) -> list[Any]:
        """The overrides, taken apart."""
        parsed: list[Any] = self._parser.OverridesParser.create().parse_overrides(list(overrides))
        return parsed

    def files(self, name: str, overrides: list[str]) -> list[Any]:
        """Every file that is composed, in order, with the package its contents go to."""
        loader = self._instance.config_loader()
        listed = loader.compute_defaults_list(name, overrides, self._run)
        return [each for each in listed.defaults if each.config_path is not None]

    def compose(self, name: str, overrides: list[str]) -> Any:
        """The composed configuration, without Hydra's own section."""
        return self._compose(name, overrides)


@contextmanager
def hydra_loader(root: Path) -> Iterator[_Hydra]:
    """Hydra for a folder; whatever it was set up for before is back afterwards."""
    hydra = optional("hydra", extra="train")
    running = optional("hydra.core.global_hydra", extra="train").GlobalHydra
    base = optional("hydra.version", extra="train").VersionBase.instance()
    before, in_use = base.getbase(), running.instance().hydra
    running.instance().clear()
    with warnings.catch_warnings():
        # the file's own values win, which is what everybody means who leaves `_self_` out
        warnings.filterwarnings("ignore", message=".*missing `_self_`")
        try:
            with hydra.initialize_config_dir(str(root), version_base=VERSION):
                yield _Hydra()
        finally:
            base.version_base, running.instance().hydra = before, in_use
