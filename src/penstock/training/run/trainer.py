"""Lightning's Trainer for a run: its callbacks, plugins and loggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.integrations.lightning import compat
from penstock.integrations.lightning.callback import KEY, ChunkedTraining
from penstock.training.build import Job
from penstock.training.config import Settings
from penstock.training.run.checkpoints import AtomicCheckpointIO, CheckpointWriter, one_line
from penstock.training.run.csv_log import CsvLog
from penstock.training.run.directory import RunPaths, Saved
from penstock.training.run.events import RunEvents
from penstock.training.run.signals import SignalListener, StopOnSignal

lightning = optional("lightning.pytorch", extra="train")
loggers = optional("lightning.pytorch.loggers", extra="train")
exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")

ENDS: Final = ("max_epochs", "max_steps", "max_time")


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
        self.trainer.fit(
            self.job.module, datamodule=self.job.data, ckpt_path=path, weights_only=True
        )


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
    chunked, saving = ChunkedTraining(settings, start_chunk=chunk), make_saving(settings, paths)
    kwargs = dict(job.trainer_kwargs) | launched(environment)
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


def make_saving(settings: Settings, paths: RunPaths) -> CheckpointWriter:
    """Return the callback that writes checkpoints."""
    train = settings.train
    given = (settings.resolved.get("train") or {}).get("monitor")  # else any validation loss
    return CheckpointWriter(
        paths,
        settings.resolved,
        monitor=given,
        mode=train.mode,
        every=train.checkpoint_every,
    )


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


def as_list(value: Any) -> list[Any]:
    """Return None, one value or several as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
