"""What was measured before, on this machine, of this dataset."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from penstock.loaders.config import DataLoaderConfig
from penstock.loaders.gather import fingerprint_of
from penstock.loaders.machine import Machine

REMEMBERED = ("batch_size", "num_workers", "prefetch_factor", "executor")


@dataclass(frozen=True, slots=True)
class TuneCache:
    """One small JSON file for each machine, dataset, batch size and collation."""

    path: Path

    @classmethod
    def of(cls, dataset: Any, batch_size: int, collate_fn: Any, machine: Machine) -> TuneCache:
        """Where the answer for these is, or will be."""
        kind = type(dataset)
        parts = (
            *(machine.cores, machine.accelerator, torch.__version__),
            *(kind.__module__, kind.__qualname__, len(dataset), fingerprint_of(dataset)),
            *(batch_size, getattr(collate_fn, "__qualname__", type(collate_fn).__qualname__)),
        )
        name = blake2b(repr(parts).encode(), digest_size=12).hexdigest()
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(home / "penstock" / "tune" / f"{name}.json")

    def load(self) -> DataLoaderConfig | None:
        """The answer of then; None where there is none, or none that can be read."""
        try:
            found = json.loads(self.path.read_text())
            return DataLoaderConfig(**{name: found[name] for name in REMEMBERED})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, config: DataLoaderConfig) -> None:
        """Remember an answer: written beside, then renamed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found = {name: getattr(config, name) for name in REMEMBERED}
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump(found, file)
        Path(file.name).replace(self.path)
