"""Penstock feeds PyTorch training.

It never starves the device, never repeats or skips a sample, and never needs the dataset in
memory. Names are imported when they are first used, so that ``import penstock`` stays light.

>>> from penstock import Permutation
>>> len(Permutation(10**12, key=7))
1000000000000
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import BatchError as BatchError
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import MissingExtraError as MissingExtraError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import PlanError as PlanError
    from penstock.errors import SourceError as SourceError
    from penstock.errors import StateError as StateError
    from penstock.errors import WorkerError as WorkerError
    from penstock.keyed import Reading as Reading
    from penstock.keyed import current_epoch as current_epoch
    from penstock.keyed import current_reading as current_reading
    from penstock.keyed import keyed_generator as keyed_generator
    from penstock.keyed import sample_generator as sample_generator
    from penstock.keyed import sample_key as sample_key
    from penstock.keyed import sample_keys as sample_keys
    from penstock.loaders import ChunkedDataLoader as ChunkedDataLoader
    from penstock.loaders import ChunkedSampler as ChunkedSampler
    from penstock.loaders import Loader as Loader
    from penstock.order import BlockOrder as BlockOrder
    from penstock.order import Cursor as Cursor
    from penstock.order import Order as Order
    from penstock.order import Permutation as Permutation
    from penstock.order import Plan as Plan
    from penstock.order import SequentialOrder as SequentialOrder
    from penstock.order import ShuffledOrder as ShuffledOrder
    from penstock.order import Steps as Steps
    from penstock.order import Topology as Topology
    from penstock.order import derive_key as derive_key

__version__ = "0.1.0"

_ROOMS = {
    "penstock.errors": (
        "PenstockError PlanError StateError ConfigError SourceError BatchError WorkerError "
        "MissingExtraError"
    ),
    "penstock.order": (
        "derive_key Permutation Order SequentialOrder ShuffledOrder BlockOrder Steps Topology "
        "Plan Cursor"
    ),
    "penstock.keyed": (
        "Reading current_reading current_epoch sample_key sample_keys sample_generator "
        "keyed_generator"
    ),
    "penstock.loaders": "Loader ChunkedSampler ChunkedDataLoader",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
