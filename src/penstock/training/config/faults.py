"""What Hydra, OmegaConf and YAML find wrong, in one sentence with its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.registry import close_name
from penstock.training.config.places import layer_of, shown, yaml
from penstock.training.config.tree import Tree


class Fault(Exception):
    """Why a configuration cannot be composed; ``missing``: a file of the tree is not there."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


@contextmanager
def read_faults(file: Path, tree: Tree, overrides: Sequence[str]) -> Iterator[None]:
    """A block in which what goes wrong with files or overrides becomes a `Fault`."""
    errors = optional("hydra.errors", extra="train")
    omegaconf = optional("omegaconf.errors", extra="train")
    try:
        yield
    except errors.OverrideParseException as error:
        raise Fault(
            f"{error.override!r} on the command line is not of the form key=value: "
            "quote it if it has spaces or brackets"
        ) from error
    except errors.MissingConfigException as error:
        raise Fault(_missing(error, tree, overrides), missing=True) from error
    except yaml.MarkedYAMLError as error:
        raise Fault(_bad_yaml(error, file)) from error
    except (UnicodeDecodeError, yaml.reader.ReaderError) as error:
        raise Fault(f"{shown(file)} is not text in UTF-8: {_first_line(error)}") from error
    except OSError as error:
        where = shown(Path(error.filename)) if error.filename else shown(file)
        raise Fault(f"{where} cannot be read: {error.strerror or error}") from error
    except ConfigError as error:  # of ours
        raise Fault(str(error)) from error
    except (
        errors.HydraException,
        omegaconf.OmegaConfBaseException,
        *(ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError),
    ) as error:
        raise Fault(f"{shown(file)} cannot be composed: {_first_line(error)}") from error


def _bad_yaml(error: Any, file: Path) -> str:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be read"
    if mark is None:
        return f"{shown(file)} is not YAML: {problem}"
    return f"{shown(Path(mark.name))}, line {mark.line + 1}, is not YAML: {problem}"


def _missing(error: Exception, tree: Tree, overrides: Sequence[str]) -> str:
    wanted = str(getattr(error, "missing_cfg_file", None) or _first_line(error))
    group, _, name = wanted.rpartition("/")
    options = _options(tree, group)
    near = close_name(name, options)
    meant = f"did you mean {near!r}? (" if near else "("
    available = f"{meant}available: {', '.join(options) or 'none'})"
    return (
        f"{wanted!r}, {_asked_by(error, wanted, tree, overrides)}, is not in {shown(tree.root)}: "
        f"{available}"
    )


def _options(tree: Tree, group: str) -> list[str]:
    folders = [tree.root / group, *([tree.beside / group] if tree.beside else [])]
    return sorted({each.stem for folder in folders for each in folder.glob("*.yaml")})


def _asked_by(error: Exception, wanted: str, tree: Tree, overrides: Sequence[str]) -> str:
    """Who named it: an override, or the line of a file's ``defaults``."""
    name = wanted.rpartition("/")[2]
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key and wanted == f"{key.partition('@')[0]}/{value}":
            return f"asked for by {override!r} on the command line"
    asking = str(error).partition("'")[2].partition("'")[0]
    file = tree.file_of(asking)
    if file is None:
        return "asked for"
    for node in _scalars(layer_of(file, "").node):
        if node.value in (name, wanted, f"/{wanted}") or node.value.endswith(f"/{name}"):
            return f"asked for in {shown(file)}, line {node.start_mark.line + 1}"
    return f"asked for in {shown(file)}"


def _scalars(node: object) -> Iterator[Any]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _scalars(each)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
