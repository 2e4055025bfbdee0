"""Signals that ask a run to end: it is saved between two batches, and left."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from penstock.extras import optional
from penstock.training.run.ranks import Ranks

log = logging.getLogger("penstock")

callbacks = optional("lightning.pytorch.callbacks", extra="train")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_KEY_PRESS_SECONDS: Final = 1.0  # who starts processes hands a terminal's Ctrl-C on once more


class Stopped(BaseException):
    """Training ended because a signal asked for it; everything is saved.

    No `Exception`: nothing of a user's own may catch it and train on.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Listener:
    """The signal that asked this process to stop, if one did.

    It listens while there is training to save. Before, and after, a signal ends the process as
    signals do: it may hang where no Python runs, waiting for another rank.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.heard = 0
        self._clock, self._at = clock, 0.0
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second Ctrl-C leaves at once."""
        now = self._clock()
        if self.heard and number == signal.SIGINT and now - self._at > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)  # the last checkpoint is whole, whatever is under way
        if not self.heard:
            self.heard, self._at = number, now
            name = signal.Signals(number).name
            log.warning("%s: saving at the end of this batch, then leaving", name)

    def listen(self) -> None:
        """Hear the signals from now on."""
        for number in SIGNALS:
            signal.signal(number, self.hear)

    def let_go(self) -> None:
        """Signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()


class Stopping(callbacks.Callback):  # type: ignore[misc, name-defined]
    """Ends training between two batches once a signal was heard, on all ranks at the same one.

    Args:
        listener: Hears the signals of this process.
        save: Writes the checkpoint, on all ranks together.
    """

    def __init__(self, listener: Listener, save: Callable[[Any], object]) -> None:
        self._listener, self._save = listener, save
        self._ranks: Ranks | None = None
        self._in_step = True  # validation has the same number of batches on every rank

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Undo what Lightning installed just before: a handler that waits for a training step."""
        self._listener.let_go()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Hear signals, in the place of Lightning's handler."""
        self._listener.listen()
        self._ranks = Ranks()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Leave before this batch: what was logged of the one before is logged by now."""
        self._leave_if_asked(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave before a validation; it is run when the run goes on."""
        if self._ranks is None or trainer.sanity_checking:
            return
        if self._ranks.several:
            batches = sum(trainer.num_val_batches)
            self._in_step = self._ranks.agree(-1 if batches == float("inf") else int(batches))
        self._leave_if_asked(trainer)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Leave in the middle of a validation; it is run anew when the run goes on."""
        if not trainer.sanity_checking and self._in_step:
            self._leave_if_asked(trainer)

    def _leave_if_asked(self, trainer: Any) -> None:
        if self._ranks is None:
            return
        (heard,) = self._ranks.largest(self._listener.heard)
        if heard:
            self._save(trainer)
            raise Stopped(heard)
