"""Lightning's Trainer for a run, and one fit with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.integrations.lightning.callback import KEY, ChunkedTraining
from penstock.training.build import Job
from penstock.training.config import Settings
from penstock.training.run.checkpoint_io import WholeFiles
from penstock.training.run.csv_log import CsvLog
from penstock.training.run.directory import RunPaths, Saved
from penstock.training.run.saving import Saving
from penstock.training.run.stopping import Listener, Stopping
from penstock.training.run.wording import in_a_line

lightning = optional("lightning.pytorch", extra="train")
loggers = optional("lightning.pytorch.loggers", extra="train")
exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")

ENDS: Final = ("max_epochs", "max_steps", "max_time")


@dataclass(frozen=True, slots=True)
class Fit:
    """A Trainer and those of its callbacks that know what became of the run."""

    trainer: Any
    job: Job
    chunked: ChunkedTraining
    saving: Saving

    def run(self, saved: Saved | None) -> None:
        """Train, from a checkpoint on if there is one."""
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
    listener: Listener,
    environment: Mapping[str, str],
) -> Fit:
    """A Trainer that saves, stops and logs as a run does."""
    chunked, saving = ChunkedTraining(settings, start_chunk=chunk), make_saving(settings, paths)
    kwargs = dict(job.trainer_kwargs) | launched(environment)
    kwargs["callbacks"] = [
        chunked,
        *as_list(kwargs.get("callbacks")),
        *job.callbacks,
        Stopping(listener, saving.save),
        saving,
    ]
    kwargs["plugins"] = [*as_list(kwargs.get("plugins")), WholeFiles()]
    kwargs["logger"] = list(job.loggers) or default_loggers(paths, logged_before(saved))
    kwargs["default_root_dir"] = str(paths.root)
    return Fit(make_trainer(kwargs | passes_alone(kwargs, chunked)), job, chunked, saving)


def passes_alone(kwargs: Mapping[str, Any], chunked: ChunkedTraining) -> dict[str, Any]:
    """No end by Lightning's own count where passes end it, however many chunks they are."""
    ended = chunked.settings.passes is None or any(name in kwargs for name in ENDS)
    return {} if ended else {"max_epochs": -1}


def make_trainer(kwargs: Mapping[str, Any]) -> Any:
    """Lightning's Trainer; what it refuses is refused in our words."""
    try:
        return lightning.Trainer(**kwargs)
    except (ValueError, TypeError, exceptions.MisconfigurationException) as error:
        raise ConfigError(f"Lightning refuses the section 'trainer': {in_a_line(error)}") from error


def make_saving(settings: Settings, paths: RunPaths) -> Saving:
    """The callback that writes checkpoints."""
    train = settings.train
    given = (settings.resolved.get("train") or {}).get("monitor")  # else any validation loss
    return Saving(
        paths,
        settings.resolved,
        monitor=given,
        mode=train.mode,
        every=train.checkpoint_every,
    )


def default_loggers(paths: RunPaths, keep_below: int) -> list[Any]:
    """CSV and TensorBoard, in the run's directory; steps from ``keep_below`` on come again."""
    root, version = paths.root, paths.board.name
    board = loggers.TensorBoardLogger(root, name="", version=version, purge_step=keep_below)
    return [CsvLog(root, keep_below), board]


def logged_before(saved: Saved | None) -> int:
    """The first step whose log lines are not behind a checkpoint."""
    if saved is None:
        return 0
    progress = saved.content.get(KEY, {}).get("progress")
    if progress is not None:
        return int(progress["logged"])
    loops = saved.content["loops"]["fit_loop"]
    return int(loops["epoch_loop.state_dict"]["_batches_that_stepped"])


def launched(environment: Mapping[str, str]) -> dict[str, Any]:
    """What torchrun decided already: how many processes there are, here and on all machines.

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
    """None, one thing or several, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
