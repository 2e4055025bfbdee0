"""Lightning: the loaders of a fit, settled before it looks at them."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from penstock.errors import ConfigError
from penstock.integrations.lightning.chunk_replacing import scoring_loader, training_loader, why_not
from penstock.integrations.lightning.chunk_sizes import ChunkSizes, block_of_words
from penstock.integrations.lightning.resume import ExactResume
from penstock.integrations.lightning.settings import TrainerSettings
from penstock.integrations.lightning.source import SteadySource, why_no_position
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.torch_loader import TorchLoader

log = logging.getLogger("penstock")


class SizedLoaders(ExactResume):
    """Detects chunk sizes, infers the missing one, and gives Lightning loaders that have them.

    All of that when Lightning first asks for a loader: the hooks of a module or a data module need
    their ``setup``, and ranks their process group.
    """

    def __init__(self, settings: ChunkSettings) -> None:
        super().__init__()
        self.settings = settings
        self._sizes = ChunkSizes.detect(settings, None, (), ())
        self._trainer_settings: TrainerSettings | None = None
        self._resolved = False
        self._started = False  # at its start_chunk

    # -- sizes

    @property
    def chunked_training_enabled(self) -> bool:
        """Is there a chunk size, of training or of validation?"""
        return self._sizes.enabled

    @property
    def explicit_train_chunk_size(self) -> int | None:
        """What was given: here, to the data module, or to the loader."""
        return self._sizes.explicit_train

    @property
    def explicit_val_chunk_size(self) -> int | None:
        """What was given: here, to the data module, or to the loader."""
        return self._sizes.explicit_val

    @property
    def train_chunk_size(self) -> int | None:
        """Batches a chunk: given, or once the loaders are there, those of the whole partition."""
        return self._sizes.train

    @property
    def val_chunk_size(self) -> int | None:
        """Batches a validation: given, or once the loaders are there, the whole partition's."""
        return self._sizes.val

    # -- loaders

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Have Lightning ask the same loaders for the length of every chunk."""
        if stage != "fit":
            return
        settings = self._trainer_settings = TrainerSettings(trainer)
        settings.set("reload_dataloaders_every_n_epochs", 1)
        fit, val = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
        asked = partial(self._asked, trainer)
        fit._data_source = SteadySource(fit._data_source, "max_size_cycle", asked)
        val._data_source = SteadySource(val._data_source, "sequential", asked)
        self._watch(fit._data_source, val._data_source)
        self._resolved = False

    def _asked(self, trainer: Any) -> None:
        if not self._resolved:
            self._resolved = True
            self._resolve(trainer)
        if self._loader is not None and self._trainer_settings is not None:
            self._trainer_settings.fit_interval(self._training.length)

    def _resolve(self, trainer: Any) -> None:
        """Look at the loaders, before Lightning does, and settle all there is to settle."""
        training, validation = self._training, self._validation
        if trainer.limit_train_batches:
            training.fetch()
        if trainer.enable_validation:
            validation.fetch()
        given = training.given, validation.given
        for loader in given[0]:
            self._check_position(loader)
        sizes = ChunkSizes.detect(self.settings, trainer.datamodule, *given)
        if self.settings.sized:
            names = {"settings": self.settings}
            training.replace([training_loader(x, **names, name=training.name) for x in given[0]])
            validation.replace([scoring_loader(x, **names, name=validation.name) for x in given[1]])
        self._loader = training.only_loader if given[0] else None
        self._sizes = sizes.inferred(training.given, validation.given)
        if self._sizes.enabled:
            self._announce(trainer)
        elif self._loader is None and not validation.fetched_ours:
            self._step_aside()
        self._start()

    def _check_position(self, loader: Any) -> None:
        """Refuse, or warn of, a training loader whose position no checkpoint would have."""
        why = why_no_position(loader)
        if why is None or (self.settings.train_chunk_size is not None and why_not(loader) is None):
            return
        problem = f"cannot save the data position: the trainer's train_dataloader is {why}"
        if isinstance(loader, TorchLoader):
            raise ConfigError(f"{problem}, or remove ChunkedTraining from callbacks")
        log.warning("%s, or remove ChunkedTraining from callbacks", problem)

    def _announce(self, trainer: Any) -> None:
        assert self._trainer_settings is not None
        ignored = self._trainer_settings.lift_limits()
        words = block_of_words(
            *(self._sizes, self._loader, self._validation.given, ignored),
            epochs=trainer.max_epochs,
            settings=self.settings,
        )
        if trainer.is_global_zero:
            log.info("%s", words)

    def _step_aside(self) -> None:
        """Nothing here is ours: all is as Lightning has it."""
        assert self._trainer_settings is not None
        self._trainer_settings.restore()
        self._training.step_aside()
        self._validation.step_aside()

    def _start(self) -> None:
        """Begin with the chunk asked for, in the first of several fits."""
        self._begins_elsewhere = False
        if self.settings.start_chunk is None or self._started:
            return
        if self._loader is None:
            raise ConfigError(
                f"start_chunk={self.settings.start_chunk!r} needs a training loader of Penstock: "
                "give a chunk size"
            )
        self._loader.seek(0)
        self._loader.position.set_chunk(self.settings.start_chunk)
        self._started = self._begins_elsewhere = True

    def _close(self) -> None:
        super()._close()
        if self._trainer_settings is not None:
            self._trainer_settings.restore()
