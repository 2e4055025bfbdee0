"""Sequence datasets after the conventions of S4: found by name, set up, loaded, in chunks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, cast

import torch
from torch.utils.data import IterableDataset, random_split

from penstock.errors import ConfigError, StateError
from penstock.loaders.partition import validation_loader
from penstock.modules.flavours import flavoured
from penstock.modules.sequence.chunk_sizes import (
    check_chunk_size,
    check_near,
    check_order,
    order_of,
    partition_batches,
)
from penstock.modules.sequence.collation import SequenceCollation
from penstock.modules.sequence.kept import KeptLoaders
from penstock.modules.sequence.loader_keys import check_keys, kind_of
from penstock.registry import Registry

FORMAT: Final = "penstock-sequence/1"


def default_data_path() -> Path:
    """Where datasets lie unless told otherwise: ``$DATA_PATH``, or ``data`` here."""
    return Path(os.environ.get("DATA_PATH") or "data").absolute()


class SequenceDataset(SequenceCollation):
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
        chunk_seed: Of the training order, and of the choice of what is validated on.
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

    registry: ClassVar[Registry[type[SequenceDataset]]] = Registry("dataset")
    _name_: ClassVar[str | None] = None
    _plain: ClassVar[type[SequenceDataset]]  # without Lightning: the one that pickle finds

    init_defaults: Mapping[str, Any] = {}
    loader_args: ClassVar[tuple[str, ...]] = ()  # keys of a loader that are meant for this class

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
        chunk_seed: int = 42,
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
        self.chunk_seed, self.chunk_shuffle = chunk_seed, chunk_shuffle
        self.chunk_order, self.val_cycle = check_order(chunk_order), val_cycle
        self.loader = dict(loader or {})
        self._loaders = KeptLoaders()
        self._asked: Mapping[str, Any] = self.loader  # what a loader was last asked for with
        self._take(dataset_cfg)
        self.dataset_train: Any = None
        self.dataset_val: Any = None
        self.dataset_test: Any = None
        self.init()

    def _take(self, dataset_cfg: Mapping[str, Any]) -> None:
        for key, value in {**self.init_defaults, **dataset_cfg}.items():
            if key not in self.init_defaults:
                check_near(key)
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
        """Cut ``dataset_train`` in two, at random by ``self.seed`` (42)."""
        train = int(len(self.dataset_train) * (1.0 - val_split))
        sizes = train, len(self.dataset_train) - train
        generator = torch.Generator().manual_seed(getattr(self, "seed", 42))
        self.dataset_train, self.dataset_val = random_split(self.dataset_train, sizes, generator)

    def __str__(self) -> str:
        return str(self._name_)

    # -- chunks

    @property
    def use_chunked_training(self) -> bool:
        """Was one of the chunk sizes given?"""
        explicit = self.explicit_train_chunk_size, self.explicit_val_chunk_size
        return explicit != (None, None)

    @property
    def train_chunk_size(self) -> int | None:
        """Batches a chunk of training; None without chunks, and before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[0]

    @property
    def val_chunk_size(self) -> int | None:
        """Batches of a validation; None without chunks, and before ``setup()`` if inferred."""
        return self._infer_chunk_sizes()[1]

    def _infer_chunk_sizes(self, **loader: Any) -> tuple[int | None, int | None]:
        """Both sizes for such a loader: a missing one is that of its whole partition."""
        train, val = self.explicit_train_chunk_size, self.explicit_val_chunk_size
        if train is None and val is not None:
            train = self._get_train_partition_size(**loader)
        elif val is None and train is not None:
            val = self._get_val_partition_size(**loader)
        return train, val

    def _get_train_partition_size(self, **loader: Any) -> int | None:
        """Batches of the training partition on this rank."""
        return self._partition_size(self.dataset_train, **loader)

    def _get_val_partition_size(self, **loader: Any) -> int | None:
        """Batches of the validation partition on this rank."""
        return self._partition_size(self.dataset_val, **loader)

    def _partition_size(self, dataset: Any, **loader: Any) -> int | None:
        options = {**self._asked, **loader}
        ranks = {key: options.get(key) for key in ("rank", "world_size")}
        return partition_batches(dataset, options.get("batch_size"), **ranks)

    @property
    def current_train_chunk(self) -> int:
        """The chunk of its epoch that the training loader is in."""
        return self._current_chunk("train")

    @property
    def current_val_chunk(self) -> int:
        """The chunk that is validated on next; always 0, unless ``val_cycle``."""
        return self._current_chunk("val")

    def _current_chunk(self, side: str) -> int:
        loader = self._loaders[side]
        return 0 if loader is None or not loader.use_chunked else loader.current_chunk

    # -- loaders

    def train_dataloader(self, **loader: Any) -> Any:
        """Batches to train on, shuffled: the next chunk, or epoch, at each ``iter()``."""
        self._asked = self.loader | loader
        return self._train_dataloader(self.dataset_train, **self._asked)

    def val_dataloader(self, **loader: Any) -> Any:
        """Batches to validate on; None where there is nothing (to Lightning: an empty list)."""
        self._asked = self.loader | loader
        found = self._eval_dataloader(self.dataset_val, **self._asked)
        return [] if found is None and getattr(self, "trainer", None) is not None else found

    def test_dataloader(self, **loader: Any) -> Any:
        """Batches of the whole test partition, in order, the same each time; None without one."""
        return self._eval_dataloader(self.dataset_test, **(self.loader | loader))

    def _train_dataloader(self, dataset: Any, **loader: Any) -> Any:
        if dataset is None:
            return None
        if self.use_chunked_training:
            return self._create_chunked_train_dataloader(**loader)
        return self._kept("train", dataset, None, loader)

    def _create_chunked_train_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[0]
        return self._kept("train", self.dataset_train, size, loader)

    def _eval_dataloader(self, dataset: Any, **loader: Any) -> Any:
        if dataset is None:
            return None
        if dataset is self.dataset_val and self.use_chunked_training:
            return self._create_chunked_val_dataloader(**loader)
        return self._kept("val" if dataset is self.dataset_val else "test", dataset, None, loader)

    def _create_chunked_val_dataloader(self, **loader: Any) -> Any:
        size = self._infer_chunk_sizes(**loader)[1]
        return self._kept("val", self.dataset_val, size, loader)

    def _kept(
        self, side: str, dataset: Any, chunk_size: int | None, loader: Mapping[str, Any]
    ) -> Any:
        options = {"chunk_size": chunk_size, **loader}
        name = side if loader.get("resolution", 1) == 1 else f"{side}/{loader['resolution']}"
        build = partial(self._build, side, dataset, chunk_size, dict(loader))
        return self._loaders.get(name, dataset, options, build)

    def _build(
        self, side: str, dataset: Any, chunk_size: int | None, options: dict[str, Any]
    ) -> Any:
        kind = kind_of(options.pop("_name_", None))
        check_keys(kind, options, [*self.collate_args, *self.loader_args])
        collate = {key: options.pop(key) for key in self.collate_args if key in options}
        collation = self._collation()
        options.setdefault("collate_fn", partial(collation, **collate) if collate else collation)
        batch_size = options.pop("batch_size", 1)
        options.setdefault("seed", self.chunk_seed)
        if side != "train":
            options.pop("shuffle", None)
            cycle = self.val_cycle and side == "val"
            return validation_loader(
                dataset, batch_size, chunk_size, cycle=cycle, kind=kind, **options
            )
        return kind(dataset, batch_size, chunk_size, **self._ordered(dataset, batch_size, options))

    def _ordered(
        self, dataset: Any, batch_size: int | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The options of a training loader, with its order: shuffled unless told otherwise."""
        asked = options.pop("shuffle", None)
        shuffled = self.chunk_shuffle if asked is None else bool(asked)
        own = any(options.get(key) is not None for key in ("sampler", "batch_sampler"))
        if own or isinstance(dataset, IterableDataset):
            return options
        if batch_size is None or options.get("generator") is not None:
            return options | {"shuffle": shuffled}  # torch's own loader
        kind = self.chunk_order if shuffled else "sequential"
        return options | {"order": order_of(kind, len(dataset), options["seed"])}

    def _collation(self) -> Callable[..., Any]:
        """What forms batches: of the class, so that it goes to workers; or of this very object."""
        if "_collate_fn" in vars(self):
            own: Callable[..., Any] = vars(self)["_collate_fn"]
            return own
        found = inspect.getattr_static(self._plain, "_collate_fn")
        of_class = isinstance(found, classmethod | staticmethod)
        return self._plain._collate_fn if of_class else self._collate_fn

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where training is (and validation, if it goes round): small and JSON-able."""
        if self.dataset_train is not None and self._loaders["train"] is None:
            self.train_dataloader()
        return {"format": FORMAT, "name": self._name_, "loaders": self._loaders.places()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly there, from the next ``iter()`` on."""
        ours = {"format": FORMAT, "name": self._name_}
        for key, expected in ours.items():
            if state.get(key) != expected:
                raise StateError(
                    f"this is no state of {type(self).__name__}: its {key} is {state.get(key)!r}, "
                    f"expected {expected!r}"
                )
        self._loaders.move(state["loaders"])

    def __reduce__(self) -> Any:
        # loaders, workers and Lightning's trainer stay here
        left = {"_loaders", "trainer", "_trainer"}
        values = {key: value for key, value in vars(self).items() if key not in left}
        return revived, (self._plain, values)

    # -- the end

    def close(self) -> None:
        """End every thread and process of the loaders; they may be iterated again."""
        self._loaders.close()

    def teardown(self, stage: str | None = None) -> None:
        """Lightning's word for `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


SequenceDataset._plain = SequenceDataset


def staged(setup: Callable[..., Any]) -> Callable[..., Any]:
    """A ``setup()`` that Lightning may call for every stage: it is done once."""
    takes_stage = "stage" in inspect.signature(setup).parameters

    @wraps(setup)
    def run(self: SequenceDataset, stage: str | None = None) -> Any:
        if takes_stage:
            return setup(self, stage)
        done = any(d is not None for d in (self.dataset_train, self.dataset_val, self.dataset_test))
        return None if stage is not None and done else setup(self)

    return run


def revived(plain: type[SequenceDataset], values: Mapping[str, Any]) -> SequenceDataset:
    """A dataset as it was pickled, without loaders."""
    dataset = plain.__new__(plain)
    vars(dataset).update(values, _loaders=KeptLoaders())
    return dataset
