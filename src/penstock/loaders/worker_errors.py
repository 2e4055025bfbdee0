"""Errors of worker processes: unpicklable parts, dead workers, and waits that are too long."""

from __future__ import annotations

import io
import logging
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from penstock.arguments import with_article
from penstock.errors import PlanError, WorkerError
from penstock.loaders.workers import (
    UNGUARDED,
    WorkerContext,
    start_context,
    state_of_process,
)

log = logging.getLogger("penstock")


# what objects that cannot be pickled raise; RuntimeError includes RecursionError
FAILURES = (AttributeError, TypeError, ValueError, RuntimeError, OSError, pickle.PicklingError)


@dataclass(frozen=True, slots=True)
class Culprit:
    """The innermost part that cannot be pickled: its name, its type and how to fix it."""

    name: str
    kind: str
    fix: str
    value: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def unpicklable_part(value: Any, name: str) -> Culprit | None:
    """Return the innermost attribute that cannot be pickled; None if all can.

    Tensors and arrays are not pickled here: they can be sent, and may be large.

    >>> class Dataset:
    ...     def __init__(self):
    ...         self.scale = lambda x: 2 * x
    >>> found = unpicklable_part(Dataset(), "dataset")
    >>> print(found)
    dataset.scale (function)
    >>> found.fix
    'it is a lambda: write it with def at the top of a module'
    """
    if _picklable(value):
        return None
    return _search(value, name, seen=set()) or _culprit(value, name)


def _search(value: Any, name: str, *, seen: set[int]) -> Culprit | None:
    """Return the part of ``value`` that cannot be pickled; None if every part can."""
    seen.add(id(value))
    faulty = [part for part in _parts(value, name) if not _picklable(part[1])]
    for inner_name, inner in faulty:
        if id(inner) not in seen and (found := _search(inner, inner_name, seen=seen)) is not None:
            return found
    return None if faulty else _culprit(value, name)


def _culprit(value: Any, name: str) -> Culprit:
    return Culprit(name, type(value).__name__, _how_to_fix(value), value)


def _how_to_fix(value: Any) -> str:
    """Return how to replace an object that cannot be sent, depending on its type."""
    kind = type(value)
    called = value if isinstance(value, FunctionType | type) else kind
    if getattr(called, "__name__", "") == "<lambda>":
        return "it is a lambda: write it with def at the top of a module"
    if "<locals>" in getattr(called, "__qualname__", ""):
        what = "a function" if isinstance(value, FunctionType) else "of a class"
        return f"it is {what} defined inside a function: define it at the top of a module"
    if isinstance(value, io.IOBase):
        return f"it is an open file ({getattr(value, 'name', '?')!r}): {REOPEN}"
    if kind.__module__.startswith("h5py."):
        return f"it is an open HDF5 handle: {REOPEN}"
    if isinstance(value, torch.Tensor):
        return "it is part of a graph of gradients: detach() it"
    name = with_article(kind.__name__)
    return f"{name} exists in one process only: create it where it is first used"


REOPEN = "keep its path, and open it where a sample is first read"


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{name}[{i}]", inner) for i, inner in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{name}{{...}}", inner) for inner in value)
    elif isinstance(value, partial):
        yield from ((f"{name}.{key}", getattr(value, key)) for key in ("func", "args", "keywords"))
    elif isinstance(value, MethodType):
        yield f"{name}.__self__", value.__self__
    else:
        yield from ((f"{name}.{key}", inner) for key, inner in state_of(value).items())


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are pickled, including slots."""
    with suppress(*FAILURES):
        state = value.__getstate__()
        if isinstance(state, tuple):  # attributes, and what is in slots
            return {
                name: inner
                for part in state
                if isinstance(part, dict)
                for name, inner in part.items()
            }
        return state if isinstance(state, dict) else {}
    return {}


class _Probe(ForkingPickler):
    """Pickles everything except tensors and arrays, and discards the bytes."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            raise TypeError("torch sends no tensor that is part of a graph")
        return (int, ()) if is_shared(value) else NotImplemented


def is_shared(value: Any) -> bool:
    """Return whether a value is shared memory, or is sent only to a process that starts."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    own = type(value).__module__  # locks and queues of multiprocessing are inherited
    return isinstance(value, torch.Tensor) or own.startswith("multiprocessing.")


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


def _picklable(value: Any) -> bool:
    try:
        _Probe(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except FAILURES:
        return False
    return True


def twin(value: Any) -> Any:
    """Return a copy with its own files and handles; tensors and arrays are shared.

    Reading a sample opens a dataset's files, and an open file cannot be sent to a worker. So
    measurements read from such a copy.

    >>> first = [torch.zeros(3)]
    >>> second = twin(first)
    >>> second is first, second[0] is first[0]
    (False, True)
    """
    shared: list[Any] = []

    class Writer(pickle.Pickler):
        def persistent_id(self, part: Any) -> int | None:
            if not is_shared(part):
                return None
            shared.append(part)
            return len(shared) - 1

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return shared[pid]

    written = io.BytesIO()
    Writer(written, pickle.HIGHEST_PROTOCOL).dump(value)
    written.seek(0)
    return Reader(written).load()


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
        # since Python 3.14 the forkserver itself imports the main script, and ends with it
        no_server = isinstance(error, ConnectionError | EOFError) and not context.has_begun(0)
        if any(worker.exitcode == UNGUARDED for worker in dead) or (
            not dead and no_server and context.get_start_method() == "forkserver"
        ):
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
    """Return which worker ended, and how."""
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
        fork = "leave out multiprocessing_context"
        if start_context(None).get_start_method() != "fork":  # the default since Python 3.14
            fork = "pass multiprocessing_context='fork'"
        closing = f"close the loaders that read in threads before workers start and {fork}, or "
    return (
        f"worker processes start by {method} here, which imports the main script again, and the "
        "script starts workers, or ends, as it is imported: put what it runs under "
        f'`if __name__ == "__main__":`, or {closing}use num_workers=0 '
        "(with executor='threads' to read in parallel)"
    )


def reader_threads() -> list[str]:
    """Return the names of our threads that run now."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(READERS))


def safe_context(context: Any, num_workers: int) -> Any:
    """Return a start method that cannot deadlock: not ``fork`` while reader threads run."""
    if num_workers == 0:
        return context
    threads = reader_threads()
    method = context if isinstance(context, BaseContext) else start_context(context)
    if not threads or method.get_start_method() != "fork":
        return context
    if context is not None:
        raise PlanError(
            f"multiprocessing_context='fork' while reader threads run ({', '.join(threads)}) "
            "can deadlock: use 'forkserver' or 'spawn', or close the loaders that read"
        )
    log.info(
        "workers start by forkserver: threads %s run, and fork would copy their locks", threads
    )
    return "forkserver"


def unpicklable(*parts: Any) -> str:
    """Return a sentence that names the part that cannot be sent to a worker process."""
    for part in parts:
        culprit = unpicklable_part(part, type(part).__name__)
        if culprit is not None:
            return (
                f"{culprit} cannot be sent to a worker process: {culprit.fix}, or use num_workers=0"
            )
    return "the dataset cannot be sent to a worker process: use num_workers=0"


REPORT_SECONDS: Final = 30.0  # of waiting for one batch before that is logged, then twice as long
LOOK_SECONDS: Final = 1.0  # between two checks; a quarter of the timeout if that is less


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
        look_seconds: Seconds between two checks.
    """

    def __init__(self, context: WorkerContext, look_seconds: float) -> None:
        super().__init__(name="worker-watch", daemon=True)
        self._workers, self._look_seconds = context, look_seconds
        self._wait: _Wait | None = None
        self._too_long: str | None = None

    @contextmanager
    def waiting(self, what: Callable[[], str], limit: float) -> Iterator[None]:
        """Return a context in which the caller waits for the workers.

        Args:
            what: Returns what is waited for, in words.
            limit: Seconds until the workers are killed; 0 for no limit, only a warning in the log.

        Raises:
            WorkerError: The limit was reached, or a worker died.
        """
        self._wait = _Wait(time.monotonic(), limit, what)
        try:
            with explain_worker_death(self._workers):
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
        """Check the time until the workers are ended."""
        reported: tuple[_Wait, float] | None = None
        while not self._workers.ending.wait(self._look_seconds):
            wait = self._wait
            if wait is None:
                continue
            waited = time.monotonic() - wait.since
            if wait.limit and waited >= wait.limit:
                self._too_long = f"waited {wait.limit:g} s (timeout) for {wait.what()}"
                self._workers.kill()
                return
            due = reported[1] if reported and reported[0] is wait else REPORT_SECONDS
            if waited >= due:
                reported = wait, 2 * due
                log.warning(
                    "waited %.0f s so far for %s; pass timeout= to limit it", waited, wait.what()
                )


class WorkerTimeoutError(WorkerError):
    """A worker process did not deliver in time."""


def describe_wait(context: WorkerContext, worker_id: int, samples: Any) -> str:
    """Return which worker is waited for, its state and the samples it reads."""
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
