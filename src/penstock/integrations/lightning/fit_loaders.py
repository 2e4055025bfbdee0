"""Which loaders and chunk sizes a fit uses, and the settings of the Trainer that follow from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from penstock.errors import ConfigError
from penstock.integrations.lightning import compat
from penstock.integrations.lightning.loaders import (
    LoaderSource,
    as_training_loader,
    as_validation_loader,
    skip_positions,
    why_no_position,
    why_not_chunked,
)
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_report import describe_chunks, describe_length, describe_validation
from penstock.loaders.chunk_settings import ChunkSettings, ChunkSizes, partition_batches
from penstock.loaders.pass_through import has_position
from penstock.loaders.torch_loader import TorchLoader

log = logging.getLogger("penstock")

Loaders: TypeAlias = Iterable[Any]
NEVER: Final = 1 << 62  # an epoch that does not come
LIMITS: Final = ("limit_train_batches", "limit_val_batches")


class TrainerSettings:
    """Settings of a Trainer that are changed during a fit and restored after it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._before = trainer, dict[str, Any]()

    def set(self, name: str, value: Any) -> None:
        """Change a setting until `restore`."""
        self._before.setdefault(name, getattr(self._trainer, name))
        setattr(self._trainer, name, value)

    def restore(self) -> None:
        """Restore the user's values."""
        for name in tuple(self._before):
            setattr(self._trainer, name, self._before.pop(name))

    def remove_limits(self) -> dict[str, str]:
        """Remove ``limit_*_batches``, which chunk sizes override; returns the removed ones as text.

        A limit of 0 switches training or validation off and is not changed, nor is a debugging run
        (``fast_dev_run``).
        """
        if self._trainer.overfit_batches:
            raise ConfigError(
                f"overfit_batches={self._trainer.overfit_batches!r} repeats the same batches, and "
                "chunks continue with the next ones: use only one of them"
            )
        if self._trainer.fast_dev_run:
            return {}
        found = {name: getattr(self._trainer, name) for name in LIMITS}
        # 1.0 is all batches, and 0 is none; the integer 1 is a limit
        limits = {n: v for n, v in found.items() if v and not (v == 1 and isinstance(v, float))}
        for name in limits:
            self.set(name, 1.0)
        return {name: f"{name}={value!r}" for name, value in limits.items()}

    def validate_next(self, due: bool) -> None:
        """Have Lightning validate at the end of this chunk, or not."""
        self.set("check_val_every_n_epoch", 1 if due else NEVER)

    def check_interval(self) -> None:
        """Refuse an interval of the user together with ``validate_every``."""
        for name, default in (("check_val_every_n_epoch", 1), ("val_check_interval", 1.0)):
            value = self._before.get(name, getattr(self._trainer, name))
            if value != default:
                raise ConfigError(
                    f"validate_every with the trainer's {name}={value!r}: use only one of them"
                )

    def shorten_interval(self, batches: int) -> None:
        """Validate at the end of a chunk that is shorter than ``val_check_interval``."""
        name = "val_check_interval"
        requested = self._before.get(name, getattr(self._trainer, name))
        if isinstance(requested, int) and self._trainer.check_val_every_n_epoch is not None:
            self.set(name, min(requested, max(1, batches)))


class FitLoaders:
    """The loaders of one fit and their chunk sizes.

    They are determined when Lightning first asks for a loader: hooks of a module or a data module
    need their ``setup``, and ranks need their process group.

    Args:
        settings: The chunk options.
    """

    training: LoaderSource  # set by `attach`, as the two that follow
    validation: LoaderSource
    trainer_settings: TrainerSettings

    def __init__(self, settings: ChunkSettings) -> None:
        self.settings = settings
        self.sizes = find_sizes(settings, None, (), ())
        self.loader: Loader | None = None  # the one that is trained on, if it is of Penstock
        self.starts_at_chunk = False  # this fit starts at start_chunk, not at its checkpoint
        self._attached = self._resolved = False
        self._started = False  # start_chunk applies to the first of several fits only

    def attach(self, trainer: Any) -> None:
        """Have Lightning read the length of the same loaders before every chunk."""
        self.trainer_settings = TrainerSettings(trainer)
        self.trainer_settings.set("reload_dataloaders_every_n_epochs", 1)
        if self.settings.validate_every is not None:
            self.trainer_settings.check_interval()
        before_reload = partial(self._before_reload, trainer)
        training, validation = compat.data_sources(trainer)
        self.training = LoaderSource(training, "max_size_cycle", before_reload)
        self.validation = LoaderSource(validation, "sequential", before_reload)
        compat.set_data_sources(trainer, self.training, self.validation)
        self.loader, self._attached, self._resolved = None, True, False

    def _before_reload(self, trainer: Any) -> None:
        if not self._resolved:
            self._resolved = True
            self._resolve(trainer)
        if self.loader is not None:
            self.trainer_settings.shorten_interval(self.training.length)

    def _resolve(self, trainer: Any) -> None:
        """Determine loaders and sizes, before Lightning sees the loaders."""
        training, validation, settings = self.training, self.validation, self.settings
        if trainer.limit_train_batches:
            training.fetch()
        if trainer.enable_validation:
            validation.fetch()
        for loader in training.all:
            self._check_position(loader)
        sizes = find_sizes(settings, trainer.datamodule, training.all, validation.all)
        if settings.sized:
            replaced = [as_training_loader(x, settings, name=training.name) for x in training.all]
            training.replace(replaced)
            named = {"name": validation.name}
            validation.replace([as_validation_loader(x, settings, **named) for x in validation.all])
        self.loader = training.only_loader if training.all else None
        # after the replacement: the size of a partition is counted in batches of its own loader
        self.sizes = sizes.infer(
            lambda: largest(map(whole_batches, training.all)),
            lambda: largest(map(whole_batches, validation.all)),
        )
        if self.sizes.enabled:
            self._announce(trainer)
        elif self.loader is None and not any(isinstance(x, Loader) for x in validation.all):
            self.trainer_settings.restore()  # all is left to Lightning: no loader is of Penstock
            training.bypassed = validation.bypassed = True
        skip_positions(self.loader, settings)
        self._seek_start()

    def _check_position(self, loader: Any) -> None:
        """Refuse, or warn about, a training loader whose position a checkpoint cannot contain."""
        why = why_no_position(loader)
        replaced = self.settings.train_chunk_size is not None and why_not_chunked(loader) is None
        if why is None or replaced:
            return
        problem = f"cannot save the data position: the trainer's train_dataloader is {why}"
        if isinstance(loader, TorchLoader):
            raise ConfigError(f"{problem}, or remove ChunkedTraining from callbacks")
        log.warning("%s, or remove ChunkedTraining from callbacks", problem)

    def _announce(self, trainer: Any) -> None:
        """Log what a chunk is, what a validation is, and how long training is."""
        sizes, loader, validation = self.sizes, self.loader, self.validation.all
        ignored, lines = self.trainer_settings.remove_limits(), list[str | None]()
        if loader is None:
            size = sizes.train if sizes.train is not None else "an unknown number of"
            lines.append(f"chunked: training uses its own loader, {size} batches an epoch")
        else:
            order, schedule = loader.plan.order, loader.position.progress
            limit = ignored.get("limit_train_batches")
            chunks = describe_chunks(loader.plan.steps, limit)
            lines.append(chunks if schedule is None else f"chunked: {schedule.schedule}")
            lines.append(f"order: {order.kind}, seed {order.seed}")
        if any(compat.sized_len(each) != 0 for each in validation):
            moving = any(has_position(x) and not x.position.evaluation for x in validation)
            which = "the next ones each time, in rotation" if moving else "the same ones each time"
            whole, limit = largest(map(whole_batches, validation)), ignored.get("limit_val_batches")
            lines.append(describe_validation(sizes.val, whole, which, limit))
        else:
            lines.append("validation: none")
        if loader is None or loader.position.progress is None:
            steps = None if loader is None else loader.plan.steps
            lines.append(describe_length(trainer.max_epochs, self.settings.passes, steps))
        if trainer.is_global_zero:
            log.info("%s", "\n".join(filter(None, lines)))

    def _seek_start(self) -> None:
        """Go to ``start_chunk`` in the first of several fits."""
        self.starts_at_chunk = False
        if self.settings.start_chunk is None or self._started:
            return
        if self.loader is None:
            wanted = f"start_chunk={self.settings.start_chunk!r}"
            raise ConfigError(f"{wanted} needs a training loader of Penstock: pass a chunk size")
        self.loader.seek(0)
        self.loader.position.set_chunk(self.settings.start_chunk)
        self._started = self.starts_at_chunk = True

    def close(self) -> None:
        """Stop workers and threads, and restore the settings of the Trainer."""
        if self._attached:
            self.training.close()
            self.validation.close()
            self.trainer_settings.restore()


# -- chunk sizes


def find_sizes(settings: ChunkSettings, data: Any, train: Loaders, val: Loaders) -> ChunkSizes:
    """Return the sizes that are given: in the settings, else a data module, else the loaders."""
    sizes = []
    for partition, loaders in (("train", train), ("val", val)):
        size = getattr(settings, f"{partition}_chunk_size")
        if size is None:
            size = getattr(data, f"explicit_{partition}_chunk_size", None)
        if size is None and not getattr(data, "use_chunked_training", False):
            size = largest(each.position.chunk for each in loaders if has_position(each))
        sizes.append(size)
    return ChunkSizes.given(*sizes)


def whole_batches(loader: Any) -> int | None:
    """Return the batches of the whole partition of a loader on this rank; None if unknown."""
    if not has_position(loader):
        length: int | None = compat.sized_len(loader)
        return length
    steps = loader.plan.steps
    sized: Any = loader.dataset if isinstance(loader, ChunkedDataLoader) else None
    samples = getattr(loader, "partition_samples", None) if sized is None else len(sized)
    return partition_batches(samples or steps.size, steps.batch, steps.world)


def largest(numbers: Iterable[int | None]) -> int | None:
    """Return the largest number that is not None or 0; None if there is none."""
    return max(filter(None, numbers), default=None)
