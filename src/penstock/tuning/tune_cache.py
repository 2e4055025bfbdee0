"""What was measured before, on this machine, of this dataset."""

from __future__ import annotations

import json
import logging
import os
import platform
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.atomic_files import replace_text
from penstock.datasets.gather import fingerprint_of
from penstock.loaders.machine import Machine
from penstock.loaders.pickling import state_of
from penstock.tuning.config import DataLoaderConfig

log = logging.getLogger("penstock")

REMEMBERED = ("batch_size", "num_workers", "prefetch_factor", "executor", "threads")
DEEPEST = 4  # datasets wrap datasets
LONGEST = 8  # entries of a list that tell it from another


@dataclass(frozen=True, slots=True)
class TuneCache:
    """One small JSON file for each machine, dataset, batch size, collation and limits."""

    path: Path

    @classmethod
    def of(
        cls, dataset: Any, batch_size: int, collate_fn: Any, limits: Any, machine: Machine
    ) -> TuneCache:
        """Where the answer for these is, or will be."""
        parts = (
            *(platform.node(), machine, torch.__version__),
            *(len(dataset), fingerprint_of(dataset), identity_of(dataset)),
            *(batch_size, identity_of(collate_fn), limits),
        )
        name = blake2b(repr(parts).encode(), digest_size=12).hexdigest()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(home / "penstock" / "tune" / f"{name}.json")

    def load(self) -> DataLoaderConfig | None:
        """The answer of then; None where there is none, or none that can be read."""
        try:
            found = json.loads(self.path.read_text())
            return DataLoaderConfig(**{name: found[name] for name in REMEMBERED})
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, config: DataLoaderConfig) -> None:
        """Remember an answer, written beside and then renamed; where that cannot be, say so."""
        found = {name: getattr(config, name) for name in REMEMBERED}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, json.dumps(found))
        except OSError as error:
            log.info("the tuned configuration is not remembered: %s", error)


def identity_of(value: Any, depth: int = DEEPEST) -> Any:
    """What tells one dataset (or function) from another: its kind and its plain attributes.

    >>> identity_of(Path("a")) == identity_of(Path("b"))
    False
    """
    if isinstance(value, bool | int | float | str | bytes | Path | None):
        return value
    if isinstance(value, torch.Tensor | np.ndarray):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, list | tuple):
        return len(value), [identity_of(inner, depth - 1) for inner in value[:LONGEST] if depth]
    if isinstance(value, dict):
        return [(identity_of(k, 0), identity_of(v, depth - 1)) for k, v in value.items() if depth]
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    inner = state_of(value) if depth and kind is not value else {}
    named = [(name, identity_of(part, depth - 1)) for name, part in inner.items()]
    return kind.__module__, kind.__qualname__, named
