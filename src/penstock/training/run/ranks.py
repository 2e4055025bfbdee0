"""Which process of several this is, and what all of them decide together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist


def is_first_rank(environment: Mapping[str, str]) -> bool:
    """Is this the process that writes for all, as far as those who start processes say?

    >>> is_first_rank({}), is_first_rank({"RANK": "2"}), is_first_rank({"LOCAL_RANK": "1"})
    (True, False, False)
    >>> is_first_rank({"NODE_RANK": "1", "LOCAL_RANK": "0"})  # the first on another machine
    False
    """
    for of_all in ("RANK", "SLURM_PROCID"):  # torchrun, and Slurm's srun
        if of_all in environment:
            return int(environment[of_all]) == 0
    return all(int(environment.get(name, 0)) == 0 for name in ("LOCAL_RANK", "NODE_RANK"))


class Ranks:
    """What the ranks of this run decide together; every rank asks at the same step.

    Answers travel between the hosts (gloo): devices are not waited for.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo") if several else None

    @property
    def several(self) -> bool:
        """More than one?"""
        return self._group is not None

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest of every rank's numbers, each by itself."""
        if self._group is None:
            return numbers
        found = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return tuple(found.tolist())

    def agree(self, number: int) -> bool:
        """Do all have the same number?"""
        return self.largest(number, -number) == (number, -number)
