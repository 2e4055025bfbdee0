"""The config.json of a steering dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.arguments import whole_number
from penstock.checks import InvalidDataError
from penstock.domains.steering.curriculum import Curriculum
from penstock.domains.steering.layout import CONFIG, VARIANTS
from penstock.errors import ConfigError

SEED = 42  # where the config names none, as the format's own builder has it
COUNTS = {
    "n_pairs": "pairs",
    "n_questions": "questions",
    "n_sources": "sources",
    "n_keywords": "keywords",
    "n_clusters": "clusters",
}


@dataclass(frozen=True, slots=True)
class SteeringConfig:
    """What the config.json of a directory says, checked."""

    raw: Mapping[str, Any]
    embedding_dim: int
    n_neg: int
    curriculum: Curriculum
    seed: int

    @property
    def counts(self) -> dict[str, int]:
        """Sizes it names, by dimension; files are not held to them, `validate_dataset` is."""
        named = {dimension: self.raw.get(key) for key, dimension in COUNTS.items()}
        return {name: count for name, count in named.items() if type(count) is int}


def read_config(directory: Path) -> SteeringConfig:
    """The config of a dataset directory."""
    if not directory.is_dir():
        raise InvalidDataError(f"Dataset directory not found: {directory}")
    path = directory / CONFIG
    if not path.is_file():
        raise InvalidDataError(f"Config file not found: {path}; every dataset directory has one")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidDataError(f"{path} is not JSON ({error}): write it again") from error
    except OSError as error:
        raise InvalidDataError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(raw, dict):
        raise InvalidDataError(f"{path} must hold an object, found {type(raw).__name__}")
    try:
        return parse_config(raw)
    except ConfigError as error:
        raise InvalidDataError(f"{path}: {error}") from error


def parse_config(raw: Mapping[str, Any]) -> SteeringConfig:
    """What a config says, refused where it makes no sense.

    >>> parse_config({"embedding_dim": 8, "n_neg": 2}).curriculum.probabilities(0)["zero"]
    0.25
    """
    equal = dict.fromkeys(VARIANTS, 0.25)  # the documented default
    return SteeringConfig(
        raw,
        embedding_dim=_count(raw, "embedding_dim"),
        n_neg=_count(raw, "n_neg"),
        curriculum=Curriculum.from_config(
            raw.get("steering_probabilities", equal), raw.get("curriculum")
        ),
        seed=_count(raw, "random_seed", default=SEED, least=0),
    )


def _count(raw: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    if key not in raw and default is None:
        raise ConfigError(f"{key} must be an integer of at least {least}, got nothing")
    return whole_number(key, raw.get(key, default), minimum=least, error=ConfigError)
