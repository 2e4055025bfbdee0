"""One data module for all types of data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import torch

from penstock.arguments import flag, function, instance
from penstock.collate import Collator, CollatorRegistry, DefaultCollator, TaskSpec
from penstock.datamodules import inputs
from penstock.datamodules.inputs import ClosableModule, DataModuleProtocol, lightning_class
from penstock.datasets.gather import fingerprint_of
from penstock.errors import ConfigError, StateError
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.replay import ReplayLoader, check_state_format
from penstock.ranks import Seed, ranks
from penstock.sources import Source
from penstock.sources.contract import SourceLike
from penstock.tuning import DataLoaderConfig
from penstock.tuning.factory import build_loader, stack_tensors

FORMAT: Final = "penstock-module/1"

ModuleLoader: TypeAlias = ChunkedDataLoader | StreamLoader | ReplayLoader


class UniversalDataModule(ClosableModule):
    """Training, validation and test loaders for any data, collated for the task.

    Data are Hugging Face or torch datasets, lists of samples or tensors, arrays, Penstock sources,
    or anything that `open_source` opens. Each loader is created once; you may call
    ``train_dataloader()`` every epoch, and each epoch has a different order. The module is also a
    ``LightningDataModule`` if Lightning was imported before, and works in any other loop.

    Raw text is tokenised when a batch is formed; rows without text are dropped. Tensors of
    different lengths without a task give ``[padded, lengths]``.

    Args:
        train_data: The data to train on.
        val_data: The data to validate on; ``train_data`` is then not split.
        task_spec: The task, which selects the collator.
        tokenizer: For text. Without a task, a tokenizer selects the text collator.
        data_collator: Used instead of the collator of the task.
        batch_size: Samples of this rank's batch.
        val_split: Fraction of ``train_data`` to validate on, chosen by a keyed shuffle: at least
            one sample in each part. 0 for none. A source is split by whole blocks.
        num_workers: Worker processes of each loader.
        seed: Seed of the split, the order, and all that is random per sample. None draws one for
            all ranks and logs it.
        collator_registry: Used instead of the shared registry.
        test_data: The data of ``test_dataloader()``.
        text_field: Name of the field with raw text; by default ``text`` or one of the task's.
        keep_empty_text: Keep rows without text.
        executor: ``inline``, ``threads`` or ``processes``; None decides by the number of workers.
            Threads are best if collating releases the interpreter's lock or the device computes in
            the meantime.

    >>> module = UniversalDataModule([[i] for i in range(10)], batch_size=4, num_workers=0)
    >>> len(module.train_data), len(module.val_data)
    (8, 2)
    >>> len(module.train_dataloader()), module.train_dataloader() is module.train_dataloader()
    (2, True)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a module that is also a ``LightningDataModule`` if Lightning is imported."""
        return object.__new__(lightning_class(cls))

    def __init__(
        self,
        train_data: SourceLike,
        val_data: SourceLike | None = None,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,
        data_collator: Collator | None = None,
        batch_size: int = 32,
        val_split: float = 0.2,
        num_workers: int = 2,
        seed: int | None = 42,
        collator_registry: CollatorRegistry | None = None,
        *,
        test_data: SourceLike | None = None,
        text_field: str | None = None,
        keep_empty_text: bool = False,
        executor: str | None = None,
    ) -> None:
        super().__init__()
        inputs.check_share(val_split)
        instance("task_spec", task_spec, TaskSpec, optional=True, error=ConfigError)
        registry = collator_registry
        instance("collator_registry", registry, CollatorRegistry, optional=True, error=ConfigError)
        flag("keep_empty_text", keep_empty_text, error=ConfigError)
        function("data_collator", data_collator, error=ConfigError)
        instance("text_field", text_field, str, optional=True, error=ConfigError)
        self.task_spec, self.tokenizer, self.data_collator = task_spec, tokenizer, data_collator
        self.batch_size, self.val_split, self.num_workers = batch_size, val_split, num_workers
        self.collator_registry, self.text_field = collator_registry, text_field
        self.keep_empty_text, self.executor = keep_empty_text, executor
        self._seed = Seed(seed)
        config = self._config()  # checks the settings now, not at the first batch
        self.batch_size, self.num_workers = config.batch_size, config.num_workers
        self._loaders: dict[str, ModuleLoader] = {}
        if train_data is None:
            raise ConfigError("train_data must be the data to train on, got None")
        self._given = self._prepared("train_data", train_data)
        self._val_given = self._prepared("val_data", val_data)
        self.test_data = self._prepared("test_data", test_data)
        self._split()

    @classmethod
    def from_config(cls, config: Any, train_data: Any, **kwargs: Any) -> Self:
        """Return a module with the batch size, seed and split of a `TrainingConfig`.

        Args:
            config: Provides ``batch_size``, ``random_seed`` and ``validation_split``.
            train_data: The data to train on.
            **kwargs: More arguments of the class; they override the configuration.
        """
        settings = {"batch_size": config.batch_size, "seed": config.random_seed}
        settings["val_split"] = config.validation_split
        return cls(train_data, **(settings | kwargs))

    # -- loaders

    def train_dataloader(self) -> ModuleLoader:
        """Return the training loader, always the same; every ``iter()`` is the next epoch."""
        found = self._loader("train")
        assert found is not None
        return found

    def val_dataloader(self) -> Any:
        """Return the validation loader, in a fixed order; None if there is no validation data.

        Lightning, which does not accept None, gets an empty list.
        """
        return self._for_trainer(self._loader("val"))

    def test_dataloader(self) -> ModuleLoader | None:
        """Return the loader of ``test_data``, in a fixed order; None if there is none."""
        return self._loader("test")

    def _loader(self, partition: str) -> ModuleLoader | None:
        before = self.seed
        if self._seed.for_ranks(ranks()) != before:
            self._split()  # again: another seed was drawn before the ranks existed
        data = getattr(self, f"{partition}_data")
        if data is not None and partition not in self._loaders:
            seed = self._seed.fixed("loaders were made of it")
            self._loaders[partition] = _make_loader(
                *(data, self._config(), self._collator(data), seed), evaluation=partition != "train"
            )
        return self._loaders.get(partition)

    # -- the seed

    @property
    def seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self._seed.value

    def _config(self) -> DataLoaderConfig:
        return DataLoaderConfig(
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            seed=self.seed,
            executor=self.executor,
        )

    # -- data

    def _prepared(self, name: str, data: Any) -> Any:
        if data is None:
            return None
        data = inputs.opened(data, name)
        spec, field = self.task_spec, self.text_field
        is_text = self.tokenizer is not None if spec is None else spec.is_text()
        if not is_text or self.keep_empty_text:
            return data
        named = [*(() if spec is None else spec.input_fields), "text"]
        return inputs.without_empty_text(data, named if field is None else [field])

    def _split(self) -> None:
        """Set ``train_data`` and ``val_data`` as they will be loaded."""
        self.train_data, self.val_data = self._given, self._val_given
        if self._val_given is not None or not self.val_split:
            return
        if inputs.is_stream(self._given):
            raise ConfigError(
                f"{type(self._given).__name__} has no length, so val_split={self.val_split!r} "
                "cannot be computed: pass val_data= (such as its take(n)), or val_split=0"
            )
        seed = self._seed.for_ranks(ranks())
        self.train_data, self.val_data = inputs.split(self._given, self.val_split, seed)

    def _collator(self, data: Any) -> Collator | None:
        if self.data_collator is not None:
            return self.data_collator
        registry = self.collator_registry or CollatorRegistry.get_instance()
        options: dict[str, Any] = {"tokenizer": self.tokenizer}
        if self.text_field is not None:
            options["text_field"] = self.text_field
        if self.task_spec is not None:
            return registry.get_collator(self.task_spec, **options)
        if self.tokenizer is not None:
            return registry.get_collator(collator_name="text", **options)
        if inputs.is_ragged(self._given):
            inputs.check_padding(self._given)
            return inputs.padded
        return DefaultCollator() if inputs.is_hugging_face(data) else None

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training and the identity of the split; small and JSON-able."""
        return self._identity | {"train": self.train_dataloader().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a saved position from the next ``iter()`` of the training loader on.

        Args:
            state_dict: A result of `state_dict` for the same data, split and seed.
        """
        check_state_format(state_dict, FORMAT)
        self._adopt_seed(state_dict)
        ours = self._identity
        for name in ours:
            if state_dict.get(name) != ours[name]:
                raise StateError(
                    f"the state has {name} {state_dict.get(name)!r}, this module {ours[name]!r}: "
                    "create it with the arguments it had when the state was saved"
                )
        self.train_dataloader().load_state_dict(state_dict.get("train", {}))

    @property
    def _identity(self) -> dict[str, Any]:
        splits = self._val_given is None and self.val_split > 0
        known = None if isinstance(self._given, Source) else fingerprint_of(self._given)
        return {
            "format": FORMAT,
            "seed": self.seed,
            "val_split": self.val_split if splits else 0,
            "data": known,  # the state of a source's loader has its fingerprint
        }

    def _adopt_seed(self, state: dict[str, Any]) -> None:
        seed = state.get("seed")
        if self._seed.given or seed == self.seed or not isinstance(seed, int):
            return
        if self._loaders:
            raise StateError(
                f"the state has seed {seed}, this module drew {self.seed} and has loaders "
                "already: load the state before you ask for a loader, or pass seed="
            )
        self._seed.restore(seed)
        self._split()


def _make_loader(
    data: Any, config: DataLoaderConfig, collate: Collator | None, seed: Seed, *, evaluation: bool
) -> ModuleLoader:
    """Return the loader for one part of the data, whatever its type."""
    if isinstance(data, Source):
        return StreamLoader(
            data,
            config.batch_size,
            seed=seed,
            drop_last=config.drop_last,
            shuffle=not evaluation,
            evaluation=evaluation,
            collate_fn=None if collate is None else partial(collate_by_sample, collate),
        )
    if inputs.is_stream(data):
        return ReplayLoader(
            data,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
            collate_fn=collate,
            seed=seed,
            evaluation=evaluation,
        )
    options = config.options() | {"collate_fn": collate, "seed": seed}
    if evaluation:
        options |= {"shuffle": False, "evaluation": True}
    data = stack_tensors(data) if collate is None else data
    return build_loader(data, options, reason="for evaluation" if evaluation else "as configured")


def collate_by_sample(collate: Callable[[list[Any]], Any], batch: Any) -> Any:
    """Return what a collator of samples makes of a batch that was read as a whole.

    >>> collate_by_sample(len, {"x": torch.zeros(3, 2), "y": torch.zeros(3)})
    3
    """
    if isinstance(batch, torch.Tensor):
        return collate(list(batch))
    rows = zip(*batch.values(), strict=True)
    return collate([dict(zip(batch, row, strict=True)) for row in rows])


if TYPE_CHECKING:
    _satisfies: type[DataModuleProtocol] = UniversalDataModule
