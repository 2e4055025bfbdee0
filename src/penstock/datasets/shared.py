"""What may change while worker processes live, in memory they share."""

from __future__ import annotations

import torch


class SharedIntegers:
    """A few integers; worker processes see them change, however they were started.

    >>> shared = SharedIntegers(0, 7)
    >>> shared[0] = 3
    >>> shared[0], shared[1]
    (3, 7)
    """

    def __init__(self, *values: int) -> None:
        self._values = _share(torch.tensor(values))

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        # a worker gets the shared memory itself; a plain pickle gets a copy, to be shared anew
        self._values = _share(state["_values"])

    def __getitem__(self, place: int) -> int:
        return int(self._values[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._values[place] = value


def _share(values: torch.Tensor) -> torch.Tensor:
    return values.share_memory_()  # type: ignore[no-untyped-call,no-any-return]
