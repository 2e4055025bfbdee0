"""One run, from settings to outcome; interrupted at any moment, it resumes exactly."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError, PenstockError, RunFailedError, StateError, one_line
from penstock.extras import optional
from penstock.integrations.lightning import compat
from penstock.integrations.lightning.callback import KEY, ChunkedTraining
from penstock.loaders.chunk_report import counted, counted_passes
from penstock.training.build import Job, build
from penstock.training.build.objects import as_list
from penstock.training.config import Settings
from penstock.training.run.callbacks import (
    AtomicCheckpointIO,
    CheckpointWriter,
    RunEvents,
    Score,
    SignalListener,
    StopOnSignal,
    StoppedBySignal,
    mismatch_error,
)
from penstock.training.run.directory import (
    CsvLog,
    RunPaths,
    Saved,
    check_no_run,
    last_readable,
    locked,
)

lightning = optional("lightning.pytorch", extra="train")
exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")
connector = optional("lightning.pytorch.trainer.connectors.checkpoint_connector", extra="train")

log = logging.getLogger("penstock")

ENDS: Final = ("max_epochs", "max_steps", "max_time")


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


@dataclass(frozen=True, slots=True)
class Fit:
    """A Trainer, its job, and the callbacks that hold the results."""

    trainer: Any
    job: Job
    chunked: ChunkedTraining
    saving: CheckpointWriter


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
    board = lightning.loggers.TensorBoardLogger(
        root, name="", version=version, purge_step=keep_below
    )
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run, over all its sessions.

    Args:
        run_dir: The run's directory.
        steps: Optimizer steps done.
        chunks: Chunks done; epochs of Lightning where training is not chunked.
        samples: Samples trained on, over all ranks and passes; 0 where unknown.
        passes: Passes over the dataset.
        coverage: Share of the dataset that was seen at least once.
        best: The best validation score, if any.
        best_path: Its checkpoint.
        last_path: The last checkpoint.
        stopped_by: The signal that ended it early, or 0.
        reason: What ended it early, such as ``max_steps``; empty where nothing did.
        verdict: Whether training waited for data; empty where unknown.
    """

    run_dir: Path
    steps: int = 0
    chunks: int = 0
    samples: int = 0
    passes: float = 0.0
    coverage: float = 0.0
    best: Score | None = None
    best_path: Path | None = None
    last_path: Path | None = None
    stopped_by: int = 0
    reason: str = ""
    verdict: object = ""

    @property
    def exit_code(self) -> int:
        """The exit code: 0, or 128 plus the signal, as in a shell."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def text(self) -> str:
        """Return a few lines for the user."""
        ended = f"stopped by {signal.Signals(self.stopped_by).name}" if self.stopped_by else "done"
        lines = [f"{ended} after {counted(self.steps, 'step')}, {counted(self.chunks, 'chunk')}"]
        if self.reason and not self.stopped_by:
            lines.append(f"  ended  by {self.reason}")
        if self.samples:
            lines.append(
                f"  seen   {counted(self.samples, 'sample')}, {counted_passes(self.passes)}, "
                f"{self.coverage:.2%} of the dataset"
            )
        if self.best is not None:
            best = f"{self.best.metric} {self.best.value:.6g} after step {self.best.step:,}"
            lines.append(f"  best   {best}: {self.best_path}")
        if self.last_path is not None:
            lines.append(f"  last   {self.last_path}")
        if self.verdict:
            lines.append(f"  speed  {self.verdict}")
        if self.stopped_by:
            lines.append("  continue with the same command and --resume")
        return "\n".join(lines)


def outcome_of(fit: Fit, paths: RunPaths, *, stopped_by: int) -> Outcome:
    """Return the outcome of a fit."""
    best, saved = fit.saving.best, paths.saved()
    return Outcome(
        paths.root,
        steps=fit.trainer.global_step,
        **seen_by(fit),
        best=best,
        best_path=paths.best if best else None,
        last_path=saved[0] if saved else None,
        stopped_by=stopped_by,
        reason=reason_of(fit.trainer),
    )


def reason_of(trainer: Any) -> str:
    """Return what ended training early; an empty string where nothing did."""
    if 0 <= trainer.max_steps <= trainer.global_step:
        return f"max_steps={trainer.max_steps}"
    for callback in trainer.early_stopping_callbacks:
        if callback.stopping_reason_message:
            message = " ".join(callback.stopping_reason_message.split()).rstrip(".")
            return f"early stopping: {message}"
    return ""


def seen_by(fit: Fit) -> dict[str, Any]:
    """Return how much of the dataset was trained on, as far as it is known."""
    try:
        summary = fit.chunked.summary()
    except StateError:  # not a Penstock loader, or nothing was left to train
        return {"chunks": fit.trainer.current_epoch}
    names = ("samples", "passes", "coverage", "chunks")
    verdict = fit.chunked.verdict() if fit.chunked.measured else ""
    return {name: getattr(summary, name) for name in names} | {"verdict": verdict}


def failure(error: Exception, run_dir: Path, *, began: bool) -> Exception:
    """Return the error to raise instead of the one that Lightning's Trainer raised.

    Before the first step, errors of Penstock stay as they are and Lightning's become `ConfigError`.
    """
    if began:
        return RunFailedError(
            f"{one_line(error)} (training stopped; the run is kept in {str(run_dir)!r}: fix "
            "the cause and continue with --resume)"
        )
    if isinstance(error, exceptions.MisconfigurationException):
        return ConfigError(f"Lightning refuses the configuration: {one_line(error)}")
    if not isinstance(error, PenstockError) and raised_while_restoring(error):
        return mismatch_error(first_mismatch(error))
    return error


def raised_while_restoring(error: BaseException) -> bool:
    """Return whether Lightning raised it while restoring a checkpoint."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename == connector.__file__ for frame, _ in frames)


def first_mismatch(error: BaseException) -> str:
    """Return the first difference that torch found, of perhaps hundreds.

    >>> first_mismatch(RuntimeError('Missing key(s) in state_dict: "a.b", "a.c".'))
    "the model has 'a.b', the checkpoint does not"
    """
    for line in map(str.strip, str(error).splitlines()):
        name = line.partition('"')[2].partition('"')[0]
        if line.startswith("Missing key"):
            return f"the model has {name!r}, the checkpoint does not"
        if line.startswith("Unexpected key"):
            return f"the checkpoint has {name!r}, the model does not"
        if line.startswith("size mismatch"):
            return line.rstrip(".")
    return one_line(error)


def train(
    settings: Settings,
    *,
    resume: bool = False,
    chunk: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Outcome:
    """Train in chunks, in a run directory, and return the outcome.

    SIGTERM, SIGINT and SIGUSR1 end training between two batches, with a checkpoint.

    Args:
        settings: From `read_settings`.
        resume: Continue from the last intact checkpoint; start where there is none.
        chunk: The chunk to start with, counted from 0 over all passes.
        environment: Environment variables, by which launchers such as torchrun number processes.
    """
    paths = RunPaths(settings.run_dir)
    first_rank = is_first_rank(environment)
    with (
        SignalListener() as listener,
        opened_run(paths, resume=resume, first_rank=first_rank) as saved,
    ):
        fit = make_fit(
            settings,
            build(settings),
            paths,
            saved=saved,
            chunk=chunk,
            listener=listener,
            environment=environment,
        )
        return outcome_of(fit, paths, stopped_by=run(fit, paths, saved))


@contextmanager
def opened_run(paths: RunPaths, *, resume: bool, first_rank: bool) -> Iterator[Saved | None]:
    """Lock the run directory for a block, and yield the checkpoint to resume from."""
    if not first_rank:
        yield last_readable(paths, first_rank=False) if resume else None
        return
    paths.make()
    with locked(paths.root):
        if not resume:
            check_no_run(paths)
        saved = last_readable(paths, first_rank=True) if resume else None
        if saved is not None:
            log.info("resuming from %s", saved.path)
        elif resume:
            log.info("nothing to resume in %s: starting", paths.root)
        # only under the lock: another process may be writing its files
        paths.clean()
        yield saved


@contextmanager
def without_empty_logs(fit: Fit, paths: RunPaths) -> Iterator[None]:
    """Remove TensorBoard's new file after a block in which training did not begin."""
    before = set(paths.board.glob("events.*"))
    try:
        yield
    finally:
        if fit.trainer.is_global_zero and not fit.saving.began:
            for empty in set(paths.board.glob("events.*")) - before:
                empty.unlink(missing_ok=True)


def run(fit: Fit, paths: RunPaths, saved: Saved | None) -> int:
    """Train; return the signal that ended it early, or 0."""
    try:
        path = str(saved.path) if saved else None
        data = {"datamodule": fit.job.data, "ckpt_path": path}
        with without_empty_logs(fit, paths):
            fit.trainer.fit(fit.job.module, **data, weights_only=True)
    except StoppedBySignal as stopped:
        return stopped.number
    except SystemExit as end:  # Lightning's, for a Ctrl-C before training began
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        return signal.SIGINT
    except Exception as error:
        explained = failure(error, paths.root, began=fit.saving.began)
        if explained is error:
            raise
        raise explained from error
    return 0
