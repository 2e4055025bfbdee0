"""Background threads with a defined lifetime.

A thread stops when its owner is closed, garbage-collected, or the interpreter exits. None of these
waits forever: a thread that does not return from a read is abandoned after a few seconds.
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
STOP_SECONDS = 5.0  # close() and interpreter exit wait this long for reads to return
# An idle thread looks this often whether it should end. The garbage collector may run inside of
# `threading.Condition.wait`, and close a queue before this thread counts as waiting for it.
LOOK_SECONDS = 2.0
WARN_SECONDS = 30.0  # waiting for a batch this long logs a warning that names the read

Result = TypeVar("Result")


class BatchTimeoutError(WorkerError):
    """No batch arrived within the loader's ``timeout``."""


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
        self.activity: object = None  # what it reads now; str() of it is shown in messages
        self.process = os.getpid()
        self._request_stop = request_stop
        # join() is not used to wait: in Python 3.11, after a KeyboardInterrupt inside of join(),
        # a running thread counts as ended.
        self._finished, self._news = True, SimpleQueue[None]()

    def start(self) -> None:
        """Start the thread."""
        self._finished = False
        try:
            super().start()
        except RuntimeError:  # the system cannot start another thread
            self._finished = True
            raise

    def run(self) -> None:
        """Do the work, at lower priority."""
        try:
            if sys.platform == "linux":  # elsewhere threads have no niceness of their own
                os.nice(NICENESS)
            super().run()
        finally:
            self._finished = True  # before the news, so that a thread woken by it sees the change
            self._news.put(None)

    def request_stop(self) -> None:
        """Ask the thread to end; does nothing in a forked child, where it does not exist."""
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
                self._news.put(None)  # for other threads that wait too
        if self is not threading.current_thread() and self.ident is not None:
            self.join(1.0)  # the interpreter's own clean-up, after the work


_running: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()  # to be stopped at exit
os.register_at_fork(after_in_child=_running.clear)  # threads do not exist in a forked child


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

    Ctrl-C, or an exception from another signal handler, does not end the wait; it is raised
    afterwards, so that no thread is left running.

    Args:
        threads: The threads to stop. If the calling thread is one of them, it is skipped.
        timeout: Seconds to wait at most; None waits until the last one has finished.

    Raises:
        WorkerError: A thread is still running after ``timeout`` seconds. The message names the
            read it is in. The thread is not waited for again, not even at interpreter exit.
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
            f"gave up waiting after {timeout:g} s for {describe_activity(late)}: the thread is "
            "abandoned, and ends when its read returns, or with the process"
        )


def stop_or_warn(threads: Iterable[BackgroundThread], timeout: float | None = None) -> bool:
    """Stop the threads as `stop_all` does, but log a warning if one does not end.

    For ``close()``, which often runs while another exception is being raised. That exception must
    not be replaced.

    Returns:
        Whether all threads have finished.
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


def describe_activity(threads: Iterable[BackgroundThread]) -> str:
    """Return what the threads are reading, for a message."""
    busy = [f"{thread.activity} in thread {thread.name}" for thread in threads if thread.activity]
    return ", ".join(busy) or "the next batch to be planned"


def check_process(threads: Sequence[BackgroundThread]) -> None:
    """Raise an error in a forked child process, where the threads do not exist."""
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
    """Return the first result of ``poll`` that is not None; poll again after each piece of news.

    Uses a queue instead of a condition, because an interrupt inside of `threading.Condition` can
    leave its lock locked forever.

    Args:
        news: Receives None whenever the result of ``poll`` may have changed.
        poll: Returns the result, or None if it is not available yet; may raise.
        threads: The threads that work on it, for messages.
        timeout: Seconds to wait at most; 0 for no limit.

    Raises:
        BatchTimeoutError: There was no result within ``timeout`` seconds.
    """
    begin, warn = monotonic(), WARN_SECONDS
    while (result := poll()) is None:
        waited = monotonic() - begin
        if 0 < timeout <= waited:
            raise BatchTimeoutError(
                f"no batch within timeout={timeout:g} s: waiting for {describe_activity(threads)}; "
                "pass a larger timeout, or timeout=0 to wait without limit"
            )
        if waited >= warn:
            log.warning("no batch for %.0f s: waiting for %s", waited, describe_activity(threads))
            warn = 2 * waited  # after 30 s, 1 min, 2 min, ...
        with suppress(Empty):
            news.get(timeout=min(warn, timeout or warn) - waited)
    return result
