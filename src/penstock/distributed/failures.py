"""A failure of one rank ends the others with its reason, instead of leaving them waiting."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from penstock.arguments import real_number
from penstock.distributed.agreement import DELIVERY_SECONDS
from penstock.errors import WorkerError, one_line
from penstock.ranks import has_several_ranks, shared_store

FOREVER = timedelta(days=365)
EVERYONE_IS_DONE = ""


class RankError(WorkerError):
    """Another rank failed; the message has its reason."""


@contextmanager
def together(*, grace_seconds: float = 30.0) -> Iterator[None]:
    """Context manager that ends on every rank when one of them fails.

    The rank that fails raises its own error. The others raise a `RankError` with its reason, as
    soon as the call that they wait in returns: with gloo at once, because the connection is closed.
    A process that is still in the block after ``grace_seconds`` prints the reason and exits with
    code 1. No rank leaves the block before all have finished it.

    The ranks communicate by the store of the process group, which needs no collective and no
    device. Without a process group, or with one rank, it does nothing.

    Args:
        grace_seconds: How long to wait for a rank to leave the block after another one failed.

    Raises:
        RankError: Another rank failed.

    >>> with together():
    ...     pass  # train
    """
    grace_seconds = real_number("grace_seconds", grace_seconds, minimum=0)
    if not has_several_ranks():
        yield
        return
    block = _SharedBlock(dist.get_rank(), dist.get_world_size(), grace_seconds)
    with block.listening():
        try:
            yield
        except BaseException as error:
            block.fail(error)
            raise
        block.leave()


class _SharedBlock:
    """The messages between ranks about one block: keys in a store, one to wake each rank."""

    def __init__(self, rank: int, world: int, grace_seconds: float) -> None:
        self.rank, self.world, self.grace_seconds = rank, world, grace_seconds
        block = shared_store("together").add(f"blocks/{rank}", 1)  # the same on every rank
        self._store = shared_store(f"together/{block}")
        self._received = threading.Event()
        self._message = EVERYONE_IS_DONE  # or a reason; valid once `_received` is set
        self._left = threading.Event()

    # -- the listening thread

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Run a thread that waits for a message during the block, on its own connection."""
        store: Store = self._store.clone()  # type: ignore[attr-defined]  # missing from torch's stubs
        thread = threading.Thread(
            target=self._listen, args=(store,), name="penstock-together", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._left.set()
            if self.rank == 0:
                self._wait_for_delivery()  # this process may host the store, which ends with it
            thread.join(DELIVERY_SECONDS)

    def _listen(self, store: Store) -> None:
        mine = f"wake/{self.rank}"
        try:
            store.wait([mine], FOREVER)
            self._message = store.get(mine).decode()
        except RuntimeError:
            self._message = "the process that hosted the store of the ranks exited"
        with suppress(RuntimeError):
            store.set(f"received/{self.rank}", "")
        self._received.set()
        if self._message != EVERYONE_IS_DONE and not self._left.wait(self.grace_seconds):
            sys.stderr.write(f"penstock: rank {self.rank} exits: {self._message}\n")
            sys.stderr.flush()
            os._exit(1)  # the main thread is in a call that cannot be interrupted

    # -- the two ways to leave the block

    def leave(self) -> None:
        """Wait until every rank has finished; raise a `RankError` if one failed."""
        with suppress(RuntimeError):  # the listening thread reports that the store is gone
            if self._store.add("done", 1) == self.world:
                self._wake(EVERYONE_IS_DONE)
        self._received.wait()
        if self._message != EVERYONE_IS_DONE:
            raise RankError(self._message)

    def fail(self, error: BaseException) -> None:
        """Send the error to the other ranks; raise a `RankError` if another rank failed first."""
        self._left.set()
        mine = f"rank {self.rank} failed: {one_line(error)}"
        try:
            first = self._store.compare_set("reason", "", mine).decode()
        except RuntimeError:  # the store is gone, with the rank that hosted it
            first = self._message if self._received.is_set() else mine
        if first != mine:
            raise RankError(first) from error
        self._wake(mine)
        self._wait_for_delivery()

    def _wake(self, message: str) -> None:
        with suppress(RuntimeError):
            for rank in range(self.world):
                self._store.set(f"wake/{rank}", message)

    def _wait_for_delivery(self) -> None:
        everyone = [f"received/{rank}" for rank in range(self.world)]
        with suppress(RuntimeError):  # some have exited already
            self._store.wait(everyone, timedelta(seconds=DELIVERY_SECONDS))
