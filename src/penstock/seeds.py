"""Random seeds: passed in, drawn once for all ranks, or restored from a state."""

from __future__ import annotations

import logging
import secrets

import torch.distributed as dist

from penstock.arguments import LARGEST_SEED, whole_number
from penstock.errors import PlanError
from penstock.ranks import has_several_ranks, shared_store

log = logging.getLogger("penstock")


class Seed:
    """The seed in use: passed in, drawn at random, or restored from a state.

    In a process group, every rank uses the seed that rank 0 draws. A seed drawn before the group
    exists (trainers create it after the loaders) is replaced by rank 0's when the group is there.
    If something depends on the drawn seed by then, every rank raises a `PlanError` instead.

    Args:
        seed: A number in [0, 2**64); None draws one.
        name: The argument's name, for messages.

    >>> Seed(42).for_ranks(8)
    42
    """

    def __init__(self, seed: int | None, name: str = "seed") -> None:
        self.given = seed is not None
        self.value = secrets.randbits(32) if seed is None else _checked(seed, name)
        self._shared = self.given  # every rank has this value
        self._logged = self.given
        self._reason: str | None = None  # why it can no longer be replaced
        self._source: Seed | None = None

    @classmethod
    def of(cls, seed: Seed | int | None) -> Seed:
        """Return a seed object itself, or a new one."""
        return seed if isinstance(seed, Seed) else cls(seed)

    def fixed(self, reason: str) -> Seed:
        """Return this seed with a value that cannot change, as if it was passed in.

        It still raises an error if ranks have different seeds.

        Args:
            reason: What depends on the value: "the data were split".
        """
        self.settle(reason)
        fixed = Seed(self.value)
        fixed._source = self
        return fixed

    def for_ranks(self, world: int) -> int:
        """Return the seed for that number of ranks, the same on all of them.

        Args:
            world: Ranks that share the data. With one, nothing has to be shared.
        """
        if self._source is not None:
            self._source.for_ranks(world)
        if world > 1 and not self._shared:
            self._share(world)
        if not self._logged:
            log.info("using random seed %d; pass seed=%d to reproduce this run", *[self.value] * 2)
            self._logged = True
        return self.value

    def _share(self, world: int) -> None:
        if not has_several_ranks():
            raise PlanError(
                f"seed=None with world_size={world} and no process group: each rank would draw "
                "its own seed; pass the same seed= on every rank"
            )
        if self._reason is not None:
            raise PlanError(
                f"seed=None was drawn before the process group was created, and {self._reason}: "
                "the ranks have different seeds; pass seed=, or create the process group first"
            )
        found = from_rank_zero(self.value)
        self._logged = self._logged and found == self.value
        self.value, self._shared = found, True

    def settle(self, reason: str) -> None:
        """Do not accept another value from now on.

        Args:
            reason: What depends on the value: "batches were delivered".
        """
        self._reason = self._reason or reason

    def restore(self, seed: int) -> None:
        """Use the value of a state, which every rank loads."""
        self.value, self._shared, self._logged = _checked(seed, "seed"), True, True

    def save(self) -> tuple[int, bool, bool, str | None]:
        """Return what `go_back` needs to undo later changes."""
        return self.value, self._shared, self._logged, self._reason

    def go_back(self, saved: tuple[int, bool, bool, str | None]) -> None:
        """Undo the changes since `save`."""
        self.value, self._shared, self._logged, self._reason = saved


def from_rank_zero(mine: int) -> int:
    """Return the first seed that rank 0 shared in this process group.

    It uses the store and no collective: rank 0 never waits, and the others wait no longer than the
    timeout of the process group.

    Args:
        mine: The seed of this rank.
    """
    store = shared_store("seed")
    if dist.get_rank() == 0:
        return int(store.compare_set("value", "", str(mine)))
    try:
        return int(store.get("value"))
    except RuntimeError as error:  # the store's timeout, or rank 0 is gone and the store with it
        raise PlanError(
            "seed=None takes the seed of rank 0, and rank 0 did not share one in time: build the "
            "same loader on every rank, or pass seed="
        ) from error


def _checked(seed: int, name: str) -> int:
    return whole_number(name, seed, minimum=0, maximum=LARGEST_SEED)
