"""Where training is: two integers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.order.steps import Steps


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The place of the next step, counted over all ranks; the whole state of an order.

    Always normal: at least one step is left at ``position``, so that the end of an epoch *is*
    the start of the next one.

    >>> steps = Steps(size=10, batch=4, drop_last=False)
    >>> Cursor(0, 4).advance(steps), Cursor(0, 8).advance(steps)
    (Cursor(epoch=0, position=8), Cursor(epoch=1, position=0))
    """

    epoch: int = 0
    position: int = 0

    def normal(self, steps: Steps) -> Cursor:
        """This place, or the next epoch where no step is left: another batch size may do that."""
        over = steps.count and not steps.steps_from(self.position)  # a limit of 0: never over
        return Cursor(self.epoch + 1) if over else self

    def advance(self, steps: Steps) -> Cursor:
        """The place after this step; the last step of an epoch leads to the next at once."""
        return Cursor(self.epoch, steps.stop(self.position)).normal(steps)

    def set_epoch(self, epoch: int) -> Cursor:
        """The start of an epoch; asking for the one it is in changes nothing."""
        return self if epoch == self.epoch else Cursor(epoch)
