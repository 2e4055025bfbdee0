"""The steering curriculum: how likely each variant is in an epoch, and which pair gets which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.arguments import choice, shown
from penstock.domains.steering.layout import VARIANTS
from penstock.errors import ConfigError
from penstock.order import Permutation, derive_key
from penstock.registry import did_you_mean

MODES: Final = ("fixed", "linear", "cosine")
_NUMBERS: Final = {
    "zero_prob_start": 0.5,
    "zero_prob_end": 0.1,
    "epochs_total": 100,
    "start_distance": 0.3,
    "end_distance": 0.7,
    "warmup_epochs": 10,
}
_DISTANCE_KEYS: Final = {"start_distance", "end_distance", "warmup_epochs"}


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Probabilities of the variants by epoch: less and less of "zero", the others in proportion.

    Both sets of keys that a config.json may have are read: ``zero_prob_start``, ``zero_prob_end``
    and ``epochs_total`` move the probability of "zero"; ``start_distance``, ``end_distance`` and
    ``warmup_epochs`` move `distance_limit`. ``mode`` says how: "linear" (the default), "cosine",
    or "fixed", which leaves the probabilities as the config has them. So does a config without a
    curriculum.

    >>> steady = Curriculum.from_config({name: 0.25 for name in VARIANTS}, {"mode": "linear"})
    >>> [round(steady.probabilities(epoch)["zero"], 2) for epoch in (0, 50, 100, 500)]
    [0.5, 0.3, 0.1, 0.1]
    """

    base: tuple[float, float, float, float]
    mode: str = "fixed"
    zero_prob_start: float = _NUMBERS["zero_prob_start"]
    zero_prob_end: float = _NUMBERS["zero_prob_end"]
    epochs_total: float = _NUMBERS["epochs_total"]
    start_distance: float | None = None
    end_distance: float | None = None
    warmup_epochs: float = _NUMBERS["warmup_epochs"]

    @classmethod
    def from_config(cls, probabilities: Any, curriculum: Any) -> Curriculum:
        """The curriculum of a config.json, refused where it makes no sense."""
        base = _checked_probabilities(probabilities)
        if not curriculum:
            return cls(base)
        if not isinstance(curriculum, Mapping):
            raise ConfigError(f"curriculum must be a mapping, got {shown(curriculum)}")
        for key in curriculum:
            if key not in (known := ("mode", *_NUMBERS)):
                raise ConfigError(f"curriculum has no key {shown(key)}{did_you_mean(key, known)}")
        mode = curriculum.get("mode", "linear")
        choice("curriculum mode", mode, MODES, error=ConfigError)
        numbers = {
            key: _checked_number(key, curriculum[key]) for key in _NUMBERS.keys() & curriculum
        }
        if _DISTANCE_KEYS & numbers.keys():  # one of them means all: the builder's defaults
            numbers = {key: _NUMBERS[key] for key in _DISTANCE_KEYS} | numbers
        return cls(base, mode, **numbers)

    def probabilities(self, epoch: int) -> dict[str, float]:
        """Probability of each variant in an epoch; they sum to 1."""
        if self.mode == "fixed":
            return dict(zip(VARIANTS, self.base, strict=True))
        zero = self._between(self.zero_prob_start, self.zero_prob_end, epoch, self.epochs_total)
        if self.base[0] >= 1:
            return dict(zip(VARIANTS, (zero, 1 - zero, 0.0, 0.0), strict=True))
        scale = (1 - zero) / (1 - self.base[0])
        return dict(zip(VARIANTS, (zero, *(p * scale for p in self.base[1:])), strict=True))

    def distance_limit(self, epoch: int) -> float | None:
        """The centroid distance that the curriculum has come to; None where it names none.

        Pairs are never left out for it: a loss may weigh them by it.
        """
        if self.start_distance is None or self.end_distance is None:
            return None
        if self.mode == "fixed":
            return self.start_distance
        return self._between(self.start_distance, self.end_distance, epoch, self.warmup_epochs)

    def _between(self, start: float, end: float, epoch: int, epochs: float) -> float:
        t = min(epoch / max(epochs, 1), 1.0)
        if self.mode == "cosine":
            t = (1 - math.cos(math.pi * t)) / 2
        return start + (end - start) * t


@lru_cache(maxsize=4)
def deal_variants(
    size: int, shares: tuple[float, ...], seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """The variant of each of ``size`` pairs in an epoch, a pure function of the arguments.

    The pairs are put in an order keyed by (seed, epoch), and the variants dealt along it from a
    keyed start. So each pair has each variant with exactly its probability, and the epoch as a
    whole has each in exactly its share, to one pair: there is no sampling noise between epochs.

    >>> np.bincount(deal_variants(1000, (0.5, 0.3, 0.2, 0.0), seed=42, epoch=7)).tolist()
    [500, 300, 200]
    """
    place = Permutation(size, derive_key(seed, "steering", epoch))(np.arange(size))
    start = (derive_key(seed, "steering start", epoch) >> 11) * 2.0**-53
    upper = np.cumsum(shares)
    upper[np.flatnonzero(shares)[-1] :] = np.inf  # rounding never gives what has no share
    dealt = np.searchsorted(upper, (place + start) / size, side="right")
    dealt.setflags(write=False)
    return dealt


def _checked_probabilities(probabilities: Any) -> tuple[float, float, float, float]:
    if not isinstance(probabilities, Mapping) or set(probabilities) != set(VARIANTS):
        found = (
            sorted(map(str, probabilities)) if isinstance(probabilities, Mapping) else probabilities
        )
        raise ConfigError(
            f"steering_probabilities must have exactly {VARIANTS}, got {shown(found)}"
        )
    zero, centroid, keyword, residual = (
        _checked_number(f"steering_probabilities.{name}", probabilities[name]) for name in VARIANTS
    )
    total = zero + centroid + keyword + residual
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"steering_probabilities must sum to 1, got {total!r}")
    return zero, centroid, keyword, residual


def _checked_number(key: str, value: Any) -> float:
    """A number in the range its name asks for."""
    high = 1.0 if "prob" in key else 2.0 if "distance" in key else 1e9
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not 0 <= value <= high:
        raise ConfigError(f"{key} must be a number in [0, {high:g}], got {shown(value)}")
    return float(value)
