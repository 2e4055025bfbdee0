"""One data module for whatever holds the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.arguments import flag, function, instance, whole_number
from penstock.collate import Collator, CollatorRegistry, DefaultCollator, TaskSpec
from penstock.datamodules.closing import Closing
from penstock.datamodules.flavours import flavoured
from penstock.datamodules.kinds import is_hugging_face, is_source, is_stream, opened
from penstock.datamodules.partition_loaders import SideLoader, evaluation_loader_of, loader_of
from penstock.datamodules.protocol import BatchSettings, DataModuleProtocol
from penstock.datamodules.splitting import check_share, split
from penstock.datamodules.tensors import check_padding, is_ragged, padded
from penstock.datamodules.text import without_empty_text
from penstock.datasets.gather import fingerprint_of
from penstock.errors import ConfigError, StateError
from penstock.loaders.states import check_mapping
from penstock.ranks import ranks
from penstock.seeds import Seed
from penstock.tuning import DataLoaderConfig

FORMAT: Final = "penstock-module/1"


class UniversalDataModule(Closing):
    """Training, validation and test loaders of any data, collated as the task asks for.

    Data are Hugging Face or torch datasets, lists of samples or tensors, arrays, Penstock sources,
    or what `open_source` opens. The loaders are made once: ask for them every epoch if you like,
    each epoch still has an order of its own. It is a ``LightningDataModule`` if Lightning was
    imported before it is made, and works in any other loop as well.

    Raw text is tokenised when a batch is formed; empty rows are left out. Tensors of different
    lengths without a task give ``[padded, lengths]``.

    Args:
        train_data: To train on.
        val_data: To validate on; then nothing is split off ``train_data``.
        task_spec: What is trained; picks the collator.
        tokenizer: For text; alone it means text, whatever the task.
        data_collator: Wins over the task.
        batch_size: Samples of this rank's batch.
        val_split: Share of ``train_data`` to validate on, a keyed shuffle: at least one sample on
            each side; 0 for none. Of a source, whole blocks.
        num_workers: Worker processes of each loader.
        seed: Of the split, the order, and what is keyed by sample; None draws one for all ranks and
            logs it.
        collator_registry: Instead of the one all share.
        test_data: For ``test_dataloader()``.
        text_field: Name of the field that holds raw text, if not ``text`` or one of the task's.
        keep_empty_text: Train on rows without text too.
        executor: ``inline``, ``threads`` or ``processes``; None: by the number of workers. Threads
            cost the training loop least, where collating lets go of the interpreter's lock or the
            device computes meanwhile.

    >>> module = UniversalDataModule([[i] for i in range(10)], batch_size=4, num_workers=0)
    >>> len(module.train_data), len(module.val_data)
    (8, 2)
    >>> len(module.train_dataloader()), module.train_dataloader() is module.train_dataloader()
    (2, True)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A module that is Lightning's too, where Lightning is imported."""
        return object.__new__(flavoured(cls))

    def __init__(
        self,
        train_data: Any,
        val_data: Any = None,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,
        data_collator: Collator | None = None,
        batch_size: int = 32,
        val_split: float = 0.2,
        num_workers: int = 2,
        seed: int | None = 42,
        collator_registry: CollatorRegistry | None = None,
        *,
        test_data: Any = None,
        text_field: str | None = None,
        keep_empty_text: bool = False,
        executor: str | None = None,
    ) -> None:
        super().__init__()
        check_share(val_split)
        instance("task_spec", task_spec, TaskSpec, optional=True, error=ConfigError)
        registry = collator_registry
        instance("collator_registry", registry, CollatorRegistry, optional=True, error=ConfigError)
        batch_size = whole_number(
            "batch_size", batch_size, minimum=1, unit="sample", error=ConfigError
        )
        num_workers = whole_number("num_workers", num_workers, minimum=0, error=ConfigError)
        flag("keep_empty_text", keep_empty_text, error=ConfigError)
        function("data_collator", data_collator, error=ConfigError)
        if text_field is not None and not isinstance(text_field, str):
            raise ConfigError(f"text_field must be the name of a field, got {text_field!r}")
        self.task_spec, self.tokenizer, self.data_collator = task_spec, tokenizer, data_collator
        self.batch_size, self.val_split, self.num_workers = batch_size, val_split, num_workers
        self.collator_registry, self.text_field = collator_registry, text_field
        self.keep_empty_text, self.executor = keep_empty_text, executor
        self._seed = Seed(seed)
        self._config()  # refuses what cannot be, now
        self._loaders: dict[str, SideLoader] = {}
        if train_data is None:
            raise ConfigError("train_data must be the data to train on, got None")
        self._given = self._prepared("train_data", train_data)
        self._val_given = self._prepared("val_data", val_data)
        self.test_data = self._prepared("test_data", test_data)
        self._divide()

    @classmethod
    def from_config(cls, config: BatchSettings, train_data: Any, **kwargs: Any) -> Self:
        """A module with the batch size, seed and split of a `TrainingConfig`."""
        settings = {
            "batch_size": config.batch_size,
            "seed": config.random_seed,
            "val_split": config.validation_split,
        }
        return cls(train_data, **(settings | kwargs))

    # -- loaders

    def train_dataloader(self) -> SideLoader:
        """Shuffled batches; every ``iter()`` goes on with the next epoch. Always the same one."""
        self._share_seed()
        if "train" not in self._loaders:
            collate, seed = self._collator(self.train_data), self._fixed_seed
            self._loaders["train"] = loader_of(self.train_data, self._config(), collate, seed)
        return self._loaders["train"]

    def val_dataloader(self) -> Any:
        """Batches in order, the same each time; None where there is nothing to validate on.

        Lightning, which takes no None, gets an empty list.
        """
        self._share_seed()
        found = self._evaluation("val", self.val_data)
        return [] if found is None and getattr(self, "trainer", None) is not None else found

    def test_dataloader(self) -> SideLoader | None:
        """Batches of ``test_data``, in order, the same each time; None where there is none."""
        self._share_seed()
        return self._evaluation("test", self.test_data)

    def _evaluation(self, side: str, data: Any) -> SideLoader | None:
        if data is not None and side not in self._loaders:
            collate, seed = self._collator(data), self._fixed_seed
            self._loaders[side] = evaluation_loader_of(data, self._config(), collate, seed)
        return self._loaders.get(side)

    # -- the seed

    @property
    def seed(self) -> int:
        """The seed in use: passed in, drawn at random, or restored from a state."""
        return self._seed.value

    def _share_seed(self) -> None:
        """Split again by rank 0's seed, if the seed was drawn before there were ranks."""
        before = self.seed
        if self._seed.for_ranks(ranks()) != before:
            self._divide()

    @property
    def _fixed_seed(self) -> Seed:
        return self._seed.fixed("loaders were made of it")

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
        data = opened(data, name)
        if not self._is_text or self.keep_empty_text:
            return data
        return without_empty_text(data, self._text_fields)

    @property
    def _is_text(self) -> bool:
        return self.tokenizer is not None if self.task_spec is None else self.task_spec.is_text()

    @property
    def _text_fields(self) -> Sequence[str]:
        if self.text_field is not None:
            return [self.text_field]
        return [*(() if self.task_spec is None else self.task_spec.input_fields), "text"]

    def _divide(self) -> None:
        """Set ``train_data`` and ``val_data``: the sides, as they will be loaded."""
        self.train_data, self.val_data = self._given, self._val_given
        if self._val_given is not None or not self.val_split:
            return
        if is_stream(self._given):
            raise ConfigError(
                f"{type(self._given).__name__} has no length, so val_split={self.val_split!r} of "
                "it cannot be told: give val_data= (its take(n), say, and skip(n) to train on), "
                "or val_split=0"
            )
        seed = self._seed.for_ranks(ranks())
        self.train_data, self.val_data = split(self._given, self.val_split, seed)

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
        if is_ragged(self._given):
            check_padding(self._given)
            return padded
        return DefaultCollator() if is_hugging_face(data) else None

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Where training is, and what the split was: small and JSON-able."""
        return self._identity | {"train": self.train_dataloader().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly there, from the next ``iter()`` of the training loader on.

        Args:
            state_dict: What `state_dict` returned, for the same data, split and seed.
        """
        check_mapping(state_dict, FORMAT)
        self._adopt_seed(state_dict)
        ours = self._identity
        for name in ours:
            if state_dict.get(name) != ours[name]:
                raise StateError(
                    f"the state has {name} {state_dict.get(name)!r}, this module {ours[name]!r}: "
                    "build it as it was when the state was taken"
                )
        self.train_dataloader().load_state_dict(state_dict.get("train", {}))

    @property
    def _identity(self) -> dict[str, Any]:
        splits = self._val_given is None and self.val_split > 0
        known = None if is_source(self._given) else fingerprint_of(self._given)
        return {
            "format": FORMAT,
            "seed": self.seed,
            "val_split": self.val_split if splits else 0,
            "data": known,  # of a source, the loader's own state tells
        }

    def _adopt_seed(self, state: dict[str, Any]) -> None:
        seed = state.get("seed")
        if self._seed.given or seed == self.seed or not isinstance(seed, int):
            return
        if self._loaders:
            raise StateError(
                f"the state has seed {seed}, this module drew {self.seed} and gave out loaders: "
                "load the state before asking for a loader, or give the seed"
            )
        self._seed.restore(seed)
        self._divide()

    # -- the end

    def close(self) -> None:
        """End every thread and process of the loaders; they may be iterated again."""
        for loader in self._loaders.values():
            loader.close()


if TYPE_CHECKING:
    _satisfies: type[DataModuleProtocol] = UniversalDataModule
