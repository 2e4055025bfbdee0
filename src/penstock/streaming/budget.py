"""How much memory a stream may use, and what that allows. Arithmetic."""

from __future__ import annotations

import os
from dataclasses import dataclass

LENT_BATCHES = 4  # that the user may look at at once before further ones are copies
ROUNDS_HELD = 2  # the one in use and the one being read
SLOT_OBJECT_BYTES = 200  # the Python objects that say where a batch is
BLOCK_OBJECT_BYTES = 160  # and which block is read next
TARGET_BYTES = 8  # where a row of a block goes
UNCOUNTED = 64  # bookkeeping is counted from this part of the buffers on: less is within tolerance


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What a stream holds in memory, from its geometry: buffers, and bookkeeping.

    Buffers are what rows are read into. Bookkeeping is what says where they go: it is tiny beside
    wide rows, and more than the data where rows are a few bytes. Not counted is what does not
    grow with the data: some 30 MB of temporary arrays at most.

    Args:
        row_bytes: Of one stored row, all fields.
        steps: Rows a sample is made of.
        batch: Samples of a rank's batch.
        whole: Samples of a step over all ranks.
        threads: Reader threads; each has a block of scratch memory.
        chunk_rows: Rows that are decoded together, in memory of each thread's own; 0 where
            storage is looked at in place.
    """

    row_bytes: int
    steps: int
    batch: int
    whole: int
    threads: int
    chunk_rows: int

    def slots(self, round_samples: int) -> int:
        """Batches held for rounds of that many samples over all lanes.

        A round touches as many batches as that, one more at either end, and one that ends an
        epoch early.
        """
        return ROUNDS_HELD * (-(-round_samples // self.whole) + 3) + LENT_BATCHES

    def nbytes(self, *, block: int, round_samples: int) -> int:
        """Buffers and bookkeeping together."""
        slots, buffers = self.slots(round_samples), self.buffers(block, round_samples)
        blocks = -(-round_samples * self.batch // self.whole // block)
        bookkeeping = slots * SLOT_OBJECT_BYTES + blocks * BLOCK_OBJECT_BYTES
        bookkeeping += (self.threads + 2) * block * TARGET_BYTES  # being read, and planned ahead
        return buffers + max(0, bookkeeping - buffers // UNCOUNTED)

    def buffers(self, block: int, round_samples: int) -> int:
        """Batches, and each thread's scratch memory."""
        batches = self.slots(round_samples) * self.batch * self.sample_bytes
        return batches + self.threads * self._thread_bytes(block)

    @property
    def sample_bytes(self) -> int:
        """Of one sample, all fields."""
        return self.steps * self.row_bytes

    def _thread_bytes(self, block: int) -> int:
        """The block as it is read, a chunk's stored bytes, and a chunk that is decoded in part."""
        scratch = (block + self.steps - 1) * self.row_bytes
        return scratch + 2 * decoding_bytes(self.chunk_rows * self.row_bytes)

    def largest_window(self, budget: int, *, size: int, block: int, lanes: int) -> int:
        """Most blocks a lane's window may have within a budget; 0 where not even one fits."""
        low, high = 0, max(1, size // block // lanes)
        while low < high:
            middle = (low + high + 1) // 2
            samples = min(size, lanes * (middle + 1) * block)
            fits = self.nbytes(block=block, round_samples=samples) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def decoding_bytes(chunk_bytes: int) -> int:
    """What a source's scratch memory takes for a chunk: some more than it, for headers and reuse.

    >>> decoding_bytes(0), decoding_bytes(80_000), decoding_bytes(2_000_000)
    (0, 94096, 4194304)
    """
    if chunk_bytes == 0:
        return 0
    roomy = chunk_bytes + chunk_bytes // 8 + 4096
    return roomy if roomy < 1 << 20 else max(roomy, 4 << 20)
