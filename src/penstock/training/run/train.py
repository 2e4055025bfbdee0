"""One run, from settings to outcome; interrupted at any moment, it can be resumed exactly."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.training.build import build
from penstock.training.config import Settings
from penstock.training.run.directory import RunPaths, Saved, check_no_run, last_readable, locked
from penstock.training.run.dry_run import measure
from penstock.training.run.outcome import Outcome, failure, outcome_of
from penstock.training.run.signals import SignalListener, StoppedBySignal, is_first_rank
from penstock.training.run.trainer import Fit, make_fit

log = logging.getLogger("penstock")


def train(
    settings: Settings,
    *,
    resume: bool = False,
    chunk: int | None = None,
    dry_run: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Outcome:
    """Train in chunks, in a run directory, and return the outcome.

    SIGTERM, SIGINT and SIGUSR1 end training between two batches, with a checkpoint.

    Args:
        settings: From `read_settings`.
        resume: Continue from the last intact checkpoint; start where there is none.
        chunk: The chunk to start with, counted from 0 over all passes.
        dry_run: Only estimate time and disk space.
        environment: Environment variables, by which launchers such as torchrun number processes.
    """
    paths = RunPaths(settings.run_dir)
    if dry_run:
        return Outcome(paths.root, forecast=measure(settings))
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
        with without_empty_logs(fit, paths):
            fit.run(saved)
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
