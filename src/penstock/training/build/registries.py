"""Things by the ``_name_`` a configuration gives them; users add their own.

A function or class is called with the keys of its section. What it takes and the section leaves
out it gets where it is known: ``d_model``, ``d_input``, ``d_output``, ``l_output``, ``n_tokens``,
and for tasks ``model`` and ``dataset``.

>>> @encoders.register("doubled")
... def doubled(d_model):
...     return torch.nn.Linear(2, d_model)
>>> "doubled" in encoders
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch as torch  # for the example above

from penstock.datamodules.sequence import SequenceDataset
from penstock.registry import Registry

Makers: TypeAlias = Registry[Callable[..., Any]]

datasets: Final = SequenceDataset.registry
models: Final[Makers] = Registry("model")
tasks: Final[Makers] = Registry("task")
encoders: Final[Makers] = Registry("encoder")
decoders: Final[Makers] = Registry("decoder")
optimizers: Final[Makers] = Registry("optimizer")
schedulers: Final[Makers] = Registry("scheduler")
losses: Final[Makers] = Registry("loss")
metrics: Final[Makers] = Registry("metric")
callbacks: Final[Makers] = Registry("callback")
