"""A failure on one rank ends the others, with its reason, instead of a hang."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from penstock.arguments import real_number
from penstock.distributed.agreement import HEARD_SECONDS, said
from penstock.errors import WorkerError
from penstock.seeds import several

FOREVER = timedelta(days=365)
EVERYONE_IS_DONE = ""


class RankError(WorkerError):
    """Another rank failed; the message has its reason."""


@contextmanager
def together(*, grace_seconds: float = 30.0) -> Iterator[None]:
    """A block that every rank leaves when one of them fails, with that rank's reason.

    The rank that fails raises its own error. The others raise a `RankError` that tells it, as soon
    as they come out of what they wait in: with gloo at once, for the connection is closed. Who is
    still in the block ``grace_seconds`` later cannot come out: that process says the reason and
    exits with code 1. Nobody leaves the block before all are done with it.

    News go through the store of the process group, so that no collective, and no device, is
    needed for it. Without a process group, or with one rank, this is nothing.

    >>> with together():
    ...     pass  # train
    """
    grace_seconds = real_number("grace_seconds", grace_seconds, minimum=0)
    if not several():
        yield
        return
    room = _Room(dist.get_rank(), dist.get_world_size(), grace_seconds)
    with room.watched():
        try:
            yield
        except BaseException as error:
            room.fail(error)
            raise
        room.leave()


class _Room:
    """What the ranks tell each other of one block: keys in a store, one to wake each rank."""

    def __init__(self, rank: int, world: int, grace_seconds: float) -> None:
        self.rank, self.world, self.grace_seconds = rank, world, grace_seconds
        store = _get_default_store()
        block = store.add(f"penstock/together/blocks/{rank}", 1)  # the same count on every rank
        self._store = PrefixStore(f"penstock/together/{block}", store)
        self._news = threading.Event()
        self._heard = EVERYONE_IS_DONE  # or a reason; holds once there are news
        self._left = threading.Event()

    # -- the thread that listens

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A thread that waits for news as long as the block, on a connection of its own."""
        listening: Store = self._store.clone()  # type: ignore[attr-defined]  # waits on its own
        thread = threading.Thread(
            target=self._listen, args=(listening,), name="penstock-together", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._left.set()
            if self.rank == 0:
                self._wait_until_heard()  # it may keep the store, which ends with it
            thread.join(HEARD_SECONDS)

    def _listen(self, store: Store) -> None:
        mine = f"wake/{self.rank}"
        try:
            store.wait([mine], FOREVER)
            self._heard = store.get(mine).decode()
        except RuntimeError:
            self._heard = "the process that kept the store of the ranks is gone"
        with suppress(RuntimeError):
            store.set(f"heard/{self.rank}", "")
        self._news.set()
        if self._heard != EVERYONE_IS_DONE and not self._left.wait(self.grace_seconds):
            sys.stderr.write(f"penstock: rank {self.rank} is ended: {self._heard}\n")
            sys.stderr.flush()
            os._exit(1)  # the main thread waits in a call that nothing else can end

    # -- the two ways out

    def leave(self) -> None:
        """Wait until everyone is done; raise what another rank failed of, if one did."""
        with suppress(RuntimeError):  # a store that is gone is news, too
            if self._store.add("done", 1) == self.world:
                self._wake(EVERYONE_IS_DONE)
        self._news.wait()
        if self._heard != EVERYONE_IS_DONE:
            raise RankError(self._heard)

    def fail(self, error: BaseException) -> None:
        """Tell the others; where it is another's failure that came through to here, raise that."""
        self._left.set()
        mine = f"rank {self.rank} failed: {said(error)}"
        try:
            first = self._store.compare_set("reason", "", mine).decode()
        except RuntimeError:  # the store is gone, with the rank that kept it and told why
            first = self._heard if self._news.is_set() else mine
        if first != mine:
            raise RankError(first) from error
        self._wake(mine)
        self._wait_until_heard()

    def _wake(self, news: str) -> None:
        with suppress(RuntimeError):
            for rank in range(self.world):
                self._store.set(f"wake/{rank}", news)

    def _wait_until_heard(self) -> None:
        everyone = [f"heard/{rank}" for rank in range(self.world)]
        with suppress(RuntimeError):  # some are gone already
            self._store.wait(everyone, timedelta(seconds=HEARD_SECONDS))
