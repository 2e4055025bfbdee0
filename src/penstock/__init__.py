"""Penstock: data loading for PyTorch.

It reads ahead so that the device never waits, reads every sample exactly once per epoch, also after
resuming, and never needs the whole dataset in memory. Names are imported when they are first used,
so that ``import penstock`` is fast.

>>> from penstock import Permutation
>>> len(Permutation(10**12, key=7))
1000000000000
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from penstock import errors
from penstock.lazy import lazy_names, names_in

__version__ = "0.2.0.dev0"

# what most programs need: in ``__all__`` and in ``dir(penstock)``; the stub has more names, which
# the documentation imports from their package
_PUBLIC = """
    BlockOrder CheckpointManager ChunkedDataLoader ChunkedSampler ChunkedTraining CollatorRegistry
    DataLoaderConfig DataLoaderFactory DataLoaderPerformanceMonitor Loader Mixture Order
    PenstockError Ragged RandomChunkLoader ReplayLoader SequenceDataset ShuffledOrder Source
    StreamLoader TaskSpec TrainerLoader TrainingConfig UniversalDataModule concatenate
    keyed_generator open_source pack tune worker_init_fn zip_sources
"""
_EXTRA = {"ChunkedTraining": "lightning"}  # names that cannot even be imported without a library
_HOME, (_, _find, _) = names_in(__name__), lazy_names(__name__)


def _public_names() -> list[str]:
    """The names of `_PUBLIC`, without those whose library is not installed."""
    missing = [name for name, library in _EXTRA.items() if find_spec(library) is None]
    return ["__version__", *(name for name in _PUBLIC.split() if name not in missing)]


def __getattr__(name: str) -> Any:
    if name == "__all__":
        globals()[name] = _public_names()
        return globals()[name]
    try:
        return _find(name)
    except errors.MissingExtraError as error:
        # an import statement reports why; hasattr, inspect and help expect an AttributeError
        if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise
        raise errors.MissingNameError(str(error)) from error


def __dir__() -> list[str]:
    return sorted(_public_names())
