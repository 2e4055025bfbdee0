"""Forked processes that are killed, waited for, and searched for leftovers."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG_SECONDS = 30.0  # a process that takes longer hangs
SUBREAPER = 36  # prctl: orphans of a killed process become children of this one
DEATH_SIGNAL = 1  # prctl: a signal for this process when its parent ends
FAILED, INTERRUPTED = 70, 130
SHARED_MEMORY = Path("/dev/shm")


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent is killed; end with one's own parent."""
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(SUBREAPER, 1, 0, 0, 0)
    system.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Child:
    """``target(*args)`` in a forked process, the leader of a session, with its own output."""

    def __init__(
        self,
        target: Callable[..., object],
        *args: Any,
        room: Path,
        seconds: float = HANG_SECONDS,
    ) -> None:
        self.room, self.seconds = room, seconds
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(target, args, room, seconds)
        self._descriptor = os.pidfd_open(self.pid)
        self.pids = {self.pid}
        self.code: int | None = None  # how it ended

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, negative for a signal; None if it still runs after ``seconds``."""
        seconds = self.seconds if seconds is None else seconds
        if self.code is not None:
            return self.code
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(1000 * max(0.0, seconds)):
            return None
        _, status = os.waitpid(self.pid, 0)
        os.close(self._descriptor)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def kill(self) -> int | None:
        """SIGKILL it, and only it: its workers are orphans from then on."""
        self.pids |= set(session_of(self.pid))
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def interrupt(self) -> None:
        """SIGINT for everything in its session, as Ctrl-C in a terminal."""
        self.pids |= set(session_of(self.pid))
        try:
            os.killpg(self.pid, signal.SIGINT)
        except ProcessLookupError:  # it has no session yet
            os.kill(self.pid, signal.SIGINT)

    def end_all(self) -> int | None:
        """SIGKILL everything of its session: for one that hangs."""
        self.end_orphans()
        return self.wait()

    def end_orphans(self) -> None:
        """SIGKILL what is left of its session."""
        for pid in session_of(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def leftovers(self) -> list[str]:
        """Processes, shared memory and temporary files that it left behind."""
        _reap_orphans()
        names = [f"process {pid} ({command})" for pid, command in session_of(self.pid).items()]
        if SHARED_MEMORY.is_dir():
            for pid in self.pids:
                names += [f"shared memory {file.name}" for file in SHARED_MEMORY.glob(f"*_{pid}_*")]
        return names + [f"file {file.name}" for file in _temporary(self.room).iterdir()]


def _become(
    target: Callable[..., object], args: tuple[Any, ...], room: Path, seconds: float
) -> None:
    """Run ``target`` and end as an interpreter ends: threads joined, exit functions called."""
    code = FAILED
    try:
        os.setsid()
        os.dup2(os.open(room / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(2, 1)
        os.environ["TMPDIR"] = tempfile.tempdir = str(_temporary(room))
        faulthandler.dump_traceback_later(seconds - 5)  # where it hangs
        # Python 3.14 would start a server for workers, which takes seconds, and whose temporary
        # directory is removed by the process that is killed here
        multiprocessing.set_start_method("fork", force=True)
        try:
            target(*args)
            code = 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        _refuse_threads()
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:  # noqa: BLE001  # else the fork would return into the campaign
        code = FAILED
        traceback.print_exc()
    finally:
        os._exit(code)


def _refuse_threads() -> None:
    threads = [each.name for each in threading.enumerate() if each.name.startswith("penstock-")]
    if threads:
        raise AssertionError(f"threads outlive close(): {threads}")


def _temporary(room: Path) -> Path:
    folder = room / "tmp"
    folder.mkdir(exist_ok=True)
    return folder


def session_of(leader: int) -> dict[int, str]:
    """Living processes of a session: number -> command."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it ended
            continue
        command, _, rest = stat.partition("(")[2].rpartition(")")
        state, _, _, session = rest.split()[:4]
        if int(session) == leader and state != "Z":
            found[int(entry.name)] = command
    return found


def _reap_orphans() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
