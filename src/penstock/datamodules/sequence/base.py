"""Sequence datasets after the conventions of S4: found by name, set up, resumed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

import torch
from torch.utils.data import random_split

from penstock.arguments import flag, real_number
from penstock.datamodules.flavours import flavoured
from penstock.datamodules.sequence.chunk_sizes import check_chunk_size, check_order
from penstock.datamodules.sequence.kept import KeptLoaders
from penstock.datamodules.sequence.loading import PartitionLoaders
from penstock.datamodules.sequence.settings import check_undeclared
from penstock.datamodules.sequence.stages import staged
from penstock.errors import ConfigError, StateError
from penstock.loaders.states import check_mapping
from penstock.ranks import ranks
from penstock.registry import Registry
from penstock.seeds import Seed

FORMAT: Final = "penstock-sequence/1"


def default_data_path() -> Path:
    """Where datasets lie unless told otherwise: ``$DATA_PATH``, or ``data`` here."""
    return Path(os.environ.get("DATA_PATH") or "data").absolute()


class SequenceDataset(PartitionLoaders):
    """Three partitions of sequences and their loaders; a subclass says where they come from.

    A subclass has a ``_name_``, by which `registry` finds it, may have ``init_defaults`` (whose
    values, and what is given instead, become attributes), and sets ``dataset_train``,
    ``dataset_val`` and ``dataset_test`` in ``setup()``. Batches are ``(x, y, dict)``. It is a
    ``LightningDataModule`` if Lightning was imported before it is made.

    With a chunk size, training goes through the whole partition chunk by chunk, and validation
    is a fixed, seeded part of it. A size that is not given is that of the whole partition, known
    after ``setup()``. The test partition is never chunked. A loader asked for again is the same
    one, and goes on.

    Args:
        _name_: May be left out where the class has one.
        data_dir: Directory of the data.
        train_chunk_size: Batches (of this rank) trained on between two validations.
        val_chunk_size: Batches of a validation.
        loader: What ``train_dataloader()`` and the others are built with if not told otherwise:
            ``batch_size``, ``num_workers``, ... A ``batch_size`` given here alone is the same.
        chunk_seed: Of the training order, and of the choice of what is validated on. None draws
            one, the same for all ranks.
        chunk_shuffle: False: train on the samples as they lie.
        chunk_order: ``shuffled``, ``sequential``, or ``block``: runs of samples that lie together.
        val_cycle: Validate on the next chunk each time instead of on the same one.
        **dataset_cfg: Of the subclass.

    >>> class Squares(SequenceDataset):
    ...     _name_ = "squares"
    ...     init_defaults = {"size": 10}
    ...     def setup(self):
    ...         self.dataset_train = [(torch.tensor([float(i)]), i * i) for i in range(self.size)]
    ...         self.split_train_val(0.2)
    >>> data = SequenceDataset.registry.find("squares")("squares", train_chunk_size=2, batch_size=3)
    >>> data.setup()
    >>> data.train_chunk_size, data.val_chunk_size
    (2, 1)
    >>> [len(list(data.train_dataloader())) for _ in range(4)]
    [2, 1, 2, 1]
    """

    registry: ClassVar[Registry[type[SequenceDataset]]] = Registry(
        "dataset", extensions="penstock.datasets"
    )
    _name_: ClassVar[str | None] = None
    init_defaults: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        base = cls.__bases__[0]
        if (cls.__module__, cls.__qualname__) == (base.__module__, base.__qualname__):
            # the same class, made Lightning's too: which calls setup for every stage, by name
            cls.setup = staged(base.setup)  # type: ignore[attr-defined, method-assign]
            return
        cls._plain = cls
        name = vars(cls).get("_name_")
        if name is not None:
            SequenceDataset.registry.add(name, cls)

    def __new__(cls, _name_: str | None = None, *args: Any, **kwargs: Any) -> Self:
        """A dataset that is Lightning's too, where that is imported; the base finds by name."""
        found = cls.registry.find(_name_) if cls is SequenceDataset and _name_ else cls
        return cast("Self", object.__new__(flavoured(found)))

    def __init__(
        self,
        _name_: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        train_chunk_size: int | None = None,
        val_chunk_size: int | None = None,
        *,
        loader: Mapping[str, Any] | None = None,
        chunk_seed: int | None = 42,
        chunk_shuffle: bool = True,
        chunk_order: str = "shuffled",
        val_cycle: bool = False,
        **dataset_cfg: Any,
    ) -> None:
        super().__init__()
        if _name_ is not None and _name_ != self._name_:
            raise ConfigError(
                f"{type(self).__name__} is the dataset {self._name_!r}, got _name_={_name_!r}: "
                "find the class of that name in SequenceDataset.registry"
            )
        self.data_dir = None if data_dir is None else Path(data_dir).absolute()
        self.explicit_train_chunk_size = check_chunk_size("train_chunk_size", train_chunk_size)
        self.explicit_val_chunk_size = check_chunk_size("val_chunk_size", val_chunk_size)
        self._chunk_seed, self.chunk_shuffle = Seed(chunk_seed, "chunk_seed"), chunk_shuffle
        self._split_seed: Seed | None = None  # of a random split that was done
        self.chunk_order, self.val_cycle = check_order(chunk_order), val_cycle
        flag("chunk_shuffle", chunk_shuffle, error=ConfigError)
        flag("val_cycle", val_cycle, error=ConfigError)
        if not isinstance(loader, Mapping | None):
            raise ConfigError(f"loader must be a dict of loader options, got {loader!r}")
        self.loader = dict(loader or {})
        self._loaders = KeptLoaders()
        self._asked = self.loader
        self._take(dataset_cfg)
        self.dataset_train = self.dataset_val = self.dataset_test = None
        self.init()

    def _take(self, dataset_cfg: Mapping[str, Any]) -> None:
        check_undeclared(self, dataset_cfg, self.init_defaults)
        for key, value in {**self.init_defaults, **dataset_cfg}.items():
            try:
                setattr(self, key, value)
            except AttributeError as error:
                raise ConfigError(
                    f"{key}={value!r} cannot be set: {type(self).__name__} computes it itself"
                ) from error
        if "batch_size" in dataset_cfg:
            self.loader.setdefault("batch_size", dataset_cfg["batch_size"])

    # -- what a subclass says

    def init(self) -> None:
        """Called at the end of ``__init__``; nothing."""

    def setup(self) -> None:
        """Set ``dataset_train``, ``dataset_val`` and ``dataset_test``, as a subclass does."""
        if self.dataset_train is self.dataset_val is self.dataset_test is None:
            raise ConfigError(
                f"{type(self).__name__} has no data: give it a setup() that sets dataset_train, "
                "dataset_val and dataset_test"
            )

    def split_train_val(self, val_split: float) -> None:
        """Split ``dataset_train`` in two, at random by ``self.seed`` (42).

        Args:
            val_split: Share of the samples to validate on, in [0, 1].
        """
        val_split = real_number("val_split", val_split, minimum=0, maximum=1, error=ConfigError)
        train = int(len(self.dataset_train) * (1.0 - val_split))
        sizes = train, len(self.dataset_train) - train
        self._split_seed = Seed(getattr(self, "seed", 42))
        generator = torch.Generator().manual_seed(self._split_seed.for_ranks(ranks()))
        self._split_seed.settle("the data were split")
        self.dataset_train, self.dataset_val = random_split(self.dataset_train, sizes, generator)

    def __str__(self) -> str:
        return str(self._name_)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where training is (and validation, if it goes round): small and JSON-able."""
        if self.dataset_train is not None and self._loaders["train"] is None:
            self.train_dataloader()
        return {"format": FORMAT, "name": self._name_, "loaders": self._loaders.places()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly there, from the next ``iter()`` on.

        Args:
            state_dict: What `state_dict` returned.
        """
        check_mapping(state_dict, FORMAT)
        name, places = state_dict.get("name"), state_dict.get("loaders")
        if name != self._name_:
            raise StateError(
                f"the state is of the dataset {name!r}, this one is {self._name_!r}: build the "
                "dataset that the state was taken of"
            )
        if not isinstance(places, Mapping):
            raise StateError(f"the state's loaders must be a dict of states, got {places!r}")
        self._loaders.move(places)

    def __reduce__(self) -> Any:
        # loaders, workers and Lightning's trainer stay here
        left = {"_loaders", "trainer", "_trainer"}
        values = {key: value for key, value in vars(self).items() if key not in left}
        return _revived, (self._plain, values)


SequenceDataset._plain = SequenceDataset


def _revived(plain: type[SequenceDataset], values: Mapping[str, Any]) -> SequenceDataset:
    """A dataset as it was pickled, without loaders."""
    dataset = plain.__new__(plain)
    vars(dataset).update(values, _loaders=KeptLoaders())
    return dataset
