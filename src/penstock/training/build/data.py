"""The data of a configuration: datasets or sources for each part, and the loader of each."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from penstock.arguments import array_of
from penstock.datamodules.inputs import ClosableModule, check_share, split
from penstock.datamodules.sequence import SequenceDataset
from penstock.datasets.mixture import Mixture, prioritized
from penstock.datasets.packed import PackedTokens, pack
from penstock.errors import ConfigError, PlanError
from penstock.extras import optional
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.chunk_settings import ChunkSettings, partition_batches
from penstock.loaders.partition import validation_loader
from penstock.loaders.plan_settings import order_factory
from penstock.order import derive_key
from penstock.ranks import Seed, ranks
from penstock.registry import unknown_name
from penstock.sources import open_source
from penstock.sources.base import composed
from penstock.sources.contract import Source
from penstock.training.build.objects import Maker, find_object
from penstock.training.build.registries import datasets
from penstock.training.config import Settings
from penstock.training.config.settings import LOADER, STREAM_LOADER

lightning = optional("lightning.pytorch", extra="lightning")

log = logging.getLogger("penstock")

PARTS = ("train", "val", "test")
WAYS = "a _name_, a _target_, a path, a mixture, a pack, or sections train and val"
MIXTURE = ("mixture", "weights", "until", "label")
PACK = ("pack", "length", "lengths", "split", "seed")
PRIORITY = ("parts", "weights", "cover_within_epochs")
BY_LENGTH = ("lengths", "max_tokens", "window", "group")
ORDERS = ("priority", "weights", "epoch_samples", "batch_by_length")  # keys of train

BATCH_SIZE = 32  # samples; the default of loader.batch_size


def make_data(settings: Settings, maker: Maker, loaders: PartLoaders) -> Any:
    """Return the data module of the section ``dataset``; None where there is no such section."""
    section = settings.dataset
    if section is None:
        return None
    section = {"path": section} if isinstance(section, str) else section
    if "_name_" in section or _is_sequence_dataset(section):
        _refuse_orders(settings, "one with a _name_")
        return _of_sequences(section, maker, loaders)
    if {"_target_", "path", "mixture", "pack"} & section.keys():
        made = _opened("dataset", section, maker)
        if hasattr(made, "train_dataloader"):
            _refuse_orders(settings, "a data module")
            return _of_module(made, loaders)
        parts = _split(settings, made, section.get("val_split"), loaders)
    elif any(part in section for part in PARTS):
        parts = _parts(settings, section, maker)
    else:
        raise settings.refused("dataset", f"must have {WAYS}")
    if (priority := settings.train.priority) is not None:
        check_names("train.priority", priority, PRIORITY)
        try:
            parts["train"] = prioritized(parts["train"], **priority)
        except (PlanError, TypeError) as error:
            raise settings.refused("train.priority", str(error)) from error
    ignored = loaders.options.keys() - {*STREAM_LOADER, "batch_size", "drop_last"}
    if ignored and any(isinstance(data, Source) for data in parts.values()):
        keys = ", loader.".join(sorted(ignored))
        log.info("a stream has its own threads: loader.%s have no effect", keys)
    loaders = replace(loaders, order=_order(settings), refused=settings.refused)
    by_part = {"train": loaders.training, "val": loaders.validation, "test": loaders.testing}
    makers = {part: partial(by_part[part], data) for part, data in parts.items()}
    return JobData(parts["train"], makers)


def _refuse_orders(settings: Settings, what: str) -> None:
    """Refuse keys that choose the order of a dataset which makes its own loaders."""
    for name in ORDERS:
        if getattr(settings.train, name) is not None:
            raise settings.refused(
                f"train.{name}",
                f"needs a dataset with a path, a _target_ or a mixture: {what} makes its own "
                "loaders",
            )


def _order(settings: Settings) -> dict[str, Any]:
    """Return the arguments of the training loader that the keys of ``train`` give."""
    train = settings.train
    by_length = dict(train.batch_by_length or {})
    check_names("train.batch_by_length", by_length, BY_LENGTH)
    if by_length and "lengths" not in by_length:
        raise settings.refused("train.batch_by_length", "has no lengths: name a .npy file of them")
    found = {"weights": train.weights, "epoch_samples": train.epoch_samples, **by_length}
    for name, key in (("weights", "train.weights"), ("lengths", "train.batch_by_length.lengths")):
        if found.get(name) is not None:
            found[name] = _array(settings, key, found[name])
    return {name: value for name, value in found.items() if value is not None}


def _array(settings: Settings, key: str, value: Any) -> Any:
    """Return numbers, from a ``.npy`` file if it is a path."""
    try:
        if isinstance(value, str):
            return np.load(value, allow_pickle=False)
        return array_of(key, value)
    except (OSError, ValueError) as error:
        raise settings.refused(key, f"cannot be read: {error}") from error


def _is_sequence_dataset(section: Mapping[str, Any]) -> bool:
    found = None
    with suppress(ImportError, AttributeError, ValueError):  # reported when the object is made
        found = find_object(str(section.get("_target_", "")) or "builtins")
    return isinstance(found, type) and issubclass(found, SequenceDataset)


def _of_sequences(section: Mapping[str, Any], maker: Maker, loaders: PartLoaders) -> Any:
    """Return a dataset with S4's conventions, which makes its loaders itself."""
    # not the options that end training: the callback uses those
    own = inspect.signature(SequenceDataset.__init__).parameters
    own_options = [o for o in ChunkSettings.options() if o.key in own]
    fixed = {o.key: getattr(loaders.chunks, o.name) for o in own_options}
    fixed |= {"loader": {"batch_size": BATCH_SIZE} | loaders.options}
    made = maker.make("dataset", section, datasets, fixed=fixed)
    with maker.refusals("dataset", section):
        made.setup()
    if made.dataset_train is None:
        raise ConfigError(f"dataset {made} has no training data: its setup() found none")
    return made


def _of_module(made: Any, loaders: PartLoaders) -> Any:
    """Return the user's data module, wrapped if it is not Lightning's."""
    if loaders.options:
        log.info("section 'loader' has no effect: %s makes its own loaders", type(made).__name__)
    if isinstance(made, lightning.LightningDataModule):
        return made
    hooks = {part: getattr(made, f"{part}_dataloader", None) for part in PARTS}
    return JobData(made, {part: hook for part, hook in hooks.items() if hook is not None})


def _split(settings: Settings, made: Any, share: Any, loaders: PartLoaders) -> dict[str, Any]:
    """Return the parts of one dataset: for training, and for validation if ``val_split`` asks."""
    if share is None:
        return {"train": made}
    check_share(share)
    if isinstance(made, Mixture):
        why = "is of a mixture: set dataset.train to a mixture, and dataset.val to a path"
        raise settings.refused("dataset.val_split", why)
    steps = loaders.options.get("steps", 1)
    train, val = split(made, share, loaders.chunks.seed or 0, steps=steps)
    if isinstance(made, Source) and steps > 1:
        log.info("loader.steps=%d: the last %d rows are the validation part", steps, len(val))
    return {"train": train, "val": val}


def _parts(settings: Settings, section: Mapping[str, Any], maker: Maker) -> dict[str, Any]:
    """Return the datasets or sources that a section has for each part."""
    for name in section:
        if name not in PARTS:
            raise maker.settings.refused(
                f"dataset.{name}", f"is unknown: the parts are {', '.join(PARTS)}"
            )
    if section.get("train") is None:
        raise settings.refused("dataset.train", "there is no training data")
    given = {part: section[part] for part in PARTS if section.get(part) is not None}
    return {part: _opened(f"dataset.{part}", each, maker) for part, each in given.items()}


def _opened(key: str, section: Any, maker: Maker) -> Any:
    """Return the dataset of a section, or the source of a path."""
    if isinstance(section, str):
        return open_source(section)
    if isinstance(section, Mapping) and "path" in section and "_target_" not in section:
        options = {n: v for n, v in section.items() if n not in ("path", "val_split")}
        return open_source(section["path"], **options)
    if isinstance(section, Mapping) and "mixture" in section:
        return _mixture(key, section, maker)
    if isinstance(section, Mapping) and "pack" in section:
        return _packed(key, section, maker)
    if not isinstance(section, Mapping):
        found = type(section).__name__
        why = f"must be one path or section, got {found}: join several into one dataset"
        raise maker.settings.refused(key, why)
    plain = {n: v for n, v in section.items() if n != "val_split"}
    made = maker.make(key, plain)
    return made if isinstance(made, Source) or not isinstance(made, Mapping) else open_source(made)


def _mixture(key: str, section: Mapping[str, Any], maker: Maker) -> Mixture:
    """Return the mixture of a section; its members are sections or paths themselves."""
    check_names(key, section, (*MIXTURE, "val_split"))
    members, options = section["mixture"], {n: section[n] for n in MIXTURE[1:] if n in section}
    if not isinstance(members, Mapping):
        raise maker.settings.refused(f"{key}.mixture", f"must be members by name, got {members!r}")
    opened = {str(n): _opened(f"{key}.mixture.{n}", m, maker) for n, m in members.items()}
    try:
        return Mixture(opened, **options)
    except PlanError as error:
        raise maker.settings.refused(key, str(error)) from error


def _packed(key: str, section: Mapping[str, Any], maker: Maker) -> PackedTokens:
    """Return the packed documents of a section; the documents are a section or path themselves."""
    check_names(key, section, (*PACK, "val_split"))
    settings, options = maker.settings, {n: section[n] for n in PACK[1:] if n in section}
    if options.get("lengths") is not None:
        options["lengths"] = _array(settings, f"{key}.lengths", options["lengths"])
    documents = _opened(f"{key}.pack", section["pack"], maker)
    try:
        return pack(documents, **options)
    except (PlanError, TypeError) as error:
        raise settings.refused(key, str(error).replace("pack() ", "")) from error


def check_names(key: str, section: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse a key that a section does not have."""
    for name in section:
        if name not in known:
            raise ConfigError(unknown_name(f"key of {key}", str(name), known))


class JobData(ClosableModule, lightning.LightningDataModule):  # type: ignore[misc, name-defined]
    """A data module whose loaders are created on first use, and then reused.

    Args:
        dataset: The training data; models and heads read sizes from it (``d_input``, ``n_tokens``).
        makers: A function for each part (``"train"``, ``"val"``, ``"test"``) that makes its loader.
    """

    def __init__(self, dataset: Any, makers: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.dataset = dataset
        self._makers, self._loaders = dict(makers), dict[str, Any]()

    def train_dataloader(self) -> Any:
        """Return the training loader."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Return the validation loader; an empty list where there is none."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Return the test loader; an empty list where there is none."""
        return self._loader("test")

    def _loader(self, part: str) -> Any:
        if part not in self._loaders:
            made = self._makers[part]() if part in self._makers else None
            self._loaders[part] = [] if made is None else made
        return self._loaders[part]

    def has(self, part: str) -> bool:
        """Return whether there is such a part."""
        return part in self._makers


@dataclass(frozen=True, slots=True)
class PartLoaders:
    """Creates the loader of each part; chunked if either chunk size is given.

    Args:
        options: The section ``loader``, with its objects made.
        chunks: Chunk sizes, order and seed.
        order: Arguments of the training loader: weights, or lengths of the samples.
        refused: Returns the error for a key, with the file and line that set it.
    """

    options: dict[str, Any]
    chunks: ChunkSettings
    order: dict[str, Any] = field(default_factory=dict)
    refused: Callable[[str, str], ConfigError] = lambda key, why: ConfigError(f"{key}: {why}")

    @property
    def batch_size(self) -> int:
        """Samples per batch of one rank."""
        return int(self.options.get("batch_size", BATCH_SIZE))

    def training(self, data: Any) -> Any:
        """Return the training loader: shuffled; in chunks where training is chunked."""
        size, order = self.chunks.train_chunk_size, self.order
        key = "train." + ("batch_by_length" if "lengths" in order else next(iter(order), ""))
        if isinstance(data, IterableDataset):
            if order:
                raise self.refused(key, "needs samples by number: an iterable dataset has none")
            return ChunkedDataLoader(data, self.batch_size, size, **self._of_torch())
        mixed, shuffle = isinstance(data, Mixture), self.chunks.order_name != "sequential"
        if self.chunks.order == "block" and (order or mixed):
            why = f"chunk_order=block cannot be combined with {key if order else 'a mixture'}"
            raise self.refused("train.chunk_order", f"{why}: use shuffled or sequential")
        stored = (
            data.is_stored and data.label is None and shuffle if mixed else isinstance(data, Source)
        )
        if "lengths" in order:
            stored = False  # also of a source: batches are read sample by sample
        else:
            samples = data.make_order(0).size if mixed else len(data)
            size = size or self._inferred(order.get("epoch_samples", samples))
        try:
            if stored:
                return self._stream(data, chunk_size=size, shuffle=shuffle, **order)
            own: dict[str, Any] = {"shuffle": shuffle, **order}
            if not order and not mixed:
                own = {"order": order_factory(self.chunks.order_of)}
            options = self._of_torch(seed=self.chunks.seed, **own)
            return ChunkedDataLoader(data, self.batch_size, size, **options)
        except PlanError as error:
            raise (self.refused(key, str(error)) if order else error) from error

    def validation(self, data: Any) -> Any:
        """Return the validation loader: the same batches each time, or the next chunk."""
        size = self.chunks.val_chunk_size
        if isinstance(data, Source):
            return self.testing(data) if size is None else self._validation_stream(data, size)
        options = self._of_torch(drop_last=False)
        if isinstance(data, IterableDataset):
            return ChunkedDataLoader(data, self.batch_size, size, **options)
        options |= {"seed": self.chunks.seed, "cycle": self.chunks.val_cycle}
        size = size or self._inferred(len(data))
        return validation_loader(data, self.batch_size, size, **options)

    def testing(self, data: Any) -> Any:
        """Return the test loader: all samples in order, never chunked."""
        if isinstance(data, Source):
            return self._stream(data, evaluation=True)
        options = self._of_torch(drop_last=False)
        if isinstance(data, IterableDataset):
            return ChunkedDataLoader(data, self.batch_size, **options)
        return validation_loader(data, self.batch_size, seed=self.chunks.seed, **options)

    def _inferred(self, samples: int) -> int | None:
        """Return a whole partition in batches of this rank; None where nothing is chunked."""
        return partition_batches(samples, self.batch_size, ranks()) if self.chunks.sized else None

    def _validation_stream(self, source: Source, size: int) -> StreamLoader:
        if self.chunks.val_cycle:
            return self._stream(source, chunk_size=size, shuffle=False, drop_last=False)
        # a fixed part of the validation data has gaps: windows are made before it is chosen
        windows, steps = composed(source), self.options.get("steps", 1)
        windows = windows.windows(steps) if steps > 1 else windows
        samples = size * self.batch_size * ranks()
        seed = Seed.of(self.chunks.seed)
        if samples >= len(windows):
            return self._stream(source, chunk_size=size, evaluation=True, seed=seed)
        key = derive_key(seed.for_ranks(ranks()), "validation")
        parts = {"chosen": samples, "rest": len(windows) - samples}
        chosen = windows.split(parts, seed=key)["chosen"]
        seed = seed.fixed("validation samples were chosen")
        stream = self._stream(chosen, chunk_size=size, evaluation=True, seed=seed, steps=1)
        stream.partition_samples = len(windows)
        return stream

    def _stream(self, source: Source | Mixture, **options: Any) -> StreamLoader:
        kept = {n: v for n, v in self.options.items() if n in STREAM_LOADER or n == "drop_last"}
        kept |= {"seed": self.chunks.seed}
        return StreamLoader(source, self.batch_size, **(kept | options))

    def _of_torch(self, **options: Any) -> dict[str, Any]:
        kept = {n: v for n, v in self.options.items() if n in LOADER and n != "batch_size"}
        return kept | options
