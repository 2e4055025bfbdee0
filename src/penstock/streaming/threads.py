"""Threads that end: told to when their owner is dropped, waited for at close and at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

MODESTY = 5  # steps of niceness: about a quarter of a core that somebody else wants too


class Servant(threading.Thread):
    """A named thread that can be told to stop, and lets whoever trains go first.

    Where cores are short it works at lower priority: what is read ahead can wait, and once
    somebody waits for it he needs no core himself.

    Whoever drops its owner only has it told: a garbage collector may run in any thread, under any
    lock, and must not wait. `dismiss` waits; so does the interpreter when it exits.

    >>> told = threading.Event()
    >>> servant = Servant("idle", told.wait, told.set)
    >>> employ([servant])
    >>> dismiss([servant])
    >>> servant.name, servant.is_alive()
    ('penstock-idle', False)
    """

    def __init__(self, name: str, work: Callable[[], object], stop: Callable[[], None]) -> None:
        super().__init__(name=f"penstock-{name}", target=work, daemon=True)
        self.stop = stop

    def run(self) -> None:
        """Do the work, modestly."""
        if sys.platform == "linux":  # elsewhere threads have no niceness of their own
            os.nice(MODESTY)
        super().run()


_running: weakref.WeakSet[Servant] = weakref.WeakSet()  # threading holds those that live
os.register_at_fork(after_in_child=_running.clear)  # a child has none of them


def employ(servants: Iterable[Servant]) -> None:
    """Start them all; where that is interrupted, none goes on."""
    servants = list(servants)
    try:
        for servant in servants:
            _running.add(servant)
            servant.start()
    except BaseException:
        dismiss(servants)
        raise


def dismiss(servants: Iterable[Servant]) -> None:
    """Tell them to stop, and wait until they have."""
    servants = list(servants)
    for servant in servants:
        servant.stop()
    for servant in servants:
        if servant.is_alive() and servant is not threading.current_thread():
            servant.join()


@atexit.register
def _dismiss_all() -> None:
    dismiss(_running)
