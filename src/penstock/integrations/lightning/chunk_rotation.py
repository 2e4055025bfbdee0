"""Scores of a whole rotation, where every validation is on another chunk of its partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUFFIX = "_rotation"


class Rotation:
    """The mean of every score over a rotation: each sample counts once, whatever its chunk.

    >>> rotation = Rotation()
    >>> rotation.add({"val/loss": 1.0}, samples=3, begins=True, ended=False)
    {}
    >>> rotation.add({"val/loss": 2.0}, samples=1, begins=False, ended=True)
    {'val/loss_rotation': 1.25}
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._samples = 0
        self._whole = True  # this rotation was seen from its beginning
        self.scores: dict[str, float] = {}  # of the last whole rotation

    def add(
        self, scores: Mapping[str, float], *, samples: int, begins: bool, ended: bool
    ) -> dict[str, float]:
        """One validation, on so many samples; what the rotation gives, if this was its end.

        A rotation of which the beginning is not known gives nothing: only the next one counts.
        """
        if begins:
            self._sums, self._samples, self._whole = {}, 0, True
        elif not self._samples:
            self._whole = False
        for name, score in scores.items():
            self._sums[name] = self._sums.get(name, 0.0) + samples * float(score)
        self._samples += samples
        if not ended:
            return {}
        if self._whole:
            total = self._samples
            self.scores = {name + SUFFIX: score / total for name, score in self._sums.items()}
        else:
            return {}
        self._sums, self._samples = {}, 0
        return dict(self.scores)

    def to_state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return {
            "sums": dict(self._sums),
            "samples": self._samples,
            "whole": self._whole,
            "scores": dict(self.scores),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._sums, self._samples = dict(state["sums"]), state["samples"]
        self._whole, self.scores = state["whole"], dict(state["scores"])
