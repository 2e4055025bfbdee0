"""The config.json of a steering dataset, and its curriculum of steering variants."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.arguments import choice, mapping, real_number, shown, whole_number
from penstock.checks import InvalidDataError
from penstock.domains.steering.layout import CONFIG, COUNTS, VARIANTS
from penstock.errors import ConfigError
from penstock.order import Indices, Permutation, derive_key
from penstock.registry import did_you_mean

SEED: Final = 42  # where the config names none; the default of the format's own builder
MODES: Final = ("fixed", "linear", "cosine")
_DISTANCES: Final = {"start_distance": 0.3, "end_distance": 0.7, "warmup_epochs": 10}
_NUMBERS: Final = ("zero_prob_start", "zero_prob_end", "epochs_total", *_DISTANCES)


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Probabilities of the steering variants in each epoch.

    The probability of "zero" moves from ``zero_prob_start`` to ``zero_prob_end``; the others keep
    their proportions.

    Args:
        base: Probabilities of the variants in the config, in the order of `VARIANTS`.
        mode: "linear", "cosine", or "fixed", which uses ``base`` in every epoch.
        zero_prob_start: Probability of "zero" in epoch 0.
        zero_prob_end: Probability of "zero" from epoch ``epochs_total`` on.
        epochs_total: Epochs that the change takes.
        start_distance: `distance_limit` in epoch 0; None for no limit.
        end_distance: `distance_limit` from epoch ``warmup_epochs`` on.
        warmup_epochs: Epochs that the change of the limit takes.

    >>> linear = Curriculum.from_config({name: 0.25 for name in VARIANTS}, {"mode": "linear"})
    >>> [round(linear.probabilities(epoch)["zero"], 2) for epoch in (0, 50, 100, 500)]
    [0.5, 0.3, 0.1, 0.1]
    """

    base: tuple[float, ...]
    mode: str = "fixed"
    zero_prob_start: float = 0.5
    zero_prob_end: float = 0.1
    epochs_total: float = 100
    start_distance: float | None = None
    end_distance: float | None = None
    warmup_epochs: float = _DISTANCES["warmup_epochs"]

    @classmethod
    def from_config(cls, probabilities: Any, curriculum: Any) -> Curriculum:
        """Return the curriculum of a config.json.

        Args:
            probabilities: Its ``steering_probabilities``.
            curriculum: Its ``curriculum``; without one the probabilities are fixed.

        Raises:
            ConfigError: A key is unknown or a value makes no sense.
        """
        if not isinstance(probabilities, Mapping) or set(probabilities) != set(VARIANTS):
            found = shown(probabilities)
            raise ConfigError(f"steering_probabilities must have exactly {VARIANTS}, got {found}")
        names = {name: f"steering_probabilities.{name}" for name in VARIANTS}
        base = tuple(_number(names[name], probabilities[name]) for name in VARIANTS)
        if abs(sum(base) - 1) > 1e-6:
            raise ConfigError(f"steering_probabilities must sum to 1, got {sum(base)!r}")
        if not curriculum:
            return cls(base)
        given = mapping("curriculum", curriculum, error=ConfigError)
        for key in given:
            if key not in (known := ("mode", *_NUMBERS)):
                raise ConfigError(f"curriculum has no key {shown(key)}{did_you_mean(key, known)}")
        mode = choice("curriculum mode", given.pop("mode", "linear"), MODES, error=ConfigError)
        numbers = {key: _number(key, value) for key, value in given.items()}
        if _DISTANCES.keys() & numbers:  # one of these keys implies the defaults of the others
            numbers = _DISTANCES | numbers
        return cls(base, mode, **numbers)

    def probabilities(self, epoch: int) -> dict[str, float]:
        """Return the probability of each variant in an epoch; they sum to 1."""
        shares = self.base
        if self.mode != "fixed":
            zero = self._between(self.zero_prob_start, self.zero_prob_end, epoch, self.epochs_total)
            if self.base[0] >= 1:  # the others have no proportions: "centroid" gets the rest
                shares = (zero, 1 - zero, 0.0, 0.0)
            else:
                scale = (1 - zero) / (1 - self.base[0])
                shares = (zero, *(p * scale for p in self.base[1:]))
        return dict(zip(VARIANTS, shares, strict=True))

    def distance_limit(self, epoch: int) -> float | None:
        """Return the centroid distance scheduled for an epoch; None where the config names none.

        It does not exclude any pairs: a loss may weigh pairs by it.
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


def _number(key: str, value: Any) -> float:
    most = 1.0 if "prob" in key else 2.0 if "distance" in key else 1e9
    return real_number(key, value, minimum=0, maximum=most, error=ConfigError)


@lru_cache(maxsize=4)
def deal_variants(size: int, shares: tuple[float, ...], seed: int, epoch: int) -> Indices:
    """Return the variant of each of ``size`` pairs in an epoch.

    The pairs are permuted by (seed, epoch), and the variants assigned along that order from a
    random start. So each pair has each variant with exactly its probability, and the whole epoch
    has each variant in exactly its share, to one pair: there is no sampling noise between epochs.

    Args:
        size: Pairs.
        shares: Probability of each variant.
        seed: Of the assignment.
        epoch: Of the assignment.

    >>> np.bincount(deal_variants(1000, (0.5, 0.3, 0.2, 0.0), seed=42, epoch=7)).tolist()
    [500, 300, 200]
    """
    position = Permutation(size, derive_key(seed, "steering", epoch))(np.arange(size))
    start = (derive_key(seed, "steering start", epoch) >> 11) * 2.0**-53
    upper = np.cumsum(shares)
    upper[np.flatnonzero(shares)[-1] :] = np.inf  # rounding must not reach a share of zero
    dealt = np.searchsorted(upper, (position + start) / size, side="right")
    dealt.setflags(write=False)
    return dealt


# -- config.json


@dataclass(frozen=True, slots=True)
class SteeringConfig:
    """The checked contents of a config.json.

    Args:
        raw: All of it.
        embedding_dim: Size of every vector.
        n_neg: Negatives per pair.
        curriculum: Of the steering variants.
        seed: Of shuffle and variants, unless another one is passed.
    """

    raw: Mapping[str, Any]
    embedding_dim: int
    n_neg: int
    curriculum: Curriculum
    seed: int

    @property
    def counts(self) -> dict[str, int]:
        """Sizes that it names, by key. Only `validate_dataset` compares tables with them."""
        return {key: self.raw[key] for key in COUNTS if type(self.raw.get(key)) is int}

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that tables must have."""
        return {"dim": self.embedding_dim, "negatives": self.n_neg}


def read_config(directory: Path) -> SteeringConfig:
    """Return the config of a dataset directory; raise `InvalidDataError` if it is not valid."""
    if not directory.is_dir():
        raise InvalidDataError(f"Dataset directory not found: {directory}")
    path = directory / CONFIG
    if not path.is_file():
        raise InvalidDataError(f"Config file not found: {path}; every dataset directory has one")
    try:
        return parse_config(mapping("config.json", json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError) as error:  # also of a value in it
        raise InvalidDataError(f"{path} is not a valid config: {error}") from error


def parse_config(raw: Mapping[str, Any]) -> SteeringConfig:
    """Return the checked contents of a config; raise `ConfigError` if a value makes no sense.

    >>> parse_config({"embedding_dim": 8, "n_neg": 2}).curriculum.probabilities(0)["zero"]
    0.25
    """
    numbers = {}
    for key, least in (("embedding_dim", 1), ("n_neg", 1), ("random_seed", 0)):
        value = raw.get(key, SEED if key == "random_seed" else None)
        numbers[key] = whole_number(key, value, minimum=least, error=ConfigError)
    equal = dict.fromkeys(VARIANTS, 0.25)  # the format's documented default
    shares = raw.get("steering_probabilities", equal)
    curriculum = Curriculum.from_config(shares, raw.get("curriculum"))
    return SteeringConfig(
        raw, numbers["embedding_dim"], numbers["n_neg"], curriculum, numbers["random_seed"]
    )
