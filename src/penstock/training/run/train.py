"""Training what a configuration says; stopped at any moment, it goes on without a trace."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.training.build import build
from penstock.training.config import Settings
from penstock.training.run.directory import RunPaths, Saved, last_good, refuse_a_run
from penstock.training.run.failing import failure
from penstock.training.run.fitting import Fit, make_fit
from penstock.training.run.lock import locked
from penstock.training.run.outcome import Outcome, outcome_of
from penstock.training.run.ranks import is_first_rank
from penstock.training.run.rehearsal import rehearse
from penstock.training.run.stopping import Listener, Stopped

log = logging.getLogger("penstock")


def train(
    settings: Settings,
    *,
    resume: bool = False,
    chunk: int | None = None,
    dry_run: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Outcome:
    """Train in chunks, in a run directory of its own, and say what was seen.

    SIGTERM, SIGINT and SIGUSR1 end it between two batches, with a checkpoint; the outcome says so.

    Args:
        settings: What to train, from `read_settings`.
        resume: Go on from the last checkpoint that can be read; begin where there is none.
        chunk: The chunk to begin with, counted from 0 over all passes.
        dry_run: Only measure what it would take, with weights that are thrown away.
        environment: Where those who start several processes say which one this is.
    """
    paths = RunPaths(settings.run_dir)
    if dry_run:
        return Outcome(paths.root, forecast=rehearse(settings))
    first_rank = is_first_rank(environment)
    with Listener() as listener, held(paths, resume=resume, first_rank=first_rank) as saved:
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
def held(paths: RunPaths, *, resume: bool, first_rank: bool) -> Iterator[Saved | None]:
    """A block in which the run directory is this run's, and the checkpoint it goes on from."""
    if not first_rank:
        yield last_good(paths, first_rank=False) if resume else None
        return
    paths.make()
    with locked(paths.root):
        if not resume:
            refuse_a_run(paths)
        saved = last_good(paths, first_rank=True) if resume else None
        if saved is not None:
            log.info("resuming from %s", saved.path)
        elif resume:
            log.info("nothing to resume in %s: beginning", paths.root)
        paths.clean()
        yield saved


@contextmanager
def no_empty_logs(fit: Fit, paths: RunPaths) -> Iterator[None]:
    """A block that takes TensorBoard's new file away again if training did not begin in it."""
    before = set(paths.board.glob("events.*"))
    try:
        yield
    finally:
        if fit.trainer.is_global_zero and not fit.saving.began:
            for empty in set(paths.board.glob("events.*")) - before:
                empty.unlink(missing_ok=True)


def run(fit: Fit, paths: RunPaths, saved: Saved | None) -> int:
    """Train; the signal that ended it early, or 0."""
    try:
        with no_empty_logs(fit, paths):
            fit.run(saved)
    except Stopped as stopped:
        return stopped.number
    except SystemExit as end:  # Lightning's, for a Ctrl-C before training began
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        return signal.SIGINT
    except Exception as error:
        told = failure(error, paths.root, began=fit.saving.began)
        if told is error:
            raise
        raise told from error
    return 0
