"""One configuration out of many files and overrides, composed by Hydra, as a plain dict.

Hydra's global state is restored afterwards. Errors of Hydra, OmegaConf and YAML become one
sentence with the file and line.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, first_line
from penstock.extras import optional
from penstock.registry import close_name
from penstock.training.config.files import (
    Layer,
    Provenance,
    Tree,
    candidate_trees,
    check_size,
    check_sizes,
    display_path,
    existing_file,
    yaml,
)

VERSION: Final = "1.3"  # of Hydra's rules: the values of a file override its `defaults`
GROUP: Final = "experiment/"  # each file of this group is a run of its own


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed configuration that is not resolved yet.

    Args:
        config: OmegaConf's ``DictConfig``.
        provenance: Where each key comes from.
        root: The folder of the configuration tree.
        experiments: The files of the group ``experiment`` that were chosen: ``audio/mine``.
    """

    config: Any
    provenance: Provenance
    root: Path
    experiments: tuple[str, ...]


class CompositionError(Exception):
    """Why a configuration cannot be composed; ``missing``: the tree lacks a file it names."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def compose(path: Any, overrides: Sequence[str], config_dir: Path | None) -> Composed:
    """Return the file at ``path`` with its ``defaults`` and the overrides applied."""
    file = existing_file(path, config_dir)
    with suppress(UnicodeDecodeError):  # reported below, as for every file of the tree
        check_size(file)
    nearest, *further = candidate_trees(file, config_dir)
    try:
        return _compose_in(nearest, file, tuple(overrides))
    except CompositionError as error:
        for tree in further if error.missing else ():
            with suppress(CompositionError):  # the error of the nearest tree is the useful one
                return _compose_in(tree, file, tuple(overrides))
        raise ConfigError(str(error)) from error


def _compose_in(tree: Tree, file: Path, overrides: tuple[str, ...]) -> Composed:
    with _explained_errors(file, tree, overrides), _hydra_in(tree.root) as loader:
        check_sizes(file, tree, overrides)
        parser = optional("hydra.core.override_parser.overrides_parser", extra="train")
        parsed = parser.OverridesParser.create().parse_overrides(list(overrides))
        given = [_forced(override, tree) for override in parsed]
        if tree.beside is not None:
            given.append(f"hydra.searchpath=[file://{tree.beside}]")
        run = optional("hydra.types", extra="train").RunMode.RUN
        listed = loader.compute_defaults_list(tree.name, given, run).defaults
        used = [each for each in listed if each.config_path is not None]
        config = optional("hydra", extra="train").compose(tree.name, given)
    primary = next((each for each in used if each.primary), None)
    if primary is not None and primary.package:
        raise CompositionError(
            f"{display_path(file)} is in the group {primary.package!r} of "
            f"{display_path(tree.root)}: begin it with the line '# @package _global_'"
        )
    files = [(tree.file_of(each.config_path), each.package or "") for each in used]
    provenance = Provenance(
        file,
        layers=tuple(Layer.of(each, package) for each, package in files if each is not None),
        overrides=tuple(
            (tuple(each.key_or_group.split(".")), each.input_line)
            for each in parsed
            if not _selects_group(each, tree)
        ),
    )
    return Composed(config, provenance, tree.root, _experiments(tree, used))


@contextmanager
def _hydra_in(root: Path) -> Iterator[Any]:
    """Set up Hydra for a folder and yield its config loader; restore Hydra's state afterwards."""
    running = optional("hydra.core.global_hydra", extra="train").GlobalHydra
    base = optional("hydra.version", extra="train").VersionBase.instance()
    before, in_use = base.getbase(), running.instance().hydra
    running.instance().clear()
    with warnings.catch_warnings():
        # without `_self_` the file's own values win, which is what people expect
        warnings.filterwarnings("ignore", message=".*missing `_self_`")
        hydra = optional("hydra", extra="train")
        try:
            with hydra.initialize_config_dir(str(root), version_base=VERSION):
                yield running.instance().config_loader()
        finally:
            base.version_base, running.instance().hydra = before, in_use


def _experiments(tree: Tree, used: Sequence[Any]) -> tuple[str, ...]:
    """Return the experiments that the main file chooses; not those they are based on."""
    if tree.name.startswith(GROUP):
        return ()
    chosen = dict.fromkeys(each.config_path for each in used if each.parent == tree.name)
    return tuple(path.removeprefix(GROUP) for path in chosen if path.startswith(GROUP))


def _forced(override: Any, tree: Tree) -> str:
    """Return the override for Hydra; a key that no file has needs no ``+`` from the user."""
    text: str = override.input_line
    changes = override.type is not None and override.type.name == "CHANGE"
    return f"++{text}" if changes and not _selects_group(override, tree) else text


def _selects_group(override: Any, tree: Tree) -> bool:
    """Return whether an override chooses a file of a group, and not the value of a key."""
    chosen = any((folder / override.key_or_group).is_dir() for folder in tree.folders)
    return chosen or override.package is not None


# -- the plain dict


def resolve(composed: Composed, ignored: Container[str]) -> dict[str, Any]:
    """Return the sections as plain values, with every ``${...}`` resolved.

    An ignored section is not resolved: it is ``{}``, or None where it is empty.
    """
    omegaconf = optional("omegaconf", extra="train")
    config, provenance = composed.config, composed.provenance
    if not isinstance(config, omegaconf.DictConfig):
        raise ConfigError(f"{display_path(provenance.path)} must have sections: found a list")
    found: dict[str, Any] = {}
    for name in map(str, config):
        found[name] = {}
        if name not in ignored:
            found[name] = _resolved_section(config, name, provenance)
        elif (node := config._get_node(name)) is None or node._is_missing() or node._is_none():
            found[name] = None
    if any(layer.line_of(("hydra",)) for layer in provenance.layers):
        found["hydra"] = {}  # Hydra removes it from the configuration
    return found


def _resolved_section(config: Any, name: Any, provenance: Provenance) -> Any:
    omegaconf = optional("omegaconf", extra="train")
    for key in _missing_keys(config, name, str(name)):
        raise ConfigError(
            f"{key} ({provenance.where(key)}) is ???: give it a value, in a file or as {key}=... "
            "on the command line"
        )
    try:
        value = config[name]
        if isinstance(value, omegaconf.DictConfig | omegaconf.ListConfig):
            return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value
    except omegaconf.errors.OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or name)
        why = str(getattr(error, "msg", None) or error).splitlines()[0]
        raise ConfigError(f"{key} ({provenance.where(key)}) cannot be resolved: {why}") from error


def _missing_keys(parent: Any, name: Any, key: str) -> Iterator[str]:
    """Yield keys whose value is ``???``, without following any ``${...}``."""
    omegaconf = optional("omegaconf", extra="train")
    node = parent._get_node(name)
    if node is not None and node._is_missing():
        yield key
    elif node is None or node._is_none() or node._is_interpolation():
        return
    elif isinstance(node, omegaconf.DictConfig):
        for each in node:
            yield from _missing_keys(node, each, f"{key}.{each}")
    elif isinstance(node, omegaconf.ListConfig):
        for number in range(len(node)):
            yield from _missing_keys(node, number, f"{key}[{number}]")


# -- errors


@contextmanager
def _explained_errors(file: Path, tree: Tree, overrides: Sequence[str]) -> Iterator[None]:
    """Turn errors about files and overrides into a `CompositionError` with file and line."""
    hydra = optional("hydra.errors", extra="train")
    omegaconf = optional("omegaconf.errors", extra="train")
    known: tuple[Any, ...] = (hydra.HydraException, omegaconf.OmegaConfBaseException)
    known += (yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError)
    try:
        yield
    except (*known, AssertionError, RecursionError) as error:
        if isinstance(error, hydra.OverrideParseException):
            text = f"{error.override!r} on the command line is not of the form key=value: "
            text += "quote it if it has spaces or brackets"
        elif isinstance(error, hydra.MissingConfigException):
            text = _missing_file(error, tree, overrides)
        else:
            text = _unreadable(error, file)
        missing = isinstance(error, hydra.MissingConfigException)
        raise CompositionError(text, missing=missing) from error


def _unreadable(error: Any, file: Path) -> str:
    """Return why a file cannot be read or composed, with its line where that is known."""
    where = display_path(file)
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
        at = f"{display_path(Path(mark.name))}, line {mark.line + 1}," if mark else where
        return f"{at} is not YAML: {problem or 'it cannot be read'}"
    if isinstance(error, UnicodeDecodeError | yaml.reader.ReaderError):
        return f"{where} is not text in UTF-8: {first_line(error)}"
    if isinstance(error, OSError):
        where = display_path(Path(error.filename)) if error.filename else where
        return f"{where} cannot be read: {error.strerror or error}"
    return f"{where} cannot be composed: {first_line(error)}"


def _missing_file(error: Exception, tree: Tree, overrides: Sequence[str]) -> str:
    wanted = str(getattr(error, "missing_cfg_file", None) or first_line(error))
    group, _, name = wanted.rpartition("/")
    options = sorted({f.stem for folder in tree.folders for f in (folder / group).glob("*.yaml")})
    near = close_name(name, options)
    meant = f"did you mean {near!r}? " if near else ""
    return (
        f"{wanted!r}, {_requested_by(error, wanted, tree, overrides)}, is not in "
        f"{display_path(tree.root)}: {meant}(available: {', '.join(options) or 'none'})"
    )


def _requested_by(error: Exception, wanted: str, tree: Tree, overrides: Sequence[str]) -> str:
    """Return what names a missing file: an override, or the line of a file's ``defaults``."""
    name = wanted.rpartition("/")[2]
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key and wanted == f"{key.partition('@')[0]}/{value}":
            return f"requested by {override!r} on the command line"
    file = tree.file_of(str(error).partition("'")[2].partition("'")[0])
    if file is None:
        return "requested"
    for node in _scalars(Layer.of(file, "").node):
        if node.value in (name, wanted, f"/{wanted}") or node.value.endswith(f"/{name}"):
            return f"requested in {display_path(file)}, line {node.start_mark.line + 1}"
    return f"requested in {display_path(file)}"


def _scalars(node: object) -> Iterator[Any]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode | yaml.MappingNode):
        for each in node.value:  # of a mapping: pairs of key and value
            yield from _scalars(each[1] if isinstance(each, tuple) else each)
