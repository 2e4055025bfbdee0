"""Hugging Face's ``Trainer``: a loader in which it can skip batches, so that it resumes exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from torch.utils.data import DataLoader, Dataset

from penstock.errors import ConfigError, StateError
from penstock.extras import optional
from penstock.loaders import Loader

Address: TypeAlias = tuple[int | None, int]  # epoch, step
RECORD: Final = "PenstockSteps"  # in the trainer's state
UNCHECKED: Final = (
    "the Trainer continues after %s steps, and its checkpoint does not say of which batches: this "
    "is exact with the batch_size * world_size and gradient_accumulation_steps of before; use "
    "TrainerLoader(loader, trainer), which checks it"
)

log = logging.getLogger("penstock")


class TrainerLoader(DataLoader[Any]):
    """A Penstock loader in the form that ``transformers.Trainer`` can resume.

    A ``Trainer`` resumes by building a torch loader around the dataset and batch sampler it finds,
    and skips the first batches. With a loader that has its own position, these would be the wrong
    ones. Here the batch sampler yields addresses (epoch, step), and the dataset returns the batch
    at an address, seeking if needed. A loader built around them delivers the right batches, read by
    the workers of the Penstock loader. Nothing has to be saved besides the trainer's step count.

    A step count means other samples if the steps are made of other batches. With ``trainer``, its
    checkpoints record what the steps are made of, and a resume with something else is refused.

    Args:
        loader: A loader without ``chunk_size``.
        trainer: The trainer; None for a resume that is not checked.

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
            raise ConfigError(
                f"a Trainer's epoch is a pass over the data, and the loader has chunk_size="
                f"{loader.position.chunk}: give a Penstock loader without chunk_size"
            )
        self.loader, self._addresses = loader, _Addresses(loader)
        super().__init__(
            _Addressed(loader, checked=trainer is not None),
            batch_sampler=self._addresses,
            collate_fn=_unchanged,
            num_workers=0,
        )
        if trainer is not None:
            trainer.add_callback(_step_check(loader, self))

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

    def __init__(self, loader: Loader, *, checked: bool) -> None:
        self._loader, self._checked = loader, checked
        self._batches: Iterator[Any] = iter(())
        self._next: Address | None = None

    def __len__(self) -> int:
        return int(self._loader.plan.steps.size)

    def __getitems__(self, addresses: list[Address]) -> Any:
        ((epoch, step),) = addresses
        if epoch is None and step and self._next is None:
            raise StateError(
                f"the Trainer skips {step} steps and does not say of which epoch, as some versions "
                "of transformers before 5.18: use TrainerLoader(loader, trainer), or a later one"
            )
        epoch = epoch or 0
        if self._next is None and (epoch or step) and not self._checked:
            log.warning(UNCHECKED, epoch * len(self._loader) + step)
        if (epoch, step) != self._next or step == 0:
            self._loader.seek(epoch, step)
            self._batches = iter(self._loader)
        self._next = (epoch, step + 1)
        return next(self._batches)


def _step_check(loader: Loader, shown: TrainerLoader) -> Any:
    """Return a callback that records what steps are made of, and compares it at a resume."""

    class StepCheck(optional("transformers", extra="dev").TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            accumulated = args.gradient_accumulation_steps
            ours = _steps_of(loader, accumulated)
            # some versions of transformers set the epoch of a resume nowhere
            shown.set_epoch(state.global_step // max(1, -(-len(loader) // accumulated)))
            theirs = state.stateful_callbacks.get(RECORD) if state.global_step else ours
            if theirs is None:
                log.warning(UNCHECKED, state.global_step)
            for name, value in ours.items() if theirs else ():
                if theirs.get(name) != value:
                    raise StateError(
                        f"the Trainer's checkpoint has {name} {theirs.get(name)!r}, this run "
                        f"{value!r}: its {state.global_step} steps would be other samples; resume "
                        f"with the same {name}, or save loader.state_dict() in a loop of your own"
                    )
            state.stateful_callbacks[RECORD] = ours  # is in every checkpoint from here on

    return StepCheck()


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


def _unchanged(batch: Any) -> Any:
    return batch
