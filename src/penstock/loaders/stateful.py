"""Methods that a loader has only where it has a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from penstock.errors import StateError

Method = TypeVar("Method", bound=Callable[..., Any])


class NoStateError(StateError, AttributeError):
    """A loader whose order is torch's own has no state; to ``hasattr`` it has no such method."""


def stateful(method: Method) -> Method:
    """A method that is not there where ``loader.stateless`` gives a reason.

    Trainers look for ``state_dict`` with ``hasattr``, and save what has one; who calls it by hand
    is told why there is none.
    """
    return cast(Method, _Stateful(method))


class _Stateful:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, loader: Any, owner: type) -> Any:
        if loader is not None and loader.stateless is not None:
            raise NoStateError(loader.stateless)
        return self._method.__get__(loader, owner)
