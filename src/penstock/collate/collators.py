"""The collators by name, and the one that fits a task."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from penstock.arguments import instance, text
from penstock.collate.audio import AudioCollator
from penstock.collate.default import DefaultCollator
from penstock.collate.task_spec import MODALITIES, TASK_TYPES, TaskSpec, check_task_spec
from penstock.collate.text import TextCollator
from penstock.collate.vision import VisionCollator
from penstock.errors import ConfigError
from penstock.registry import Registry, close_name, unknown_name

Collator: TypeAlias = Callable[[list[Any]], Any]
Factory = TypeVar("Factory", bound=Callable[..., Any])

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class CollatorInfo:
    """A registered collator: how to make one, and what it is for."""

    name: str
    factory: Callable[..., Any]
    modality: str | None = None
    description: str = ""
    task_type: str | None = None


class CollatorRegistry:
    """Collators by name, chosen by a task's type or modality.

    A new registry holds the built-in ones; ``get_instance()`` is the one all share. Of several
    that fit a task, one registered for its task type is taken before one for its modality, that
    before one for any, and the latest of its kind first.

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
        """The registry all share."""
        if cls._shared is None:
            cls._shared = cls()
        return cls._shared

    @classmethod
    def reset(cls) -> None:
        """Forget the shared registry; the next `get_instance` has the built-in ones only."""
        cls._shared = None

    def register(
        self,
        name: str,
        modality: str | None = None,
        description: str = "",
        task_type: str | None = None,
    ) -> Callable[[Factory], Factory]:
        """A decorator for a factory of collators; the factory is called by `get_collator`.

        A task type or modality that is new becomes one that a `TaskSpec` may have.
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
        self,
        task_spec: TaskSpec | None = None,
        collator_name: str | None = None,
        **kwargs: Any,
    ) -> Collator:
        """The collator of that name, else the one for that task.

        Its factory gets ``task_spec`` and those of ``kwargs`` that it accepts.
        """
        check_task_spec(task_spec)
        if collator_name is not None:
            text("collator_name", collator_name, error=ConfigError)
            info = self._collators.find(collator_name)
        elif task_spec is not None:
            info = self._choose(task_spec)
        else:
            raise ConfigError(
                "a collator is found by task_spec= or collator_name=, got neither "
                f"(available: {', '.join(self._collators)})"
            )
        return make(info, {"task_spec": task_spec, **kwargs})

    def list_collators(self) -> list[CollatorInfo]:
        """All that are registered, the latest last."""
        return self._collators.entries()

    def _choose(self, task_spec: TaskSpec) -> CollatorInfo:
        ranked = [(fit(info, task_spec), info) for info in reversed(self._collators.entries())]
        best, info = max(ranked, key=lambda each: each[0])  # the first of equals: the latest
        if best == 0:
            raise ConfigError(
                unknown_name("modality", task_spec.modality, self._collators)
                + ", and none of them takes any modality"
            )
        log.debug("task %r is collated by %r", task_spec.name, info.name)
        return info


def fit(info: CollatorInfo, task_spec: TaskSpec) -> int:
    """How closely a collator fits a task: 3 by task type, 2 by modality, 1 if for any, 0 not."""
    if info.modality not in (None, "any", task_spec.modality):
        return 0
    if info.task_type is not None:
        return 3 if info.task_type == task_spec.task_type else 0
    return {None: 0, "any": 1}.get(info.modality, 2)


def make(info: CollatorInfo, offered: dict[str, Any]) -> Collator:
    """What the factory makes of those of the arguments that it accepts.

    An argument it does not accept is left out, unless it looks like a misspelling of one that it
    does. What the factory raises is not touched.
    """
    parameters = inspect.signature(info.factory).parameters.values()
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return _called(info, offered)
    for name in offered.keys() - {*accepted, *CONTEXT}:
        meant = close_name(name, set(accepted) - offered.keys())
        if meant is not None:
            raise ConfigError(
                f"collator {info.name!r} takes no {name!r}: did you mean {meant!r}? "
                f"(it takes {', '.join(accepted)})"
            )
    return _called(info, {name: offered[name] for name in accepted if name in offered})


def _called(info: CollatorInfo, arguments: dict[str, Any]) -> Collator:
    collator: Collator = info.factory(**arguments)
    return collator


CONTEXT = ("task_spec", "tokenizer")  # offered to every factory, wanted or not
BUILT_IN = (
    CollatorInfo("text", TextCollator, "text", "padding, masks, causal and masked LM, classes"),
    CollatorInfo("vision", VisionCollator, "vision", "scaled and normalised images"),
    CollatorInfo("audio", AudioCollator, "audio", "padded waveforms, spectrograms on demand"),
    CollatorInfo("default", DefaultCollator, "any", "nested dicts, tuples, tensors, numbers"),
)
