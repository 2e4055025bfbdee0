"""Objects from their sections: by ``_target_``, or by a ``_name_`` in a registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.registry import Registry, close_name, did_you_mean, unknown_name
from penstock.training.build.refusing import number_words, refused_with_place
from penstock.training.config import Settings

RESERVED: Final = ("_name_", "_target_", "_partial_", "_args_", "_recursive_", "_convert_")


class Maker:
    """Makes what the sections of a configuration name; its errors tell file and line."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def make(
        self,
        key: str,
        section: Any,
        registry: Registry[Any] | None = None,
        *args: Any,
        given: Mapping[str, Any] | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> Any:
        """The object a section describes.

        Args:
            key: Where the section is: ``"model"``, ``"dataset.train"``.
            section: Keys of the object and its ``_target_`` or ``_name_``; or a name alone.
            registry: Of names; without one only ``_target_`` is understood.
            *args: Come first in the call.
            given: What the object gets if it takes it and the section does not have it.
            told: What the object gets whatever the section says.
        """
        options = {"_name_": section} if isinstance(section, str) else dict(section)
        told = told or {}
        options = {name: value for name, value in options.items() if name not in told}
        by_target = "_target_" in options
        function = self._target(key, options) if by_target else self._named(key, options, registry)
        wanted = {name: value for name, value in options.items() if name not in RESERVED}
        self._check(key, function, wanted)
        extra = {n: v for n, v in (given or {}).items() if n not in wanted and _takes(function, n)}
        extra |= told
        if not {"_partial_", "_args_"} & options.keys():
            self._check_complete(key, function, args, wanted, extra)
        if not by_target:
            nested = self._nested(key, wanted)
            with self.refusals(key, options, foreign=True):
                return function(*args, **nested, **extra)
        made = self._instantiated(key, options)
        if options.get("_partial_"):
            return partial(made, **extra)
        with self.refusals(key, options):
            return made(*args, **extra)

    def refusals(
        self, key: str, section: Mapping[str, Any], *, foreign: bool = False
    ) -> AbstractContextManager[None]:
        """A block whose refusals tell where their key was given."""
        return refused_with_place(self._settings, key, section, foreign=foreign)

    def _nested(self, key: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with what they describe by ``_target_`` made."""
        return {
            name: self.make(f"{key}.{name}", value)
            if isinstance(value, Mapping) and "_target_" in value
            else value
            for name, value in options.items()
        }

    def function(self, key: str, section: Mapping[str, Any], registry: Registry[Any]) -> Any:
        """A registered function, with the keys of its section already filled in."""
        function = self._named(key, section, registry)
        options = {name: value for name, value in section.items() if name != "_name_"}
        self._check(key, function, options)
        return partial(function, **options) if options else function

    def _target(self, key: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        path = options["_target_"]
        try:
            found = located(str(path))
        except (ImportError, AttributeError) as error:
            raise self.refused(
                f"{key}._target_", f"{path!r} cannot be imported: {error}"
            ) from error
        if not callable(found):
            raise self.refused(f"{key}._target_", f"{path!r} is no class or function")
        function: Callable[..., Any] = found
        return function

    def _named(
        self, key: str, options: Mapping[str, Any], registry: Registry[Any] | None
    ) -> Callable[..., Any]:
        name = options.get("_name_")
        if registry is None or name is None:
            wanted = "_target_" if registry is None else "_target_ or _name_"
            raise self.refused(key, f"has no {wanted}: say what it is")
        if name not in registry:
            unknown = unknown_name(registry.kind, name, registry)
            hint = "" if close_name(name, registry) else "; register yours in a module of imports"
            raise self.refused(f"{key}._name_", unknown + hint)
        function: Callable[..., Any] = registry.find(name)
        return function

    def _check(self, key: str, function: Callable[..., Any], wanted: Mapping[str, Any]) -> None:
        known = _parameters(function)
        self._check_numbers(key, known or {}, wanted)
        if known is None or any(each.kind is each.VAR_KEYWORD for each in known.values()):
            return
        for name in wanted:
            if name not in known:
                meant = did_you_mean(name, known, otherwise="it takes")
                called = getattr(function, "__name__", function)
                raise self.refused(f"{key}.{name}", f"{called} has no such parameter{meant}")

    def _check_numbers(
        self, key: str, known: Mapping[str, inspect.Parameter], wanted: Mapping[str, Any]
    ) -> None:
        for name, value in wanted.items():
            words = number_words(known[name].annotation) if name in known else None
            if words is not None and isinstance(value, str):
                place = f"{key}.{name}"
                raise ConfigError(
                    f"{place} ({self._settings.where(place)}) must be {words}, got {value!r}"
                )

    def _check_complete(
        self,
        key: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *keywords: Mapping[str, Any],
    ) -> None:
        known = list((_parameters(function) or {}).values())
        for each in known[len(args) :]:
            needed = each.default is each.empty and each.kind in (
                each.POSITIONAL_OR_KEYWORD,
                each.KEYWORD_ONLY,
            )
            if needed and not any(each.name in given for given in keywords):
                called = getattr(function, "__name__", function)
                raise self.refused(key, f"{called} needs {each.name!r}: give {key}.{each.name}")

    def _instantiated(self, key: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        """The target with its keys filled in, nested targets made; the caller calls it."""
        hydra, errors = optional("hydra.utils", extra="train"), optional("hydra.errors", "train")
        try:
            found = hydra.instantiate({"_convert_": "all", **options}, _partial_=True)
        except errors.InstantiationException as error:
            cause = error.__cause__
            if cause is None or "Error locating target" in str(error):
                why = " ".join(str(error).split())
                raise self.refused(key, f"cannot be made: {why}") from error
            cause.add_note(f"while making {key} ({self._settings.where(key)})")
            raise cause from None
        function: Callable[..., Any] = found
        return function

    def refused(self, key: str, why: str) -> ConfigError:
        """The error for a key, with where it was given."""
        return ConfigError(f"{key} ({self._settings.where(key)}): {why}")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    with suppress(Exception):  # annotations are written for readers: they need not evaluate
        return inspect.signature(function, eval_str=True).parameters
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a builtin that does not tell
        return None


def _takes(function: Callable[..., Any], name: str) -> bool:
    return name in (_parameters(function) or {})


def located(path: str) -> Any:
    """What a dotted path names: a module as far as there are modules, then its attributes.

    >>> located("collections.abc.Mapping.get").__name__
    'get'
    """
    parts = path.split(".")
    found = import_module(parts[0])
    for number, part in enumerate(parts[1:], start=2):
        name = ".".join(parts[:number])
        if not hasattr(found, part) and isinstance(found, ModuleType):
            try:
                import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise  # it is there, and needs something that is not
        found = getattr(found, part)
    return found
