"""Sequence datasets after the conventions of S4: found by name, set up, chunked, resumed."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeAlias, cast

import torch
from torch.utils.data import random_split

from penstock.arguments import real_number, whole_number
from penstock.datamodules.inputs import ClosableModule, lightning_class
from penstock.datamodules.sequence_loaders import (
    LoaderCache,
    SequenceCollation,
    loader_options,
    training_loader,
)
from penstock.errors import ConfigError, StateError
from penstock.loaders.chunk_schedule import ChunkSize
from penstock.loaders.chunk_settings import ChunkSettings, ChunkSizes, partition_batches
from penstock.loaders.partition import validation_loader
from penstock.loaders.replay import check_state_format
from penstock.ranks import Seed, current_topology, ranks
from penstock.registry import Registry, close_name

log = logging.getLogger("penstock")

Options: TypeAlias = Mapping[str, Any]
FORMAT: Final = "penstock-sequence/1"
NOT_PICKLED: Final = {"_loaders", "trainer", "_trainer"}  # loaders, workers, Lightning's trainer


def default_data_path() -> Path:
    """Return the default folder of datasets: ``$DATA_PATH``, or ``data`` in this directory."""
    return Path(os.environ.get("DATA_PATH") or "data").absolute()


class SequenceDataset(SequenceCollation, ClosableModule):
    """Base class for three partitions of sequences and their loaders.

    A subclass has a ``_name_``, by which `registry` finds it, and sets ``dataset_train``,
    ``dataset_val`` and ``dataset_test`` in ``setup()``. It may have ``init_defaults``: these
    settings, or the values passed instead, become attributes. Batches are ``(x, y, dict)``. The
    dataset is also a ``LightningDataModule`` if Lightning was imported before it is created.

    With a chunk size, training iterates over the whole partition chunk by chunk, and validation
    uses a fixed, seeded part of its partition. A chunk size that is not given is the whole
    partition, known after ``setup()``. The test partition is never chunked. Each loader is created
    once and continues where it was.

    Args:
        _name_: Optional if the class has a name.
        data_dir: Directory of the data.
        train_chunk_size: Batches (of this rank) between two validations.
        val_chunk_size: Batches of a validation.
        loader: Default arguments of ``train_dataloader()`` and the others: ``batch_size``,
            ``num_workers``, ... A ``batch_size`` may also be passed directly.
        chunk_seed: Seed of the training order and of the choice of validation samples. None draws
            one for all ranks.
        chunk_shuffle: False trains on the samples in the order of the dataset.
        chunk_order: ``shuffled``, ``sequential``, or ``block``: runs of neighbouring samples.
        val_cycle: Validate on the next chunk each time instead of the same one.
        **dataset_cfg: Settings of the subclass.

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
    loader_args: ClassVar[tuple[str, ...]] = ()  # loader keys that the dataset itself uses
    _plain: ClassVar[type[Any]]  # this class without Lightning, which pickle finds by name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        base = cls.__bases__[0]
        if (cls.__module__, cls.__qualname__) == (base.__module__, base.__qualname__):
            # the Lightning version of a class: Lightning calls setup(stage) for every stage
            cls.setup = set_up_once(base.setup)  # type: ignore[attr-defined, method-assign]
            return
        cls._plain = cls
        name = vars(cls).get("_name_")
        if name is not None:
            SequenceDataset.registry.add(name, cls)

    def __new__(cls, _name_: str | None = None, *args: Any, **kwargs: Any) -> Self:
        """Create the dataset of that name, as a ``LightningDataModule`` if that is imported."""
        found = cls.registry.find(_name_) if cls is SequenceDataset and _name_ else cls
        return cast("Self", object.__new__(lightning_class(found)))

    def __init__(
        self,
        _name_: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        train_chunk_size: ChunkSize | None = None,
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
        self._chunk_seed = Seed(chunk_seed, "chunk_seed")
        self.chunk_shuffle, self.chunk_order, self.val_cycle = chunk_shuffle, chunk_order, val_cycle
        self.chunks = ChunkSettings.from_keys(
            train_chunk_size=train_chunk_size,
            val_chunk_size=val_chunk_size,
            chunk_seed=chunk_seed,
            chunk_shuffle=chunk_shuffle,
            chunk_order=chunk_order,
            val_cycle=val_cycle,
        )
        self._split_seed: Seed | None = None  # of a random split, once it is done
        if not isinstance(loader, Mapping | None):
            raise ConfigError(f"loader must be a dict of loader options, got {loader!r}")
        self.loader = dict(loader or {})
        self._loaders = LoaderCache()
        self._requested: Mapping[str, Any] = self.loader  # arguments of the last loader
        self._set_attributes(dataset_cfg)
        self.dataset_train: Any = None
        self.dataset_val: Any = None
        self.dataset_test: Any = None
        self.init()

    def _set_attributes(self, dataset_cfg: Mapping[str, Any]) -> None:
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

    # -- hooks of subclasses

    def init(self) -> None:
        """Do nothing; called at the end of ``__init__``."""

    def setup(self) -> None:
        """Set ``dataset_train``, ``dataset_val`` and ``dataset_test``; subclasses implement it."""
        if self.dataset_train is self.dataset_val is self.dataset_test is None:
            raise ConfigError(
                f"{type(self).__name__} has no data: implement setup(), which sets dataset_train, "
                "dataset_val and dataset_test"
            )

    def split_train_val(self, val_split: float) -> None:
        """Split ``dataset_train`` in two, at random by ``self.seed`` (42).

        Args:
            val_split: Fraction of the samples to validate on, in [0, 1].
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

    # -- chunk sizes, in batches of this rank

    @property
    def use_chunked_training(self) -> bool:
        """Whether one of the chunk sizes is given."""
        return self.chunks.sized

    @property
    def explicit_train_chunk_size(self) -> Any:
        """The training chunk size that was passed."""
        return self.chunks.train_chunk_size

    @property
    def explicit_val_chunk_size(self) -> int | None:
        """The validation chunk size that was passed."""
        return self.chunks.val_chunk_size

    @property
    def train_chunk_size(self) -> int | None:
        """Batches of a training chunk; None without chunks, or before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[0]

    @property
    def val_chunk_size(self) -> int | None:
        """Batches of a validation; None without chunks, or before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[1]

    @property
    def chunk_seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self._chunk_seed.value

    def _infer_chunk_sizes(self, **loader: Any) -> tuple[int | None, int | None]:
        """Return both sizes for a loader with these arguments."""
        sizes = ChunkSizes.given(self.explicit_train_chunk_size, self.explicit_val_chunk_size)
        train, val = self._get_train_partition_size, self._get_val_partition_size
        sizes = sizes.infer(partial(train, **loader), partial(val, **loader))
        return sizes.train, sizes.val

    def _get_train_partition_size(self, **loader: Any) -> int | None:
        """Return the batches of the training partition on this rank; None if unknown."""
        return self._partition_size(self.dataset_train, **loader)

    def _get_val_partition_size(self, **loader: Any) -> int | None:
        """Return the batches of the validation partition on this rank; None if unknown."""
        return self._partition_size(self.dataset_val, **loader)

    def _partition_size(self, dataset: Any, **loader: Any) -> int | None:
        if dataset is None or not hasattr(dataset, "__len__"):
            return None
        options = {**self._requested, **loader}
        world = current_topology(options.get("rank"), options.get("world_size")).world
        return partition_batches(len(dataset), options.get("batch_size"), world)

    @property
    def current_train_chunk(self) -> int:
        """The chunk of its epoch that the training loader is in."""
        return self._current_chunk("train")

    @property
    def current_val_chunk(self) -> int:
        """The chunk that is validated on next; always 0, unless ``val_cycle``."""
        return self._current_chunk("val")

    def _current_chunk(self, partition: str) -> int:
        loader = self._loaders[partition]
        return 0 if loader is None or not loader.use_chunked else loader.current_chunk

    # -- loaders

    def train_dataloader(self, **loader: Any) -> Any:
        """Return the training loader: the next chunk, or epoch, at each ``iter()``.

        Args:
            **loader: Arguments of the loader; they override those given to the dataset.
        """
        self._requested = self.loader | loader
        return self._train_dataloader(self.dataset_train, **self._requested)

    def val_dataloader(self, **loader: Any) -> Any:
        """Return the validation loader; None (for Lightning, an empty list) without data.

        Args:
            **loader: Arguments of the loader; they override those given to the dataset.
        """
        self._requested = self.loader | loader
        found = self._eval_dataloader(self.dataset_val, _partition_="val", **self._requested)
        return self._for_trainer(found)

    def test_dataloader(self, **loader: Any) -> Any:
        """Return the loader of the whole test partition, in order; None without data.

        Args:
            **loader: Arguments of the loader; they override those given to the dataset.
        """
        return self._eval_dataloader(self.dataset_test, **(self.loader | loader))

    def _train_dataloader(self, dataset: Any, **loader: Any) -> Any:
        if dataset is None:
            return None
        if self.use_chunked_training:
            return self._create_chunked_train_dataloader(**loader)
        return self._cached("train", dataset, None, loader)

    def _create_chunked_train_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[0]
        return self._cached("train", self.dataset_train, size, loader)

    def _eval_dataloader(self, dataset: Any, *, _partition_: str = "test", **loader: Any) -> Any:
        if dataset is None:
            return None
        if _partition_ == "val" and self.use_chunked_training:
            return self._create_chunked_val_dataloader(**loader)
        return self._cached(_partition_, dataset, None, loader)

    def _create_chunked_val_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[1]
        return self._cached("val", self.dataset_val, size, loader)

    def _cached(self, partition: str, dataset: Any, chunk_size: int | None, loader: Options) -> Any:
        """Return the loader of a partition: the existing one, or a new one."""
        options = {"chunk_size": chunk_size, **loader}
        resolution = loader.get("resolution", 1)
        name = partition if resolution == 1 else f"{partition}/{resolution}"
        build = partial(self._build, partition, dataset, chunk_size, loader)
        return self._loaders.get(name, dataset, options, build)

    def _build(self, partition: str, dataset: Any, chunk_size: int | None, loader: Options) -> Any:
        own = self.collate_args, self.loader_args, self._collation()
        kind, options = loader_options(loader, *own)
        if self._split_seed is not None:
            self._split_seed.for_ranks(ranks())  # refuses ranks that split differently
        options.setdefault("seed", self._chunk_seed)
        if partition == "train":
            order = self.chunks.order_name
            return training_loader(dataset, chunk_size, order=order, kind=kind, **options)
        options.pop("shuffle", None)
        cycle = self.val_cycle and partition == "val"
        return validation_loader(dataset, chunk_size=chunk_size, cycle=cycle, kind=kind, **options)

    def _collation(self) -> Callable[..., Any]:
        """Return the function that forms batches, from the class where possible.

        A function of the class can be pickled for worker processes without this object.
        """
        if "_collate_fn" in vars(self):
            own: Callable[..., Any] = vars(self)["_collate_fn"]
            return own
        found = inspect.getattr_static(self._plain, "_collate_fn")
        of_class = isinstance(found, classmethod | staticmethod)
        return self._plain._collate_fn if of_class else self._collate_fn

    def close(self) -> None:
        """Stop all threads and processes of the loaders; they can be iterated again."""
        self._loaders.close()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training (and of a cycling validation); small and JSON-able."""
        if self.dataset_train is not None and self._loaders["train"] is None:
            self.train_dataloader()
        return {"format": FORMAT, "name": self._name_, "loaders": self._loaders.states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved position from the next ``iter()`` on.

        Args:
            state_dict: A result of `state_dict`.
        """
        check_state_format(state_dict, FORMAT)
        name, states = state_dict.get("name"), state_dict.get("loaders")
        if name != self._name_:
            raise StateError(
                f"the state is of the dataset {name!r}, this one is {self._name_!r}: create the "
                "dataset that the state was saved from"
            )
        if not isinstance(states, Mapping):
            raise StateError(f"the state's loaders must be a dict of states, got {states!r}")
        self._loaders.load_states(states)

    def __reduce__(self) -> Any:
        values = {key: value for key, value in vars(self).items() if key not in NOT_PICKLED}
        return _unpickled, (self._plain, values)


SequenceDataset._plain = SequenceDataset


def _unpickled(plain: type[SequenceDataset], values: Mapping[str, Any]) -> SequenceDataset:
    """Return the dataset as it was pickled, without loaders."""
    dataset = plain.__new__(plain)
    vars(dataset).update(values, _loaders=LoaderCache())
    return dataset


def set_up_once(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``setup`` that does its work once, although Lightning calls it for every stage."""
    takes_stage = "stage" in inspect.signature(setup).parameters

    @wraps(setup)
    def run(self: Any, stage: str | None = None) -> Any:
        if takes_stage:
            return setup(self, stage)
        done = any(d is not None for d in (self.dataset_train, self.dataset_val, self.dataset_test))
        return None if stage is not None and done else setup(self)

    return run


def check_undeclared(dataset: object, keys: Iterable[str], declared: Iterable[str]) -> None:
    """Raise `ConfigError` for a key that looks like a misspelling of a known one.

    Other unknown keys become attributes, as in S4, and are logged. Attributes of the class,
    ``batch_size`` and S4's internal keys (``__l_max``) are not logged.

    >>> check_undeclared(object(), ["sample_lenn"], ["sample_len", "bits"])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown key 'sample_lenn': did you mean 'sample_len'?
    """
    known, others = [*declared], list[str]()
    ours = inspect.signature(SequenceDataset.__init__).parameters
    chunk_keys = [option.key for option in ChunkSettings.options() if option.key in ours]
    for key in keys:
        if key in known or key == "batch_size" or hasattr(type(dataset), key):
            continue
        near = close_name(key, [*known, "data_dir"])
        # stricter than for declared keys: a subclass may well have a key of its own like "val_size"
        near = near or close_name(key, chunk_keys, cutoff=0.88)
        if near is not None:
            raise ConfigError(f"unknown key {key!r}: did you mean {near!r}?")
        if not key.startswith("__"):
            others.append(key)
    if others:
        log.info(
            "%s does not declare %s: set as attributes, with no effect unless it reads them",
            type(dataset).__name__,
            ", ".join(others),
        )


def check_whole(dataset: Any, least: int, *names: str) -> None:
    """Raise `ConfigError` for settings that are not None or integers of at least ``least``."""
    for name in names:
        if (value := getattr(dataset, name)) is not None:
            whole_number(name, value, minimum=least, error=ConfigError)
