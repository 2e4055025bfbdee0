"""Worker processes: what can go to them, how they start, what they die of."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Semaphore
from types import FrameType
from typing import Any, Final

from penstock.errors import PlanError, WorkerError
from penstock.loaders.pickling import unpicklable_part

log = logging.getLogger("penstock")

READERS: Final = "penstock-"  # ours; zarr makes its own anew in a forked child
RAISED_THERE: Final = "in DataLoader worker process"  # in what torch raises for a dataset's error
NOTICE_SECONDS: Final = 20.0  # from a first SIGTERM to a worker's end, unless it is ended before
BEGIN_SECONDS: Final = 10.0  # for a forked worker to begin: it takes milliseconds, or for ever
NOTICED_SECONDS: Final = 1.0  # until one that died before that is noticed
PATIENCE_SECONDS: Final = 2.0  # between a broken pipe and the exit code of who held its other end


def begin_worker(begun: Semaphore | None, own: Callable[[int], Any] | None, worker_id: int) -> None:
    """The first call in a worker process: then the user's own one.

    A terminal's Ctrl-C, and what a cluster sends to end a job, reaches workers too. But it is for
    whoever iterates: he may want another batch before the end, and ends them himself.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if begun is not None:
        begun.release()
    signal.signal(signal.SIGTERM, _end_later)  # not ignored: programs it starts would inherit that
    if own is not None:
        own(worker_id)


def _end_later(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    end = threading.Timer(NOTICE_SECONDS, os._exit, (0,))
    end.daemon = True
    end.start()


def forks(context: Any) -> bool:
    """Do workers of this context, as torch takes it, start by ``fork``?"""
    method = context if isinstance(context, str) else getattr(context, "_name", None)
    return (method or multiprocessing.get_start_method()) == "fork"


def came_through(begun: Semaphore, workers: Sequence[BaseProcess]) -> bool:
    """Did all of these forked workers begin? False of one that stands still inside of ``fork``.

    Seen in Python 3.11, right after collectives of gloo: a library's thread held a lock of the
    interpreter while another one forked, and the child waited for it for ever.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    for _ in workers:
        while not begun.acquire(timeout=NOTICED_SECONDS):
            if not all(worker.is_alive() for worker in workers):
                return True  # whoever asks for a batch is told how it died
            if time.monotonic() > deadline:
                return False
    return True


@contextmanager
def naming_the_dead(workers: list[BaseProcess]) -> Iterator[None]:
    """What goes wrong in here because a worker died is said so, with its name and how."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        dead = [] if RAISED_THERE in str(error) else _dead(workers)
        if not dead:
            raise
        raise WorkerError(
            f"{', '.join(map(_obituary, dead))}: the state is at the last batch delivered; "
            "iterate again, or use num_workers=0 to see where it happens"
        ) from error


def _dead(workers: list[BaseProcess]) -> list[BaseProcess]:
    with suppress(RuntimeError):  # torch's signal handler raises in the midst of whatever runs
        gone = wait([worker.sentinel for worker in workers], timeout=PATIENCE_SECONDS)
        for worker in workers:
            if worker.sentinel in gone:  # its pipes closed; its exit code comes a moment later
                worker.join(PATIENCE_SECONDS)
    return [worker for worker in workers if worker.exitcode is not None]


def _obituary(worker: BaseProcess) -> str:
    code = worker.exitcode or 0
    if code >= 0:
        return f"worker process {worker.pid} exited with code {code}"
    memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"worker process {worker.pid} was killed by {signal.Signals(-code).name}{memory}"


def end_workers(batches: Any, workers: Sequence[BaseProcess] = ()) -> None:
    """End the processes behind an iterator of torch's loader, now.

    torch does so when nobody holds the iterator any more; but an error's traceback may hold it.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        with suppress(RuntimeError):  # of torch's signal handler: that a worker is gone is fine
            end()
    for worker in workers:
        if worker.is_alive():  # torch waited for it, and asked it to end
            worker.kill()
            worker.join()


def safe_context(context: Any, num_workers: int) -> Any:
    """A start method that cannot deadlock: reader threads and ``fork`` do not mix."""
    if num_workers == 0:
        return context
    threads = sorted(t.name for t in threading.enumerate() if t.name.startswith(READERS))
    if not threads:
        return context
    if not forks(context):
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
