"""Memory for batches: allocated once, handed out as views, reused when no view is left."""

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

from penstock.order import Indices
from penstock.sources.contract import Field
from penstock.streaming.planner import Part

HUGE_PAGE = 2 << 20


class BatchBuffers:
    """A fixed number of slots, each with memory for one batch of every field.

    A batch is a view of its slot, so handing it out copies nothing. The slot becomes free when the
    last tensor or array that refers to its memory is deleted; until then the batch is valid. If
    the user holds more than ``lent`` batches, further ones are copies, so memory never grows.

    Args:
        fields: Shape and dtype of one sample of each field.
        batch: Samples in a slot.
        count: Number of slots.
        lent: Slots that the user can hold at the same time.
        pin: Allocate page-locked memory, for copies to an accelerator.

    >>> buffers = BatchBuffers({"": Field((4,), np.dtype("float32"))}, batch=8, count=3, lent=1)
    >>> buffers.rows[""].shape, buffers.nbytes
    ((24,), 384)
    """

    def __init__(
        self, fields: Mapping[str, Field], *, batch: int, count: int, lent: int, pin: bool = False
    ) -> None:
        self.fields, self.batch, self.count, self.lent = fields, batch, count, lent
        self.free = deque(range(count))
        self.leases: set[_Lease] = set()  # of slots that the user holds
        self.rows = {
            name: allocate(count * batch * field.nbytes, pin=pin).view(_item_type(field))
            for name, field in fields.items()
        }
        self.nbytes = sum(rows.nbytes for rows in self.rows.values())
        self._parts = [
            (name, field.shape, field.dtype, self.rows[name], batch * field.nbytes)
            for name, field in fields.items()
        ]

    def take(self, count: int) -> list[int]:
        """Return ``count`` free slots; the caller has checked that there are enough."""
        return [self.free.popleft() for _ in range(count)]

    @property
    def is_reusable(self) -> bool:
        """Whether every slot is free or lent. If not, an abandoned reader may still write."""
        return len(self.free) + len(self.leases) >= self.count

    def hand_out(self, slot: int, rows: int) -> dict[str, torch.Tensor]:
        """Return the batch in a slot as tensors: views, or copies if too many slots are lent."""
        if len(self.leases) >= self.lent:
            views = self.arrays(slot, rows)
            copies = {name: torch.from_numpy(view.copy()) for name, view in views.items()}
            self.free.append(slot)
            return copies
        lease, batch = _Lease(self, slot), {}
        for name, shape, dtype, memory, nbytes in self._parts:
            view = np.ndarray((rows, *shape), dtype, memory, slot * nbytes)
            lease.refs.append(weakref.ref(view, lease.view_deleted))
            batch[name] = torch.from_numpy(view)
        self.leases.add(lease)
        return batch

    def arrays(self, slot: int, rows: int) -> dict[str, npt.NDArray[np.generic]]:
        """Return the first ``rows`` samples of a slot as arrays to write to."""
        return {
            name: np.ndarray((rows, *shape), dtype, memory, slot * nbytes)
            for name, shape, dtype, memory, nbytes in self._parts
        }

    def sample(self, row: int) -> dict[str, npt.NDArray[np.generic]]:
        """Return one row of the slots as arrays to write to."""
        return {
            name: np.ndarray((1, *field.shape), field.dtype, self.rows[name], row * field.nbytes)
            for name, field in self.fields.items()
        }

    def release_pages(self) -> None:
        """Give memory that no batch refers to back to the system; nothing may write to it."""
        lent = sorted({lease.slot for lease in list(self.leases)})
        for *_, memory, size in self._parts:
            for before, after in pairwise([-1, *lent, self.count]):
                release(memory, (before + 1) * size, after * size)


class _Lease:
    """A slot that the user holds, through one view for each field."""

    __slots__ = ("_buffers", "_left", "refs", "slot")

    def __init__(self, buffers: BatchBuffers, slot: int) -> None:
        self.slot, self._buffers = slot, buffers
        self.refs: list[weakref.ref[npt.NDArray[np.generic]]] = []
        self._left = list(range(len(buffers.fields)))

    def view_deleted(self, ref: object) -> None:
        """Free the slot when its last view is deleted.

        May run in any thread, in two at once, and inside of the garbage collector: it must not
        take a lock. ``list.pop`` is atomic, so exactly one call gets the 0.
        """
        if self._left.pop() == 0:
            self._buffers.free.append(self.slot)  # first: a slot may be lent and free for a moment
            self._buffers.leases.discard(self)


def _item_type(field: Field) -> np.dtype[np.void]:
    """Return a sample as one opaque item, so that gathers and scatters are plain copies."""
    return np.dtype((np.void, field.nbytes))


class SlotTable:
    """The slots of a stream's batches, from the first read of a batch until it is handed out.

    Args:
        buffers: The slots; they may outlive the stream.
    """

    def __init__(self, buffers: BatchBuffers) -> None:
        self._buffers, self._free = buffers, buffers.free
        self._slot_of: dict[int, int] = {}  # batch number -> slot
        self._wanted = 0  # free slots that the next round waits for
        self._shifts: Indices = np.empty(0, np.int64)  # from a round's row i to a row of the slots

    def open_part(self, part: Part) -> list[Indices] | None:
        """Return the rows of the buffers that each read writes to; None if no slots are free.

        Called by one reader at a time, with the parts in order.
        """
        if part.begins and not self._assign(range(part.round.first, part.round.stop)):
            return None
        rows = part.rows
        rows += self._shifts[rows // self._buffers.batch]
        return [rows[read.first : read.first + read.selected] for read in part.reads]

    def _assign(self, batches: range) -> bool:
        """Assign slots to a round's batches; return False if there are too few free ones."""
        new = [batch for batch in batches if batch not in self._slot_of]
        if len(self._free) < len(new):
            self._wanted = len(new)
            return False
        self._slot_of.update(zip(new, self._buffers.take(len(new)), strict=True))
        self._wanted = 0
        slots: Indices = np.array([self._slot_of[batch] for batch in batches], np.int64)
        self._shifts = (slots - np.arange(len(slots))) * self._buffers.batch
        return True

    def round_read(self) -> None:
        """Do nothing: the batches of a finished round are in their slots already."""

    def hand_out(self, batch: int, rows: int) -> dict[str, torch.Tensor]:
        """Return a complete batch."""
        return self._buffers.hand_out(self._slot_of.pop(batch), rows)

    @property
    def has_room(self) -> bool:
        """Whether a reader that waits for slots can have them now."""
        return 0 < self._wanted <= len(self._free)

    def release_all(self) -> None:
        """Free the slots of batches that were not handed out; no reader may be running."""
        while self._slot_of:
            self._free.append(self._slot_of.popitem()[1])


def allocate(nbytes: int, *, pin: bool = False) -> npt.NDArray[np.uint8]:
    """Return zeroed memory that is backed by pages only once it is written to.

    Args:
        nbytes: Size in bytes.
        pin: Page-locked memory instead, for copies to an accelerator.
    """
    if pin:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    pages = mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE:
        with suppress(OSError, AttributeError):  # a hint that not every system has
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8, nbytes)


def release(memory: npt.NDArray[np.generic], begin: int, end: int) -> None:
    """Return the whole pages in bytes ``begin:end`` of allocated memory to the system."""
    pages = memory.base
    while isinstance(pages, np.ndarray | memoryview):
        pages = pages.base if isinstance(pages, np.ndarray) else pages.obj
    begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    length = end // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if isinstance(pages, mmap.mmap) and length > 0:  # page-locked memory is managed by torch
        with suppress(OSError, AttributeError):
            pages.madvise(mmap.MADV_DONTNEED, begin, length)


class LifetimeToken:
    """An object deleted just after some memory; a weak reference to it notifies of that."""

    __slots__ = ("__weakref__",)


class _TensorWithToken:
    """A tensor and a token. Attributes are deleted in this order, so the token goes last."""

    __slots__ = ("first", "last")

    def __init__(self, tensor: torch.Tensor, token: LifetimeToken) -> None:
        self.first, self.last = tensor, token

    @property
    def __array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.first.numpy().__array_interface__
        return interface


def with_lifetime_token(tensor: torch.Tensor) -> tuple[torch.Tensor, LifetimeToken]:
    """Return a tensor over the same memory, and a token that is deleted after that memory.

    A weak reference to the tensor itself would notify too early, while its memory still exists.
    """
    token = LifetimeToken()
    return torch.from_numpy(np.asarray(_TensorWithToken(tensor, token))), token
