"""Objects from sections of a configuration, by ``_target_`` or by a ``_name_`` in a registry.

An error names the key, with the file and line that set it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType
from typing import Any, Final, cast, get_args

from torch import Tensor

from penstock.errors import ConfigError, PlanError, SourceError, first_line
from penstock.registry import Registry, close_name, did_you_mean, unknown_name
from penstock.training.config import Settings

RESERVED: Final = ("_name_", "_target_", "_partial_", "_args_", "_recursive_", "_convert_")

OURS: Final = (ConfigError, PlanError, SourceError)
NUMBERS: Final = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Maker:
    """Creates the objects that sections describe; errors have the file and line of the key.

    Args:
        settings: The configuration that the sections are of.
    """

    settings: Settings

    def make(
        self,
        key: str,
        section: Any,
        registry: Registry[Any] | None = None,
        *args: Any,
        given: Mapping[str, Any] | None = None,
        fixed: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the object that a section describes.

        Args:
            key: The section's key: ``"model"``, ``"dataset.train"``.
            section: Keys of the object and its ``_target_`` or ``_name_``; or a name alone.
            registry: Resolves a ``_name_``; without one, only ``_target_`` is accepted.
            *args: Positional arguments of the call.
            given: Further arguments, passed if the object accepts them and the section lacks them.
            fixed: Further arguments that override the section.
        """
        options = as_section(section)
        fixed = dict(fixed or {})
        wanted = {n: v for n, v in options.items() if n not in RESERVED and n not in fixed}
        by_target = "_target_" in options
        function = self._target(key, options) if by_target else self._named(key, options, registry)
        known = _parameters(function)
        for name, value in (given or {}).items():
            if name not in wanted and name in (known or {}):
                fixed.setdefault(name, value)
        args = (*options.get("_args_", ()), *args)
        partly = bool(options.get("_partial_"))
        self._check(key, function, len(known or {}) if partly else len(args), wanted, fixed)
        if options.get("_recursive_", True):
            wanted = {name: self._nested(f"{key}.{name}", each) for name, each in wanted.items()}
        if partly:
            bound = args or wanted or fixed
            return partial(function, *args, **wanted, **fixed) if bound else function
        with self.refusals(key, options, foreign=not by_target):
            return function(*args, **wanted, **fixed)

    @contextmanager
    def refusals(
        self, key: str, section: Mapping[str, Any], *, foreign: bool = False
    ) -> Iterator[None]:
        """Add the key, file and line to errors that are raised in a block.

        Args:
            key: The section's key: ``"dataset"``.
            section: The section; an error may name one of its keys.
            foreign: Also convert a TypeError or ValueError of other libraries.
        """
        where = self.settings.where
        try:
            yield
        except OURS as error:
            # our messages name the argument, so the line of exactly that key can be given
            text, name = str(error), _named_in(section, str(error))
            place = key if name is None else f"{key}.{name}"
            if name is not None and text.startswith(f"{name} "):
                text = f"{place} ({where(place)}) {text.removeprefix(name).lstrip()}"
            else:
                text = f"{place} ({where(place)}): {text}"
            raise next(kind for kind in OURS if isinstance(error, kind))(text) from error
        except (TypeError, ValueError) as error:
            if not foreign:
                raise
            text = first_line(error)
            name = _by_value(section, text)
            place, what = (key, "") if name is None else (f"{key}.{name}", f": {key}")
            raise ConfigError(f"{place} ({where(place)}){what} cannot be made: {text}") from error

    def _nested(self, key: str, value: Any) -> Any:
        """Return a value with the ``_target_`` sections in it made."""
        if isinstance(value, Mapping):
            if "_target_" in value:
                return self.make(key, value)
            return {name: self._nested(f"{key}.{name}", each) for name, each in value.items()}
        return [self._nested(key, each) for each in value] if isinstance(value, list) else value

    def _target(self, key: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        path = options["_target_"]
        try:
            found = find_object(str(path))
        except (ImportError, AttributeError, ValueError) as error:
            why = f"{path!r} cannot be imported: {error}"
            raise self.settings.refused(f"{key}._target_", why) from error
        if not callable(found):
            raise self.settings.refused(f"{key}._target_", f"{path!r} is not a class or function")
        return cast("Callable[..., Any]", found)

    def _named(self, key: str, options: Mapping[str, Any], registry: Registry[Any] | None) -> Any:
        name = options.get("_name_")
        if registry is None or name is None:
            wanted = "_target_" if registry is None else "_target_ or _name_"
            raise self.settings.refused(key, f"has no {wanted}: add one")
        if name not in registry:
            unknown = unknown_name(registry.kind, name, registry)
            hint = "" if close_name(name, registry) else "; register yours in a module of imports"
            raise self.settings.refused(f"{key}._name_", unknown + hint)
        return registry.find(name)

    def _check(
        self,
        key: str,
        function: Callable[..., Any],
        args: int,
        wanted: Mapping[str, Any],
        fixed: Mapping[str, Any],
    ) -> None:
        """Refuse texts for numbers, unknown parameters, and a call without a required one."""
        known = _parameters(function)
        if known is None:
            return
        called = getattr(function, "__name__", function)
        any_name = any(each.kind is each.VAR_KEYWORD for each in known.values())
        for name, value in wanted.items():
            words = number_words(known[name].annotation) if name in known else None
            if words is not None and isinstance(value, str):
                where = self.settings.where(f"{key}.{name}")
                raise ConfigError(f"{key}.{name} ({where}) must be {words}, got {value!r}")
            if name not in known and not any_name:
                meant = did_you_mean(name, known, otherwise="it takes")
                raise self.settings.refused(
                    f"{key}.{name}", f"{called} has no such parameter{meant}"
                )
        for each in list(known.values())[args:]:
            named = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            if named and each.default is each.empty and each.name not in {*wanted, *fixed}:
                raise self.settings.refused(
                    key, f"{called} needs {each.name!r}: set {key}.{each.name}"
                )


def as_section(section: Any) -> dict[str, Any]:
    """Return a copy of a section; a name alone is a section with a ``_name_``."""
    return {"_name_": section} if isinstance(section, str) else dict(section)


def as_list(value: Any) -> list[Any]:
    """Return None, one value or several as a list, without those that are None."""
    several = value if isinstance(value, list | tuple) else [value]
    return [each for each in several if each is not None]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    with suppress(Exception):  # annotations need not be importable names
        return inspect.signature(function, eval_str=True).parameters
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def find_object(path: str) -> Any:
    """Return what a dotted path names: modules first, then attributes.

    >>> find_object("collections.abc.Mapping.get").__name__
    'get'
    """
    try:
        return resolve_name(path)
    except AttributeError:
        import_module(path.rpartition(".")[0])  # reports what a module that exists fails to import
        raise


def _named_in(section: Mapping[str, Any], text: str) -> str | None:
    """Return the key that a message of ours names first: at its start, in quotes, or as ``key=``.

    >>> _named_in({"bits": 8, "bist": 4}, "unknown key 'bist': did you mean 'bits'?")
    'bist'
    """
    found = {}
    for name in map(str, section):
        same = re.escape(name)
        match = re.search(rf"^{same}\b|'{same}'|\b{same}=", text)
        if match:
            found[name] = match.start()
    return min(found, key=lambda name: found[name]) if found else None


def _by_value(section: Mapping[str, Any], text: str) -> str | None:
    """Return the one key whose number a message ends with.

    >>> _by_value({"_name_": "sgd", "lr": -1}, "Invalid learning rate: -1")
    'lr'
    """
    numbers = {n: v for n, v in section.items() if isinstance(v, int | float)}
    found = [str(name) for name, value in numbers.items() if text.endswith(f" {value!r}")]
    return found[0] if len(found) == 1 else None


def number_words(annotation: Any) -> str | None:
    """Return what a parameter for numbers accepts, for messages; None for any other parameter.

    >>> number_words(float | None), number_words(str | int)
    ('a number or null', None)
    """
    kinds = get_args(annotation) or (annotation,)
    if not all(kind in (*NUMBERS, NoneType, None, Tensor) for kind in kinds):
        return None
    words = [words for kind, words in NUMBERS.items() if kind in kinds]
    null = ["null"] if NoneType in kinds or None in kinds else []
    return " or ".join(words + null) if words else None


def import_users(settings: Settings) -> None:
    """Import the modules of ``imports``, which may register models and datasets by name.

    They are looked up on Python's path, then in the working directory, beside the configuration,
    and beside its tree. The path stays extended, because workers import them again by name.
    """
    folders = (Path.cwd(), settings.path.parent, settings.root, settings.root.parent)
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that no installed package is hidden
    for number, name in enumerate(settings.imports):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, but a module it imports does not
            raise ConfigError(
                f"imports[{number}] ({settings.where('imports')}): there is no module {name!r} "
                f"on the Python path or beside {settings.path.name}"
            ) from error
