"""Loaders that were given out: asked for again, the same one goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import StateError
from penstock.loaders import ChunkedDataLoader


@dataclass(frozen=True, slots=True)
class Kept:
    """A loader, and what it was made of."""

    dataset: Any
    options: Mapping[str, Any]
    loader: ChunkedDataLoader


class KeptLoaders:
    """The loader of every side; one made anew of other options goes on where the last one was."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._places: dict[str, dict[str, Any]] = {}  # of loaders that nobody asked for yet

    def get(
        self,
        side: str,
        dataset: Any,
        options: Mapping[str, Any],
        build: Callable[[], ChunkedDataLoader],
    ) -> ChunkedDataLoader:
        """The loader of that side: the one there is, if it is made of the same."""
        before = self._kept.get(side)
        if before is not None and before.dataset is dataset and before.options == options:
            return before.loader
        loader = build()
        place = self._places.pop(side, None)
        if place is None and before is not None and before.dataset is dataset:
            place = _same_course(before.loader, loader)
        if place is not None:
            loader.load_state_dict(place)
        if before is not None:
            before.loader.close()
        self._kept[side] = Kept(dataset, dict(options), loader)
        return loader

    def __getitem__(self, side: str) -> ChunkedDataLoader | None:
        kept = self._kept.get(side)
        return None if kept is None else kept.loader

    def places(self) -> dict[str, dict[str, Any]]:
        """Where the loaders are that do not begin anew each time."""
        found = {side: place_of(kept.loader) for side, kept in self._kept.items()}
        return self._places | {side: place for side, place in found.items() if place is not None}

    def move(self, places: Mapping[str, dict[str, Any]]) -> None:
        """Put them there: now, or when they are asked for."""
        for side, place in places.items():
            loader = self[side]
            if loader is None:
                self._places[side] = dict(place)
            else:
                loader.load_state_dict(place)

    def close(self) -> None:
        """End what runs for them; they may be iterated again."""
        for kept in self._kept.values():
            kept.loader.close()


def place_of(loader: ChunkedDataLoader) -> dict[str, Any] | None:
    """The state of a loader that moves; None of one that does not, or is torch's own."""
    try:
        return None if loader.position.evaluation else loader.state_dict()
    except StateError:
        return None


def _same_course(before: ChunkedDataLoader, loader: ChunkedDataLoader) -> dict[str, Any] | None:
    was, now = place_of(before), place_of(loader)
    moving = ("epoch", "position")
    if was is None or now is None:
        return None
    same = all(was.get(key) == now.get(key) for key in {*was, *now} if key not in moving)
    return was if same else None
