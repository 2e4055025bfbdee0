"""Memory that batches live in: reserved once, handed out as views, reused when nobody looks."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.sources.base import Field

HUGE_PAGE = 2 << 20


class Slots:
    """Batch-sized pieces of reserved memory, for each field.

    A batch is a view of its slot: handing it out copies nothing. The slot is free again when the
    last tensor or array that looks at it is gone, so a batch is the user's as long as he likes.
    Where he keeps more than ``lent`` of them, further batches are copies, and the reserved memory
    never grows.

    >>> slots = Slots({"": Field((4,), np.dtype("float32"))}, batch=8, count=3, lent=1)
    >>> slots.rows[""].shape, slots.nbytes
    ((24,), 384)
    """

    def __init__(
        self, fields: Mapping[str, Field], *, batch: int, count: int, lent: int, pin: bool = False
    ) -> None:
        self.fields, self.batch, self.count, self.lent = fields, batch, count, lent
        self.free = deque(range(count))
        bytes_of = {name: count * batch * field.nbytes for name, field in fields.items()}
        reserved = {name: reserve(nbytes, pin=pin) for name, nbytes in bytes_of.items()}
        self.rows = {name: each.view(row_type(fields[name])) for name, each in reserved.items()}
        self.nbytes = sum(rows.nbytes for rows in self.rows.values())
        self._parts = [  # of a slot: what each field's array is made of
            (name, field.shape, field.dtype, self.rows[name], batch * field.nbytes)
            for name, field in fields.items()
        ]
        self.leases: set[_Lease] = set()  # of slots that somebody looks at

    def take(self, count: int) -> list[int]:
        """That many free slots; the caller has made sure that there are."""
        return [self.free.popleft() for _ in range(count)]

    def shifts(self, slots: list[int]) -> npt.NDArray[np.int64]:
        """How far the rows of the i-th of these slots are from row ``i * batch``."""
        return (np.array(slots, np.int64) - np.arange(len(slots))) * self.batch

    @property
    def complete(self) -> bool:
        """Whether every slot is free or lent: else a reader was abandoned and may still write."""
        return len(self.free) + len(self.leases) >= self.count

    def hand_out(self, slot: int, rows: int) -> dict[str, torch.Tensor]:
        """The batch in a slot, as tensors that look at it (or copies, if too many do already)."""
        if len(self.leases) >= self.lent:
            views = self.arrays(slot, rows)
            copies = {name: torch.from_numpy(view.copy()) for name, view in views.items()}
            self.free.append(slot)
            return copies
        lease, batch = _Lease(self, slot), {}
        for name, shape, dtype, memory, nbytes in self._parts:
            view = np.ndarray((rows, *shape), dtype, memory, slot * nbytes)
            lease.refs.append(weakref.ref(view, lease.gone))
            batch[name] = torch.from_numpy(view)
        self.leases.add(lease)
        return batch

    def arrays(self, slot: int, rows: int) -> dict[str, npt.NDArray[np.generic]]:
        """The first rows of a slot, to be filled."""
        return {
            name: np.ndarray((rows, *shape), dtype, memory, slot * nbytes)
            for name, shape, dtype, memory, nbytes in self._parts
        }

    def forget(self) -> None:
        """Give the system back what nobody looks at; for the end, when nothing is written more."""
        seen = sorted({lease.slot for lease in list(self.leases)})
        for *_, memory, size in self._parts:
            for before, after in pairwise([-1, *seen, self.count]):
                release(memory, (before + 1) * size, after * size)


class _Lease:
    """A slot that somebody looks at, through one view of it for each field."""

    __slots__ = ("_left", "_slots", "refs", "slot")

    def __init__(self, slots: Slots, slot: int) -> None:
        self.slot, self._slots = slot, slots
        self.refs: list[weakref.ref[npt.NDArray[np.generic]]] = []  # to its views
        self._left = list(range(len(slots.fields)))

    def gone(self, ref: object) -> None:
        """One view is gone; may run in any thread, for two views at once, and takes no lock."""
        if self._left.pop() == 0:  # atomic, and the last one's alone
            self._slots.leases.discard(self)
            self._slots.free.append(self.slot)


def row_type(field: Field) -> np.dtype[np.void]:
    """One sample as one opaque item: gathers and scatters of those are plain copies."""
    return np.dtype((np.void, field.nbytes))


def reserve(nbytes: int, *, pin: bool = False) -> npt.NDArray[np.uint8]:
    """Memory that costs nothing until it is touched; page-locked for an accelerator."""
    if pin:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    pages = mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE:
        with suppress(OSError, AttributeError):  # a hint, where the system takes it
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, nbytes)


def release(memory: npt.NDArray[np.generic], begin: int, end: int) -> None:
    """Let the system have the whole pages in ``begin:end`` of reserved memory; they read as 0."""
    pages = memory.base
    while isinstance(pages, np.ndarray | memoryview):
        pages = pages.base if isinstance(pages, np.ndarray) else pages.obj
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if isinstance(pages, mmap.mmap) and length > 0:  # page-locked memory is torch's own
        with suppress(OSError, AttributeError):
            pages.madvise(mmap.MADV_DONTNEED, begin, length)


class Token:
    """Dies just after the memory it was given for; weak references to it tell."""

    __slots__ = ("__weakref__",)


class _Followed:
    """A tensor, and a token after it: slots are let go of in this order."""

    __slots__ = ("first", "last")

    def __init__(self, tensor: torch.Tensor, token: Token) -> None:
        self.first, self.last = tensor, token

    @property
    def __array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.first.numpy().__array_interface__
        return interface


def followed(tensor: torch.Tensor) -> tuple[torch.Tensor, Token]:
    """The same memory as a tensor, and a token that dies once nobody can see it any more.

    A reference to the tensor itself would tell too early, while its memory is still there.
    """
    token = Token()
    return torch.from_numpy(np.asarray(_Followed(tensor, token))), token
