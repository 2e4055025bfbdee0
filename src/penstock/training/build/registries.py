"""Objects by the ``_name_`` that a configuration gives; users register their own.

A registered function or class is called with the keys of its section. Parameters that the section
leaves out are filled in where their value is known: ``d_model``, ``d_input``, ``d_output``,
``l_output``, ``n_tokens``, and for tasks also ``model`` and ``dataset``.

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

Factories: TypeAlias = Registry[Callable[..., Any]]

datasets: Final = SequenceDataset.registry
models: Final[Factories] = Registry("model")
tasks: Final[Factories] = Registry("task")
encoders: Final[Factories] = Registry("encoder")
decoders: Final[Factories] = Registry("decoder")
optimizers: Final[Factories] = Registry("optimizer")
schedulers: Final[Factories] = Registry("scheduler")
losses: Final[Factories] = Registry("loss")
metrics: Final[Factories] = Registry("metric")
callbacks: Final[Factories] = Registry("callback")
