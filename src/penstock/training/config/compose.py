"""One configuration out of many YAML files and overrides, composed by Hydra, as a plain dict.

Hydra's global state is restored afterwards. Errors of Hydra, OmegaConf and YAML become one
sentence with the file and line.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, first_line
from penstock.extras import optional
from penstock.registry import close_name

yaml: Any = optional("yaml", extra="train")
hydra: Any = optional("hydra", extra="train")
omegaconf: Any = optional("omegaconf", extra="train")

ROOT_NAMES: Final = ("configs", "conf", "config")
MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 20_000  # with all aliases expanded: Hydra takes seconds for this many
MAX_DEPTH: Final = 64  # nested lists and sections
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
        return [each for each in (self.root, self.beside) if each is not None]

    def file_of(self, config_path: str) -> Path | None:
        """Return the file that Hydra calls ``config_path``; None for one of Hydra's own."""
        files = (folder / f"{config_path}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)


def existing_file(path: str | os.PathLike[str], config_dir: Path | None) -> Path:
    """Return the absolute path of a configuration file."""
    file = Path(path)
    if not file.exists() and config_dir is not None and (config_dir / file).exists():
        file = config_dir / file
    if not file.exists():
        raise ConfigError(f"there is no configuration file {str(path)!r}: check its path")
    if not file.is_file():
        raise ConfigError(f"{str(path)!r} is a folder: pass the configuration file in it")
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

    With ``overriding``, also ``override`` and ``optional`` entries, which need not exist.
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
    if size > MAX_BYTES:
        most = f"a configuration may have {MAX_BYTES:,}: {ADVICE}"
        raise ConfigError(f"{display_path(path)} has {size:,} bytes, {most}")
    line = _first_excess(path.read_text(encoding="utf-8"))
    if line is not None:
        raise ConfigError(
            f"{display_path(path)}, line {line}: more than {MAX_VALUES:,} values, or more than "
            f"{MAX_DEPTH} levels, with every alias written out: {ADVICE}"
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
            if values > MAX_VALUES or len(opened) + inside > MAX_DEPTH:
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


class CompositionError(ConfigError):
    """A configuration that cannot be composed."""


class MissingFileError(CompositionError):
    """A configuration that names a file which its tree does not have."""


def compose(path: Any, overrides: Sequence[str], config_dir: Path | None) -> Composed:
    """Return the file at ``path`` with its ``defaults`` and the overrides applied."""
    file = existing_file(path, config_dir)
    with suppress(UnicodeDecodeError):  # reported below, as for every file of the tree
        check_size(file)
    nearest, *further = candidate_trees(file, config_dir)
    try:
        return _compose_in(nearest, file, tuple(overrides))
    except MissingFileError:
        for tree in further:
            with suppress(CompositionError):  # the error of the nearest tree is the useful one
                return _compose_in(tree, file, tuple(overrides))
        raise


def _compose_in(tree: Tree, file: Path, overrides: tuple[str, ...]) -> Composed:
    with _explained_errors(file, tree, overrides), _hydra_in(tree.root) as loader:
        check_sizes(file, tree, overrides)
        parser = hydra.core.override_parser.overrides_parser.OverridesParser.create()
        parsed = parser.parse_overrides(list(overrides))
        given = [_forced(override, tree) for override in parsed]
        if tree.beside is not None:
            given.append(f"hydra.searchpath=[file://{tree.beside}]")
        listed = loader.compute_defaults_list(tree.name, given, hydra.types.RunMode.RUN).defaults
        used = [each for each in listed if each.config_path is not None]
        config = hydra.compose(tree.name, given)
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
    running = hydra.core.global_hydra.GlobalHydra
    base = hydra.version.VersionBase.instance()
    before, in_use = base.getbase(), running.instance().hydra
    running.instance().clear()
    with warnings.catch_warnings():
        # without `_self_` the file's own values win, which is what people expect
        warnings.filterwarnings("ignore", message=".*missing `_self_`")
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
    config, provenance = composed.config, composed.provenance
    if not isinstance(config, omegaconf.DictConfig):
        raise ConfigError(f"{display_path(provenance.path)} must have sections: found a list")
    found: dict[str, Any] = {}
    for name in map(str, config):
        found[name] = {}
        if name not in ignored:
            found[name] = _resolved_section(config, name, provenance)
        elif omegaconf.OmegaConf.is_missing(config, name) or (
            not omegaconf.OmegaConf.is_interpolation(config, name) and config[name] is None
        ):
            found[name] = None
    if any(layer.line_of(("hydra",)) for layer in provenance.layers):
        found["hydra"] = {}  # Hydra removes it from the configuration
    return found


def _resolved_section(config: Any, name: Any, provenance: Provenance) -> Any:
    try:
        value = config[name]
        if isinstance(value, omegaconf.DictConfig | omegaconf.ListConfig):
            return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value
    except omegaconf.errors.OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or name)
        if isinstance(error, omegaconf.errors.MissingMandatoryValue):
            raise ConfigError(
                f"{key} ({provenance.where(key)}) is ???: set it, in a file or as "
                f"{key}=... on the command line"
            ) from error
        why = str(getattr(error, "msg", None) or error).splitlines()[0]
        raise ConfigError(f"{key} ({provenance.where(key)}) cannot be resolved: {why}") from error


# -- errors


@contextmanager
def _explained_errors(file: Path, tree: Tree, overrides: Sequence[str]) -> Iterator[None]:
    """Turn errors about files and overrides into a `CompositionError` with file and line."""
    known: tuple[Any, ...] = hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException
    known += (yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError)
    try:
        yield
    except hydra.errors.MissingConfigException as error:
        raise MissingFileError(_missing_file(error, tree, overrides)) from error
    except hydra.errors.OverrideParseException as error:
        raise CompositionError(
            f"{error.override!r} on the command line is not of the form key=value: quote it if it "
            "has spaces or brackets"
        ) from error
    except (*known, AssertionError, RecursionError) as error:
        raise CompositionError(_unreadable(error, file)) from error


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
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if re.search(rf"[\s/]{re.escape(name)}\b", line.partition("#")[0]):
            return f"requested in {display_path(file)}, line {number}"
    return f"requested in {display_path(file)}"
