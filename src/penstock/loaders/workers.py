"""The worker processes of one iterator of torch's ``DataLoader``: start, seeds and end."""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch

from penstock.keyed import Reading
from penstock.order import derive_key

UNGUARDED: Final = 86  # exit code of a worker whose main script starts workers when it is imported
END_SECONDS: Final = 5.0  # for a worker to finish its batch when a loader is closed; then SIGKILL
EXIT_SECONDS: Final = 1.0  # the same when the interpreter exits
NOTICE_SECONDS: Final = 20.0  # from a SIGTERM of the system to a worker's end
BEGIN_SECONDS: Final = 10.0  # for a forked worker to begin: it takes milliseconds, or never ends
POLL_SECONDS: Final = 0.1  # between two checks for an interrupt while workers end
STATES: Final = {"T": "stopped", "t": "stopped", "D": "waiting for a device", "R": "running"}


class WorkerContext(BaseContext):
    """A multiprocessing context that remembers every process and queue made with it.

    torch starts workers inside the constructor of its iterator: where that fails or is interrupted,
    the iterator is lost, and only this context can still end what was started. Used for one
    iterator.

    Args:
        context: The start method, as torch takes it: a name, a context, or None for the default.
    """

    def __init__(self, context: BaseContext | str | None) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            _exit_now(UNGUARDED)  # multiprocessing would raise, and print a page for each worker
        self._base = context if isinstance(context, BaseContext) else start_context(context)
        self._name = self._base.get_start_method()  # returned by BaseContext.get_start_method
        self._owner = os.getpid()
        self._queues: list[Any] = []  # of results, then one of indices for each worker
        self._end = EndFlag(self._base)
        self._reports, self._report = self._base.Pipe(duplex=False)
        self._begun: set[int] = set()
        self.processes: list[BaseProcess] = []
        self.batches: Any = None  # torch's iterator, once it is made
        self.watch: threading.Thread | None = None  # ends soon after `ending` is set
        self.ending = threading.Event()
        self.ended = False
        _contexts.add(self)

    # -- what torch asks for

    def Queue(self, maxsize: int = 0) -> Any:
        """Return a new queue of the start method."""
        self._queues.append(self._base.Queue(maxsize))
        return self._queues[-1]

    def Event(self) -> Any:
        """Return the flag that tells workers to end."""
        return self._end

    def Process(self, *, target: Any, args: Any) -> BaseProcess:
        """Return a process that runs ``target``, and ends with the process that started it."""
        process: BaseProcess = self._base.Process(  # type: ignore[attr-defined]
            target=_run, args=(Sent((target, args)),)
        )
        self.processes.append(process)
        return process

    def initializer(self, own: Callable[[int], Any] | None) -> Callable[[int], None]:
        """Return the ``worker_init_fn`` to give torch; ``own`` is the user's."""
        return partial(_begin, self._end, self._report, own)

    # -- while they run

    @property
    def started(self) -> list[BaseProcess]:
        """The processes that were started, by worker id."""
        return [process for process in self.processes if process.pid is not None]

    def has_begun(self, worker_id: int) -> bool:
        """Return whether a worker has reached the user's code; before that it is starting."""
        while not self._reports.closed and self._reports.poll():
            self._begun.add(self._reports.recv())
        return worker_id in self._begun

    def all_begin(self) -> bool:
        """Wait until all workers have begun; False if one is stuck inside ``fork``.

        Seen in Python 3.11, right after collectives of gloo: a thread of a library held a lock of
        the interpreter while another one forked, and the child waited for it forever.
        """
        deadline = time.monotonic() + BEGIN_SECONDS
        sentinels = [process.sentinel for process in self.started]
        while not all(map(self.has_begun, range(len(self.processes)))):
            ready = wait([self._reports, *sentinels], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            if self._reports not in ready:
                return True  # one died: the request for its batch reports how
        return True

    # -- the end

    def kill(self) -> None:
        """Kill the workers and interrupt a read of their results; may be called from any thread."""
        for process in self.started:
            process.kill()
        self._queues[0]._writer.close()  # the end of the pipe, once the workers are gone

    def end(self, seconds: float = END_SECONDS) -> None:
        """End all processes, threads and pipes; an interrupt is handled afterwards.

        Args:
            seconds: For workers to finish what they are reading; then they are killed.
        """
        if self.ended or os.getpid() != self._owner:
            return
        with deferred_signals(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD) as came:
            self.ending.set()
            if hasattr(self.batches, "_pin_memory_thread"):
                end_workers(self.batches)  # that thread first, while messages are still complete
            self._ask_to_end()
            deadline = time.monotonic() + seconds
            while (ending := [p.sentinel for p in self.started if _can_end(p)]) and not (
                time.monotonic() > deadline or {signal.SIGINT, signal.SIGTERM} & came.keys()
            ):
                wait(ending, POLL_SECONDS)
            for process in self.started:
                if process.is_alive():
                    process.kill()
            for process in self.started:
                process.join(END_SECONDS)
            end_workers(self.batches)
            if self.watch is not None and self.watch is not threading.current_thread():
                self.watch.join()
            for queue in self._queues:
                _close(queue)
            self._end.close()
            self._reports.close()
            self._report.close()
            self.batches, self.processes, self._queues = None, [], []
            self.ended = True

    def _ask_to_end(self) -> None:
        self._end.set()
        for queue in self._queues[1:]:
            with suppress(ValueError, RuntimeError):  # closed, or too late for a feeder thread
                queue.put(None)


_contexts: weakref.WeakSet[WorkerContext] = weakref.WeakSet()


@atexit.register  # runs before multiprocessing's own, which would wait for the workers
def _end_all() -> None:
    for context in list(_contexts):
        context.end(EXIT_SECONDS)


def start_context(method: str | None) -> BaseContext:
    """Return the context of a start method; None for the default one."""
    return multiprocessing.get_context(method)


class EndFlag:
    """An event without a lock, so that a process stopped while checking cannot block another."""

    def __init__(self, context: BaseContext) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)

    def set(self) -> None:
        """Set the flag for all processes."""
        if not (self._writer.closed or self.is_set()):
            self._writer.send_bytes(b"end")  # never read: it stays visible to all

    def is_set(self) -> bool:
        """Return whether the flag was set."""
        return self._reader.closed or self._reader.poll()

    def close(self) -> None:
        """Close the pipe after all other processes ended; the flag stays set."""
        self._reader.close()
        self._writer.close()


class Sent:
    """The arguments of a worker process, sent through memory where they are pickled.

    multiprocessing writes them to a pipe and blocks until the new process has imported everything
    and reads them: seconds for each worker, and forever for a worker that was stopped.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[..., Sent], tuple[Any]]:
        if not hasattr(os, "memfd_create"):
            return Sent, (self.value,)
        memory = os.memfd_create("penstock-worker")
        weakref.finalize(self, os.close, memory)  # multiprocessing drops it after the start
        with os.fdopen(memory, "wb", closefd=False) as file:
            ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self.value)
        return _received, (DupFd(memory),)


def _received(memory: Any) -> Sent:
    with os.fdopen(memory.detach(), "rb") as file:
        file.seek(0)
        return Sent(pickle.load(file))  # noqa: S301 - from the process that started this one


# -- in the worker


def _run(sent: Sent) -> None:
    """The target of a worker process.

    Ctrl-C in a terminal, and the signal a cluster sends to end a job, reach workers too. They are
    meant for the process that iterates: it may want another batch, and ends its workers itself.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    target, args = sent.value
    del sent
    target(*args)


def _end_with_parent() -> None:
    """Have this process killed when the process that started it ends for any reason.

    With ``forkserver`` that is not the parent of this process. The read end of a pipe that only the
    loader's process can write to ends with it. On Linux the kernel then sends SIGKILL, also to a
    process that is stopped or holds the interpreter's lock.
    """
    starter = multiprocessing.parent_process()
    if starter is None:
        return
    if sys.platform == "linux":
        fcntl.fcntl(starter.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(starter.sentinel, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(starter.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(starter.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
        if wait([starter.sentinel], 0):  # it ended before that
            os._exit(1)
    else:
        watch = partial(_exit_after, starter.sentinel)
        threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _begin(end: EndFlag, report: Any, own: Callable[[int], Any] | None, worker_id: int) -> None:
    report.send(worker_id)
    # not ignored: programs started by the user's code would inherit that
    signal.signal(signal.SIGTERM, partial(_end_later, end))
    if own is not None:
        own(worker_id)


def _end_later(end: EndFlag, number: int, frame: FrameType | None) -> None:
    if end.is_set():
        os._exit(0)
    signal.signal(number, signal.SIG_DFL)
    timer = threading.Timer(NOTICE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# -- in the process that iterates


@contextmanager
def deferred_signals(*numbers: int) -> Iterator[dict[int, FrameType | None]]:
    """Return a context that completes before Python's handlers of these signals run.

    Yields the signals received so far. Threads other than the main one are never interrupted.
    """
    came: dict[int, FrameType | None] = {}
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {n: h for n in numbers if callable(h := signal.getsignal(n))}
    try:
        for number in handlers:
            signal.signal(number, came.__setitem__)
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in sorted(came):  # SIGINT first: its handler raises
            handlers[number](number, came.pop(number))


_starts = threading.RLock()


def _renew_starts() -> None:
    global _starts  # noqa: PLW0603 - renewed in a forked child
    _starts = threading.RLock()  # the thread that held it may not exist in a forked child


os.register_at_fork(after_in_child=_renew_starts)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Return a context for torch's iterator as it is made: no interrupts, one thread at a time.

    An iterator that is interrupted as it is made is lost, with what it started. Two threads that
    fork at once are refused by filelock, which torch requires, from Python 3.12 on.
    """
    with deferred_signals(signal.SIGINT, signal.SIGTERM), _starts:
        yield


def end_workers(batches: Any) -> None:
    """End the processes behind an iterator of torch's own loader; ignore other iterators.

    torch does so when the iterator is dropped, but the traceback of an error may hold it.
    """
    with suppress(RuntimeError):  # torch's signal handler reports a dead worker: expected here
        getattr(batches, "_shutdown_workers", lambda: None)()


def state_of_process(pid: int | None) -> str:
    """Return the state of a process in one or two words."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "unknown state"
    return STATES.get(letter, "sleeping")


def _can_end(process: BaseProcess) -> bool:
    return process.is_alive() and state_of_process(process.pid) != "stopped"


def _close(queue: Any) -> None:
    """Close a queue whose readers ended, and end the thread that writes to it."""
    queue.cancel_join_thread()
    queue.close()
    feeder, deadline = queue._thread, time.monotonic() + END_SECONDS
    while feeder is not None and feeder.is_alive() and time.monotonic() < deadline:
        feeder.join(POLL_SECONDS)
        with suppress(OSError, ValueError):  # the thread closes the pipe itself, at its end
            if feeder.is_alive() and wait([queue._reader], 0):  # it is blocked: the pipe is full
                os.read(queue._reader.fileno(), 1 << 20)
    if feeder is None or not feeder.is_alive():
        queue._reader.close()
        queue._writer.close()


_reseeds = False  # set in a worker process that was started with worker_init_fn


def worker_init_fn(worker_id: int) -> None:
    """Seed ``random``, ``numpy.random`` and torch in a worker process, differently in each.

    torch has already seeded the worker with its base seed plus ``worker_id``; that sum is used for
    all three. In a Penstock loader the worker is seeded again before each batch, by (seed, epoch,
    batch): a persistent worker does not repeat the draws of an epoch, and draws from the global
    generators are the same for any number of workers, and after a resume.

    Args:
        worker_id: The number of the worker, as torch passes it.
    """
    global _reseeds  # noqa: PLW0603 - set once in a worker process
    _reseeds = True
    seed_ambient(torch.initial_seed())


def reseed(reading: Reading) -> None:
    """Seed this worker for the next batch, if it was started with `worker_init_fn`."""
    if _reseeds:
        first = int(reading.samples[0]) if len(reading.samples) else 0
        seed_ambient(derive_key(reading.seed, "ambient", reading.epoch, first))


def seed_ambient(seed: int) -> None:
    """Seed the three global generators of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - for draws in the user's code
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.3 ms, for devices too
