"""Hugging Face's ``Trainer``: a loader in which it can skip batches, so that it resumes exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from torch.utils.data import DataLoader, Dataset

from penstock.errors import ConfigError, StateError
from penstock.integrations import running_trainer
from penstock.loaders import Loader

Address: TypeAlias = tuple[int | None, int]  # epoch, step
RECORD: Final = "PenstockSteps"  # in the trainer's state
UNCHECKED: Final = (
    "the Trainer continues after %s steps, and its checkpoint does not say of which batches: this "
    "is exact only with the same batch_size * world_size and gradient_accumulation_steps"
)
ADVICE: Final = "return TrainerLoader(loader, self) from the Trainer's get_train_dataloader"

log = logging.getLogger("penstock")


class TrainerLoader(DataLoader[Any]):
    """A Penstock loader in the form that ``transformers.Trainer`` can resume.

    A ``Trainer`` resumes by building a torch loader around the dataset and batch sampler it finds,
    and skips the first batches. With a loader that has its own position, these would be the wrong
    ones. Here the batch sampler yields addresses (epoch, step), and the dataset returns the batch
    at an address, seeking if needed. A loader built around them delivers the right batches, read by
    the workers of the Penstock loader. Nothing but the trainer's step count has to be saved.

    A step count means other samples if the steps are made of other batches. The checkpoints of the
    trainer record what the steps are made of, and a resume with something else is refused.

    Args:
        loader: A loader without ``chunk_size``.
        trainer: The trainer; None for the one that iterates this loader.

    ::

        class MyTrainer(Trainer):
            def get_train_dataloader(self):
                return TrainerLoader(module.train_dataloader(), self)
    """

    # else accelerate would split the addresses between ranks, and the loader does so already
    _is_accelerate_prepared = True

    def __init__(self, loader: Loader, trainer: Any = None) -> None:
        if not isinstance(loader, Loader):
            raise ConfigError(
                f"a {type(loader).__name__} cannot seek, and a Trainer resumes by its step count: "
                "give a Penstock loader of data with an index (ChunkedDataLoader, StreamLoader)"
            )
        if loader.position.chunk is not None:
            raise ConfigError(_chunked(loader))
        self.loader, self._addresses = loader, _Addresses(loader)
        super().__init__(
            _Addressed(loader, trainer),
            batch_sampler=self._addresses,
            collate_fn=_unchanged,
            num_workers=0,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        Args:
            epoch: The epoch, counted from 0.
        """
        self._addresses.set_epoch(epoch)


class _Addresses:
    """A batch sampler that yields the addresses of the batches of an epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch: int | None = None  # until it is set

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[Address]]:
        epoch = self._epoch
        return ([(epoch, step)] for step in range(len(self)))

    def __len__(self) -> int:
        return len(self._loader)


class _Addressed(Dataset[Any]):
    """A dataset whose items are whole batches, by their addresses."""

    def __init__(self, loader: Loader, trainer: Any) -> None:
        self._loader, self._trainer = loader, trainer
        self._batches: Iterator[Any] = iter(())
        self._next: Address | None = None
        self._checked: Any = None  # the state of the trainer in this training

    def __len__(self) -> int:
        return int(self._loader.plan.steps.size)

    def __getitems__(self, addresses: list[Address]) -> Any:
        ((epoch, step),) = addresses
        if (epoch, step) != self._next or step == 0:
            self._seek(epoch, step)
        self._next = (epoch, step + 1)
        return next(self._batches)

    def _seek(self, epoch: int | None, step: int) -> None:
        trainer = self._trainer
        if trainer is None and (found := running_trainer("transformers.trainer.Trainer")):
            trainer = found[0]
        if trainer is not None:
            state, accumulated = trainer.state, trainer.args.gradient_accumulation_steps
            if state is not self._checked:
                check_steps(state, self._loader, accumulated)
                self._checked = state
            if epoch is None:  # some versions of transformers do not set the epoch of a resume
                epoch = state.global_step // max(1, -(-len(self._loader) // accumulated))
        elif epoch is None and step:
            raise StateError(
                f"{step} steps are skipped, but of an unknown epoch: use a "
                "transformers.Trainer, or call set_epoch"
            )
        elif self._next is None and (epoch or step):
            log.warning(UNCHECKED, (epoch or 0) * len(self._loader) + step)
        self._loader.seek(epoch or 0, step)
        self._batches = iter(self._loader)


def check_steps(state: Any, loader: Loader, accumulated: int) -> None:
    """Refuse a resume whose steps are made of other samples; record what they are made of.

    Args:
        state: The trainer's state, at the start of its training.
        loader: The loader that it is trained on.
        accumulated: Batches of an optimizer step.
    """
    ours = _steps_of(loader, accumulated)
    theirs = state.stateful_callbacks.get(RECORD) if state.global_step else ours
    if theirs is None:
        log.warning(UNCHECKED, state.global_step)
    for name, value in ours.items() if theirs else ():
        if theirs.get(name) != value:
            raise StateError(
                f"the Trainer's checkpoint has {name} {theirs.get(name)!r}, this run "
                f"{value!r}: its {state.global_step} steps would contain other samples; resume "
                f"with the same {name}, or save loader.state_dict() in a loop of your own"
            )
    state.stateful_callbacks[RECORD] = ours  # is in every checkpoint from here on


def check_loader(trainer: Any, loader: Any) -> None:
    """Refuse a resume with a loader that is not in a `TrainerLoader`, and warn a new run once.

    Called when the Trainer sets the epoch of a loader, which it does before every epoch.

    Args:
        trainer: Hugging Face's Trainer, which calls the loader.
        loader: The loader, as it was given to the Trainer.
    """
    name, steps, advice = type(loader).__name__, trainer.state.global_step, ADVICE
    if not isinstance(loader, Loader):
        advice = f"use a dataset with an index (Parquet, Zarr, a map-style dataset), and {ADVICE}"
    if isinstance(loader, Loader) and loader.position.chunk is not None:
        raise ConfigError(_chunked(loader))
    if not loader.is_new:
        return
    if steps:
        raise StateError(
            f"cannot resume after {steps} steps with a {name}, whose position is in none of the "
            f"Trainer's checkpoints: {advice}"
        )
    if isinstance(loader, Loader):  # so that what was saved can be resumed as advised
        check_steps(trainer.state, loader, trainer.args.gradient_accumulation_steps)
    if trainer.args.save_strategy != "no" and trainer.is_world_process_zero():
        log.warning(
            "the Trainer does not save the position of a %s, and a resume is refused: %s",
            *(name, advice),
        )


def _steps_of(loader: Loader, accumulated: int) -> dict[str, Any]:
    """Return what the samples of an optimizer step depend on."""
    position, steps = ("format", "epoch", "position"), loader.plan.steps
    order = {name: value for name, value in loader.state_dict().items() if name not in position}
    return {
        "batch_size * world_size": steps.batch * steps.world,
        "gradient_accumulation_steps": accumulated,
        "drop_last": steps.drop_last,
        **order,
    }


def _chunked(loader: Loader) -> str:
    return (
        "a Trainer's epoch is a pass over the data, and the loader has chunk_size="
        f"{loader.position.chunk}: give a Penstock loader without chunk_size"
    )


def _unchanged(batch: Any) -> Any:
    return batch
