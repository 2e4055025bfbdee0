"""Background threads with a defined lifetime.

A thread stops when its owner is closed, garbage-collected, or the interpreter exits. None of these
waits for ever: a thread that does not come back from a read is abandoned after a few seconds.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from penstock.errors import WorkerError

log = logging.getLogger("penstock")

NICENESS = 5  # lower priority: about a quarter of a core that the training loop also wants
STOP_SECONDS = 5.0  # that close() and the exit of the interpreter wait for reads under way
WARN_SECONDS = 30.0  # of waiting for a batch before a warning says what is waited for

Result = TypeVar("Result")


class BatchTimeoutError(WorkerError):
    """A batch that did not arrive within the loader's ``timeout``."""


class BackgroundThread(threading.Thread):
    """A named daemon thread with a way to stop it.

    Runs at lower priority on Linux, so that reading ahead never slows down training on a machine
    with few cores.

    Dropping the last reference to the owner only *requests* a stop, because a finalizer may run
    in any thread and under any lock and therefore must not block. `stop_all` waits.

    Args:
        name: Shown as ``penstock-<name>`` in stack dumps.
        target: The work. Must return soon after `request_stop` was called.
        request_stop: Asks the work to end; may be called from any thread, more than once.

    >>> stop = threading.Event()
    >>> thread = BackgroundThread("idle", target=stop.wait, request_stop=stop.set)
    >>> start_all([thread])
    >>> stop_all([thread])
    >>> thread.name, thread.is_alive()
    ('penstock-idle', False)
    """

    def __init__(
        self, name: str, target: Callable[[], object], request_stop: Callable[[], None]
    ) -> None:
        super().__init__(name=f"penstock-{name}", target=target, daemon=True)
        self.activity: object = None  # what it reads now; its str() is shown in messages
        self.process = os.getpid()
        self._request_stop = request_stop
        # join() is not used to wait: Python 3.11 takes a running thread for ended after a
        # KeyboardInterrupt in it.
        self._finished, self._news = True, SimpleQueue[None]()

    def start(self) -> None:
        """Start the thread."""
        self._finished = False
        try:
            super().start()
        except RuntimeError:  # the system has no more threads
            self._finished = True
            raise

    def run(self) -> None:
        """Do the work, at lower priority."""
        try:
            if sys.platform == "linux":  # elsewhere threads have no niceness of their own
                os.nice(NICENESS)
            super().run()
        finally:
            self._finished = True  # before the news: who takes them finds it so
            self._news.put(None)

    def request_stop(self) -> None:
        """Ask the thread to end. In a forked child there is no such thread, and nothing to do."""
        if os.getpid() == self.process:
            self._request_stop()

    @property
    def is_running(self) -> bool:
        """Whether the work was started and has not returned, in this process."""
        return not self._finished and os.getpid() == self.process

    def wait(self, deadline: float | None) -> None:
        """Wait until the work has returned, or until ``deadline`` (of `time.monotonic`)."""
        while self.is_running:
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                return
            with suppress(Empty):
                self._news.get(timeout=left)
                self._news.put(None)  # for another thread that waits too
        if self is not threading.current_thread() and self.ident is not None:
            self.join(1.0)  # its last steps, after the work


_running: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()  # threading holds those that live
os.register_at_fork(after_in_child=_running.clear)  # a child has none of them


def start_all(threads: Iterable[BackgroundThread]) -> None:
    """Start the threads; if starting one fails, stop those already running."""
    threads = list(threads)
    try:
        for thread in threads:
            _running.add(thread)
            thread.start()
    except BaseException:
        stop_all(threads)
        raise


def request_stop_all(threads: Iterable[BackgroundThread]) -> None:
    """Request a stop without waiting, as a finalizer must."""
    for thread in threads:
        thread.request_stop()


def stop_all(threads: Iterable[BackgroundThread], timeout: float | None = None) -> None:
    """Request a stop and wait for the threads to finish.

    An interrupt that arrives meanwhile (Ctrl-C, or what another signal handler raises) does not
    end the waiting; it is raised afterwards.

    Args:
        threads: Those to stop; the calling thread may be among them, and is not waited for.
        timeout: Seconds to wait at most; None waits until the last one has finished.

    Raises:
        WorkerError: A thread is still running after ``timeout`` seconds. The message names the
            read it is in. It is not waited for again, at the exit of the interpreter neither.
    """
    threads = [thread for thread in threads if thread is not threading.current_thread()]
    deadline = None if timeout is None else monotonic() + timeout
    interrupt: BaseException | None = None
    while True:
        try:
            request_stop_all(threads)
            for thread in threads:
                thread.wait(deadline)
            break
        except (KeyboardInterrupt, SystemExit) as error:
            interrupt = error
    late = [thread for thread in threads if thread.is_running]
    for thread in late:
        _running.discard(thread)
    if interrupt is not None:
        raise interrupt
    if late:
        raise WorkerError(
            f"gave up waiting after {timeout:g} s for {doing(late)}: the thread is abandoned, and "
            "ends when its read returns, or with the process"
        )


def stop_or_warn(threads: Iterable[BackgroundThread], timeout: float | None = None) -> bool:
    """Stop the threads as `stop_all` does, with a warning for what does not end.

    For ``close()``, which often runs while another exception is on its way to the user: that one
    must not be replaced. Returns whether all threads have finished.
    """
    threads = list(threads)
    try:
        stop_all(threads, STOP_SECONDS if timeout is None else timeout)
    except WorkerError as error:
        log.warning("%s", error)
    return not any(thread.is_running for thread in threads)


@atexit.register
def _stop_at_exit() -> None:
    stop_or_warn(_running)


def doing(threads: Iterable[BackgroundThread]) -> str:
    """What the threads are busy with, for a message."""
    busy = [f"{thread.activity} in thread {thread.name}" for thread in threads if thread.activity]
    return ", ".join(busy) or "the next batch to be planned"


def check_process(threads: Sequence[BackgroundThread]) -> None:
    """Refuse to wait for threads of a parent process: after a fork the child has none of them."""
    if threads[0].process != os.getpid():
        raise WorkerError(
            f"this iterator belongs to process {threads[0].process}, and its reader threads do "
            f"not exist in the forked process {os.getpid()}: call iter(loader) again in this "
            "process, or fork before iterating"
        )


def wait_for(
    news: SimpleQueue[None],
    poll: Callable[[], Result | None],
    *,
    threads: Sequence[BackgroundThread],
    timeout: float,
) -> Result:
    """Return the first result of ``poll`` that is not None, asked again at every piece of news.

    A queue, not a condition, because an interrupt inside of `threading.Condition` may leave its
    lock taken for ever.

    Args:
        news: Whatever may change the result puts None here.
        poll: Gives the result, or None where it is not there yet; may raise.
        threads: Those that work on it, for messages.
        timeout: Seconds to wait at most; 0 for no limit.

    Raises:
        BatchTimeoutError: Nothing came within ``timeout`` seconds.
    """
    begin, warn = monotonic(), WARN_SECONDS
    while (result := poll()) is None:
        waited = monotonic() - begin
        if 0 < timeout <= waited:
            raise BatchTimeoutError(
                f"no batch within timeout={timeout:g} s: waiting for {doing(threads)}; pass a "
                "larger timeout, or timeout=0 to wait without limit"
            )
        if waited >= warn:
            log.warning("no batch for %.0f s: waiting for %s", waited, doing(threads))
            warn = 2 * waited  # sparsely: 30 s, 1 min, 2 min, ...
        with suppress(Empty):
            news.get(timeout=min(warn, timeout or warn) - waited)
    return result
