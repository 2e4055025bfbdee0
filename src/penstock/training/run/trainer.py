"""Lightning's Trainer for a run: its callbacks, plugins and loggers."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from penstock.errors import ConfigError, one_line
from penstock.extras import optional
from penstock.integrations.lightning import compat
from penstock.integrations.lightning.callback import KEY, ChunkedTraining
from penstock.training.build import Job
from penstock.training.build.objects import as_list
from penstock.training.config import Settings
from penstock.training.run.callbacks import AtomicCheckpointIO, CheckpointWriter, RunEvents
from penstock.training.run.directory import CsvLog, RunPaths, Saved

lightning = optional("lightning.pytorch", extra="train")
loggers = optional("lightning.pytorch.loggers", extra="train")
exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")

log = logging.getLogger("penstock")

callbacks = optional("lightning.pytorch.callbacks", extra="train")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_KEY_PRESS_SECONDS: Final = 1.0  # launchers forward a terminal's Ctrl-C a second time

ENDS: Final = ("max_epochs", "max_steps", "max_time")


class StoppedBySignal(BaseException):
    """Training ended because of a signal; everything is saved.

    Not an `Exception`, so that user code does not catch it and continue.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class SignalListener:
    """Remembers the signal that requested this process to stop.

    It is active only while there is training to save. Before and after, a signal ends the process
    directly: the process may wait in native code for another rank, where no handler runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.received = 0
        self._clock, self._at = clock, 0.0
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second Ctrl-C exits at once."""
        now = self._clock()
        if self.received and number == signal.SIGINT and now - self._at > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)  # safe: the last checkpoint is intact
        if not self.received:
            self.received, self._at = number, now
            name = signal.Signals(number).name
            log.warning("%s: saving after this batch, then exiting", name)

    def listen(self) -> None:
        """Install the handlers."""
        for number in SIGNALS:
            signal.signal(number, self.handle)

    def restore_handlers(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> SignalListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore_handlers()


class StopOnSignal(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Ends training between two batches after a signal, on all ranks at the same batch.

    Args:
        listener: The signals of this process.
        save: Writes the checkpoint, on all ranks together.
    """

    def __init__(self, listener: SignalListener, save: Callable[[Any], object]) -> None:
        self._listener, self._save = listener, save
        self._ranks: Ranks | None = None
        self._in_step = True  # validation has the same number of batches on every rank

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Remove the handler that Lightning just installed: it waits for a training step."""
        self._listener.restore_handlers()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Install our handlers instead of Lightning's."""
        self._listener.listen()
        self._ranks = Ranks()

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Stop before this batch, when the one before is completely logged."""
        self._stop_if_requested(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop before a validation; a resume runs it."""
        if self._ranks is None or trainer.sanity_checking:
            return
        if self._ranks.several:
            batches = sum(trainer.num_val_batches)
            self._in_step = self._ranks.agree(-1 if batches == float("inf") else int(batches))
        self._stop_if_requested(trainer)

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        """Stop inside a validation; a resume runs it again from its start."""
        if not trainer.sanity_checking and self._in_step:
            self._stop_if_requested(trainer)

    def _stop_if_requested(self, trainer: Any) -> None:
        if self._ranks is None:
            return
        # a signal may reach one rank only, and all must leave at the same batch
        (signal_number,) = self._ranks.largest(self._listener.received)
        if signal_number:
            self._save(trainer)
            raise StoppedBySignal(signal_number)


def is_first_rank(environment: Mapping[str, str]) -> bool:
    """Return whether this is the process that writes for all, by the launcher's environment.

    >>> is_first_rank({}), is_first_rank({"RANK": "2"}), is_first_rank({"LOCAL_RANK": "1"})
    (True, False, False)
    >>> is_first_rank({"NODE_RANK": "1", "LOCAL_RANK": "0"})  # the first on another machine
    False
    """
    for of_all in ("RANK", "SLURM_PROCID"):  # torchrun, and Slurm's srun
        if of_all in environment:
            return int(environment[of_all]) == 0
    return all(int(environment.get(name, 0)) == 0 for name in ("LOCAL_RANK", "NODE_RANK"))


class Ranks:
    """Decisions of all ranks together; every rank must call at the same step.

    Uses gloo, so that no rank waits for its device.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo") if several else None

    @property
    def several(self) -> bool:
        """Whether there is more than one rank."""
        return self._group is not None

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """Return the elementwise maximum over all ranks."""
        if self._group is None:
            return numbers
        found = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return tuple(found.tolist())

    def agree(self, number: int) -> bool:
        """Return whether all ranks have the same number."""
        return self.largest(number, -number) == (number, -number)


@dataclass(frozen=True, slots=True)
class Fit:
    """A Trainer, its job, and the callbacks that hold the results."""

    trainer: Any
    job: Job
    chunked: ChunkedTraining
    saving: CheckpointWriter

    def run(self, saved: Saved | None) -> None:
        """Train, from a checkpoint if there is one."""
        path = str(saved.path) if saved else None
        data = {"datamodule": self.job.data, "ckpt_path": path}
        self.trainer.fit(self.job.module, **data, weights_only=True)


def make_fit(
    settings: Settings,
    job: Job,
    paths: RunPaths,
    *,
    saved: Saved | None,
    chunk: int | None,
    listener: SignalListener,
    environment: Mapping[str, str],
) -> Fit:
    """Return the Trainer of a run, with checkpoints, signals and logs."""
    chunked = ChunkedTraining(settings, start_chunk=chunk)
    saving = CheckpointWriter(
        paths,
        settings.resolved,
        monitor=(settings.resolved.get("train") or {}).get("monitor"),  # else any validation loss
        mode=settings.train.mode,
        every=settings.train.checkpoint_every,
    )
    kwargs = dict(job.trainer_kwargs) | launched(environment)
    # first the one that puts loaders in place; last the one that saves what the others changed
    kwargs["callbacks"] = [
        chunked,
        *as_list(kwargs.get("callbacks")),
        *job.callbacks,
        StopOnSignal(listener, saving.save),
        saving,
        RunEvents(paths.root, chunked),
    ]
    kwargs["plugins"] = [*as_list(kwargs.get("plugins")), AtomicCheckpointIO()]
    kwargs["logger"] = list(job.loggers) or default_loggers(paths, logged_before(saved))
    kwargs["default_root_dir"] = str(paths.root)
    return Fit(make_trainer(kwargs | unlimited_epochs(kwargs, chunked)), job, chunked, saving)


def unlimited_epochs(kwargs: Mapping[str, Any], chunked: ChunkedTraining) -> dict[str, Any]:
    """Return ``max_epochs=-1`` where only passes end training: Lightning's default is 1000."""
    ended = chunked.settings.passes is None or any(name in kwargs for name in ENDS)
    return {} if ended else {"max_epochs": -1}


def make_trainer(kwargs: Mapping[str, Any]) -> Any:
    """Return Lightning's Trainer; its own errors become `ConfigError`."""
    try:
        return lightning.Trainer(**kwargs)
    except (ValueError, TypeError, exceptions.MisconfigurationException) as error:
        raise ConfigError(f"Lightning refuses the section 'trainer': {one_line(error)}") from error


def default_loggers(paths: RunPaths, keep_below: int) -> list[Any]:
    """Return CSV and TensorBoard loggers; lines from step ``keep_below`` on are replaced."""
    root, version = paths.root, paths.board.name
    board = loggers.TensorBoardLogger(root, name="", version=version, purge_step=keep_below)
    return [CsvLog(root, keep_below), board]


def logged_before(saved: Saved | None) -> int:
    """Return the first step whose log lines are written again after a resume."""
    if saved is None:
        return 0
    progress = saved.content.get(KEY, {}).get("progress")
    if progress is not None:
        return int(progress["logged"])
    return compat.logged_steps_of(saved.content)


def launched(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of devices and nodes that torchrun decided.

    >>> launched({"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"})
    {'devices': 2, 'num_nodes': 2}
    >>> launched({})
    {}
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return {}
    here, everywhere = (int(environment[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    return {"devices": here, "num_nodes": everywhere // here}
