"""What may be changed while worker processes live, in memory they share."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import whole_number

_EPOCH, _FORCED, _EDITION, _STAMP = range(4)
_UNFORCED: Final = -1


class Switches:
    """The epoch, the forced variant and the edition of the negatives of one dataset.

    Worker processes hold the same memory, however they were started: what is set here, they see
    at their next batch, persistent or not.

    >>> switches = Switches(epoch=3)
    >>> switches.forced = 1
    >>> switches.epoch, switches.forced, switches.edition
    (3, 1, 0)
    """

    def __init__(self, epoch: int) -> None:
        self._share(torch.tensor([_checked(epoch), _UNFORCED, 0, 0]))

    def _share(self, tensor: torch.Tensor) -> None:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
        self._tensor = tensor
        self._values: npt.NDArray[np.int64] = self._tensor.numpy()  # the same memory: reads quickly

    def __getstate__(self) -> dict[str, torch.Tensor]:
        return {"tensor": self._tensor}

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        # a worker gets the shared memory itself; a plain pickle gets a copy, to be shared anew
        self._share(state["tensor"])

    @property
    def epoch(self) -> int:
        """The dataset's own epoch, where none travels with the indices."""
        return int(self._values[_EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._values[_EPOCH] = _checked(epoch)

    @property
    def forced(self) -> int | None:
        """The variant every pair gets; None leaves it to the curriculum."""
        forced = int(self._values[_FORCED])
        return None if forced == _UNFORCED else forced

    @forced.setter
    def forced(self, variant: int | None) -> None:
        self._values[_FORCED] = _UNFORCED if variant is None else variant

    @property
    def edition(self) -> int:
        """How many times the negatives were read again."""
        return int(self._values[_EDITION])

    @property
    def stamp(self) -> int:
        """Of the files that the current edition of the negatives was read from."""
        return int(self._values[_STAMP])

    def next_edition(self, stamp: int) -> None:
        """There are new negatives, read from files with this stamp."""
        self._values[_STAMP] = stamp
        self._values[_EDITION] += 1  # last: a worker that sees it sees the stamp too


def _checked(epoch: int) -> int:
    return whole_number("epoch", epoch, minimum=0)
