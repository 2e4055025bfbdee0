"""Waits for worker processes that end: with a batch, or an error that says what was waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.errors import WorkerError
from penstock.loaders.processes import POSITION, explain_worker_death
from penstock.loaders.worker_context import WorkerContext, state_of_process

log = logging.getLogger("penstock")

REPORT_SECONDS: Final = 30.0  # of waiting for one batch before that is logged, then twice as long
LOOK_SECONDS: Final = 1.0  # between two looks at the clock; a quarter of a timeout where it is less


class _Wait(NamedTuple):
    since: float
    limit: float
    what: Callable[[], str]


class WorkerWatch(threading.Thread):
    """A thread that ends waits that are too long, by killing the workers waited for.

    torch's own timeout ends only a wait for an empty queue. A worker that stops in the middle of a
    message, or before it has handed over shared memory, blocks a read that no timeout reaches.

    Args:
        context: The workers.
        look_seconds: Between two looks at the clock.
    """

    def __init__(self, context: WorkerContext, look_seconds: float) -> None:
        super().__init__(name="worker-watch", daemon=True)
        self._context, self._look_seconds = context, look_seconds
        self._wait: _Wait | None = None
        self._too_long: str | None = None

    @contextmanager
    def waiting(self, what: Callable[[], str], limit: float) -> Iterator[None]:
        """A block in which this thread waits for the workers.

        Args:
            what: Says what is waited for.
            limit: Seconds until the workers are killed; 0 for no limit, only a warning in the log.

        Raises:
            WorkerError: The limit was reached, or a worker died.
        """
        self._wait = _Wait(time.monotonic(), limit, what)
        try:
            with explain_worker_death(self._context):
                yield
        except (RuntimeError, OSError, EOFError) as error:
            if self._too_long is None:
                raise
            raise WorkerTimeoutError(
                f"{self._too_long}: {POSITION}, or pass a longer timeout"
            ) from error
        finally:
            self._wait = None

    def run(self) -> None:
        """Look at the clock until the workers are ended."""
        reported: tuple[_Wait, float] | None = None
        while not self._context.ending.wait(self._look_seconds):
            wait = self._wait
            if wait is None:
                continue
            waited = time.monotonic() - wait.since
            if wait.limit and waited >= wait.limit:
                self._too_long = f"waited {wait.limit:g} s (timeout) for {wait.what()}"
                self._context.kill()
                return
            due = reported[1] if reported and reported[0] is wait else REPORT_SECONDS
            if waited >= due:
                reported = wait, 2 * due
                log.warning("waiting since %.0f s for %s; timeout= ends this", waited, wait.what())


class WorkerTimeoutError(WorkerError):
    """A worker process did not deliver in time."""


def describe_wait(context: WorkerContext, worker_id: int, samples: Any) -> str:
    """Return which worker is waited for, what it does and what it reads, in a few words."""
    listed = np.array2string(np.asarray(samples), separator=", ", threshold=8, edgeitems=4)
    stopped = [
        f"worker process {other.pid} is stopped"
        for other_id, other in enumerate(context.started)
        if other_id != worker_id and state_of_process(other.pid) == "stopped"
    ]
    worker = context.processes[worker_id]
    starting = "" if context.has_begun(worker_id) else ", still starting"
    return "; ".join(
        [
            f"worker process {worker.pid} ({state_of_process(worker.pid)}{starting}) "
            f"to deliver samples {listed}",
            *stopped,
        ]
    )
