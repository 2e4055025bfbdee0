"""Worker processes: what can be sent to them, how they start, and how they ended."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final

from penstock.errors import PlanError, WorkerError
from penstock.loaders.pickling import unpicklable_part
from penstock.loaders.worker_context import (
    UNGUARDED,
    WorkerContext,
    shut_down,
    start_context,
)

log = logging.getLogger("penstock")

READERS: Final = "penstock-"  # our threads; zarr starts its own again in a forked child
RAISED_THERE: Final = "in DataLoader worker process"  # in what torch raises for a dataset's error
EXIT_CODE_SECONDS: Final = 2.0  # between a broken pipe and the exit code of the process behind it
POSITION: Final = (
    "the position is at the last batch delivered; iterate again to continue there, "
    "or use num_workers=0 to see where it happens"
)


@contextmanager
def explain_worker_death(context: WorkerContext | None) -> Iterator[None]:
    """Turn an error raised because a worker died into a `WorkerError` that names it and the cause.

    Args:
        context: The workers; None where there are none.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        if context is None or RAISED_THERE in str(error):
            raise
        dead = _dead(context.started)
        if any(worker.exitcode == UNGUARDED for worker in dead):
            raise WorkerError(_unguarded(context.get_start_method())) from None
        if not dead:
            raise
        exits = [describe_exit(worker, context) for worker in dead]
        raise WorkerError(f"{', '.join(exits)}: {POSITION}") from error


def _dead(workers: list[BaseProcess]) -> list[BaseProcess]:
    with suppress(RuntimeError):  # torch's signal handler raises in the midst of whatever runs
        gone = wait([worker.sentinel for worker in workers], timeout=EXIT_CODE_SECONDS)
        for worker in workers:
            if worker.sentinel in gone:  # its pipes closed; its exit code comes a moment later
                worker.join(EXIT_CODE_SECONDS)
    return [worker for worker in workers if worker.exitcode is not None]


def describe_exit(worker: BaseProcess, context: WorkerContext) -> str:
    """Return which worker ended, when and how, in a few words."""
    code = worker.exitcode or 0
    name = f"worker process {worker.pid}"
    if not context.has_begun(context.processes.index(worker)):
        name += f" (starting by {context.get_start_method()}; its own error is printed above)"
    if code >= 0:
        return f"{name} exited with code {code}"
    memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"{name} was killed by {signal.Signals(-code).name}{memory}"


def _unguarded(method: str) -> str:
    closing = ""
    if reader_threads():
        closing = (
            "close the loaders that read in threads before workers start "
            "and leave out multiprocessing_context, or "
        )
    return (
        f"worker processes start by {method} here, which imports the main script again, and the "
        'script starts workers as it is imported: put what it runs under `if __name__ == "__main__"'
        f":`, or {closing}use num_workers=0 (with executor='threads' to read in parallel)"
    )


def reader_threads() -> list[str]:
    """Return the names of our threads that run now."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(READERS))


def end_workers(batches: Any) -> None:
    """End the processes behind an iterator of torch's own loader now.

    torch does so when nobody holds the iterator any more; but an error's traceback may hold it.
    """
    shut_down(batches)


def safe_context(context: Any, num_workers: int) -> Any:
    """A start method that cannot deadlock: reader threads and ``fork`` do not mix."""
    if num_workers == 0:
        return context
    threads = reader_threads()
    method = context if isinstance(context, BaseContext) else start_context(context)
    if not threads or method.get_start_method() != "fork":
        return context
    if context is not None:
        raise PlanError(
            f"multiprocessing_context='fork' while reader threads live ({', '.join(threads)}) "
            "can deadlock: use 'forkserver' or 'spawn', or close the loaders that read"
        )
    log.info(
        "workers start by forkserver: threads %s live, and fork would copy their locks", threads
    )
    return "forkserver"


def unpicklable(*parts: Any) -> str:
    """One sentence that names what cannot go to a worker process."""
    for part in parts:
        culprit = unpicklable_part(part, type(part).__name__)
        if culprit is not None:
            return (
                f"{culprit} cannot be sent to a worker process: {culprit.mend}, "
                "or use num_workers=0"
            )
    return "the dataset cannot be sent to a worker process: use num_workers=0"
