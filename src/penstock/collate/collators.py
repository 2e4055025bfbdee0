"""The registry of collators: by name, and by the task that they fit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, TypeAlias, TypeVar

from penstock.arguments import instance, text
from penstock.collate.default import DefaultCollator
from penstock.collate.media import AudioCollator, VisionCollator
from penstock.collate.task_spec import MODALITIES, TASK_TYPES, TaskSpec, check_task_spec
from penstock.collate.text import TextCollator
from penstock.errors import ConfigError
from penstock.registry import Registry, close_name, unknown_name

Collator: TypeAlias = Callable[[list[Any]], Any]
Factory = TypeVar("Factory", bound=Callable[..., Any])

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class CollatorInfo:
    """A registered collator.

    Args:
        name: Its name in the registry.
        factory: Makes a collator; called with the keyword arguments that it accepts.
        modality: The modality it is for; "any" for all, None for none.
        description: One line for listings.
        task_type: The only task type it is for; None for all of its modality.
    """

    name: str
    factory: Callable[..., Any]
    modality: str | None = None
    description: str = ""
    task_type: str | None = None


class CollatorRegistry:
    """Collators by name, selected by a task's type or modality.

    A new registry holds the built-in collators; ``get_instance()`` returns the shared registry. If
    several collators fit a task, one for its task type is preferred to one for its modality, and
    that to one for any modality; among equals the one registered last is used.

    >>> registry = CollatorRegistry()
    >>> registry.get_collator(TaskSpec.vision_tiny(), mean=[0.5] * 3, std=[0.5] * 3).mean
    (0.5, 0.5, 0.5)
    >>> [info.name for info in registry.list_collators()]
    ['text', 'vision', 'audio', 'default']
    >>> registry.get_collator(collator_name="visoin")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown collator 'visoin': did you mean 'vision'? ...
    """

    _shared: ClassVar[CollatorRegistry | None] = None

    def __init__(self) -> None:
        self._collators: Registry[CollatorInfo] = Registry("collator")
        for info in BUILT_IN:
            self._collators.add(info.name, info)

    @classmethod
    def get_instance(cls) -> CollatorRegistry:
        """Return the shared registry."""
        if cls._shared is None:
            cls._shared = cls()
        return cls._shared

    @classmethod
    def reset(cls) -> None:
        """Discard the shared registry; the next `get_instance` has only the built-in collators."""
        cls._shared = None

    def register(
        self,
        name: str,
        modality: str | None = None,
        description: str = "",
        task_type: str | None = None,
    ) -> Callable[[Factory], Factory]:
        """Return a decorator that registers a factory of collators.

        A new task type or modality also becomes valid in a `TaskSpec`.

        Args:
            name: Name of the collator; replaces an earlier one of that name.
            modality: The modality it is for; "any" for all, None for none.
            description: One line for listings.
            task_type: The only task type it is for.
        """
        text("name", name, error=ConfigError)
        instance("description", description, str, error=ConfigError)
        for kind, value in (("modality", modality), ("task_type", task_type)):
            if value is not None:
                text(kind, value, error=ConfigError)

        def decorate(factory: Factory) -> Factory:
            if not callable(factory):
                raise ConfigError(f"a collator's factory must be callable, got {factory!r}")
            self._collators.add(name, CollatorInfo(name, factory, modality, description, task_type))
            if task_type is not None and task_type not in TASK_TYPES:
                TASK_TYPES.add(task_type, "")
            if modality not in (None, "any") and modality not in MODALITIES:
                MODALITIES.add(modality, ())
            return factory

        return decorate

    def get_collator(
        self, task_spec: TaskSpec | None = None, collator_name: str | None = None, **kwargs: Any
    ) -> Collator:
        """Return a new collator by name, or the one that fits a task.

        Args:
            task_spec: The task; also passed to the factory.
            collator_name: Selects a collator regardless of the task.
            **kwargs: Passed to the factory, if it accepts them.

        Raises:
            ConfigError: No collator fits, or an argument looks like a misspelling.
        """
        check_task_spec(task_spec)
        if collator_name is not None:
            text("collator_name", collator_name, error=ConfigError)
            info = self._collators.find(collator_name)
        elif task_spec is not None:
            info = self._choose(task_spec)
        else:
            raise ConfigError("cannot select a collator: pass task_spec= or collator_name=")
        return _make(info, {"task_spec": task_spec, **kwargs})

    def list_collators(self) -> list[CollatorInfo]:
        """Return all registered collators in the order of registration."""
        return self._collators.entries()

    def _choose(self, task_spec: TaskSpec) -> CollatorInfo:
        ranked = [(_fit(info, task_spec), info) for info in reversed(self._collators.entries())]
        best, info = max(ranked, key=itemgetter(0))  # of equals, the latest registration
        if best == 0:
            raise ConfigError(
                unknown_name("modality", task_spec.modality, self._collators)
                + ", and none of them takes any modality"
            )
        log.debug("task %r uses collator %r", task_spec.name, info.name)
        return info


def _fit(info: CollatorInfo, task_spec: TaskSpec) -> int:
    """Return how well a collator fits: 3 by task type, 2 by modality, 1 for any, 0 not at all."""
    if info.modality not in (None, "any", task_spec.modality):
        return 0
    if info.task_type is not None:
        return 3 if info.task_type == task_spec.task_type else 0
    return {None: 0, "any": 1}.get(info.modality, 2)


def _make(info: CollatorInfo, offered: dict[str, Any]) -> Collator:
    """Return a collator made with those of the offered arguments that the factory accepts.

    Other arguments are left out, unless one looks like a misspelling of an accepted argument.
    """
    parameters = inspect.signature(info.factory).parameters.values()
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in () if takes_all else offered.keys() - {*accepted, *CONTEXT}:
        meant = close_name(name, set(accepted) - offered.keys())
        if meant is not None:
            raise ConfigError(f"collator {info.name!r} takes no {name!r}: did you mean {meant!r}?")
    arguments = {k: v for k, v in offered.items() if takes_all or k in accepted}
    collator: Collator = info.factory(**arguments)
    return collator


CONTEXT = ("task_spec", "tokenizer")  # offered to every factory, so never a misspelling
BUILT_IN = (
    CollatorInfo("text", TextCollator, "text", "padding, masks, causal and masked LM, classes"),
    CollatorInfo("vision", VisionCollator, "vision", "scaled and normalised images"),
    CollatorInfo("audio", AudioCollator, "audio", "padded waveforms, spectrograms on demand"),
    CollatorInfo("default", DefaultCollator, "any", "nested dicts, tuples, tensors, numbers"),
)
