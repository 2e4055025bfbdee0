"""Documents packed into sequences of equal length: which piece of which document is where."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.fingerprints import digest_of
from penstock.order.length_batches import checked_lengths
from penstock.order.orders import EqualWindows, Recent
from penstock.order.permutation import Indices, derive_key

WINDOW: Final = 10_000  # documents that are packed together: less than 0.1 % of tokens is padding


class Pieces(NamedTuple):
    """Pieces of documents, in the order in which they fill sequences.

    Args:
        sequence: The sequence of each piece, as an index into the requested sequences.
        offset: Where the piece begins in its sequence.
        document: The document of the piece.
        start: The first token of the document in the piece.
        stop: One past the last token.
    """

    sequence: Indices
    offset: Indices
    document: Indices
    start: Indices
    stop: Indices

    @property
    def sizes(self) -> Indices:
        """Tokens of each piece."""
        return self.stop - self.start

    def ids(self, sequences: int, length: int) -> tuple[Indices, Indices]:
        """Return segment ids (0 is padding) and position ids (from 0 in every piece).

        Args:
            sequences: Number of sequences.
            length: Tokens of a sequence.
        """
        segment = np.zeros((sequences, length), np.int64)
        position = np.zeros((sequences, length), np.int64)
        sizes, pieces = self.sizes, np.arange(len(self.document))
        first = np.searchsorted(self.sequence, self.sequence)  # piece of its sequence
        at = np.repeat(self.sequence * length + self.offset, sizes)
        inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        segment.reshape(-1)[at + inside] = np.repeat(pieces - first + 1, sizes)
        position.reshape(-1)[at + inside] = inside
        return segment, position


class FlatTokens:
    """All documents as one ring of tokens, cut every ``length`` tokens, beginning at a keyed shift.

    Every epoch has ``ceil(tokens / length)`` sequences, whatever its shift, and each token once;
    only the last sequence is short. Nothing is planned, so any order shuffles the sequences, and
    in a mixture shares of places are shares of tokens. Neighbours in a sequence are neighbours in
    storage.

    Args:
        lengths: Tokens of each document.
        length: Tokens of a sequence.
        seed: Seed of the shifts; None to cut every epoch in the same way.

    >>> flat = FlatTokens([5, 9, 4], length=8)
    >>> [piece.tolist() for piece in flat.pieces(0, np.array([1]))]
    [[0, 0], [0, 6], [1, 2], [3, 0], [9, 2]]
    """

    def __init__(self, lengths: npt.ArrayLike, length: int, seed: int | None = None) -> None:
        self.length = whole_number("length", length, minimum=1, unit="token")
        self.lengths = checked_lengths(lengths, np.size(lengths)).astype(np.int64)
        self.seed, self.ends = seed, np.cumsum(self.lengths)
        self.total = int(self.ends[-1]) if len(self.ends) else 0
        if not self.total:
            raise PlanError("no document has a token: there is nothing to pack")
        self.size = -(-self.total // self.length)

    def shift(self, epoch: int | Indices) -> int | Indices:
        """Return the first token of an epoch's first sequence; an array, for several epochs."""
        if self.seed is None:
            return 0
        shift = derive_key(self.seed, "shift", epoch) % self.length
        return shift if isinstance(shift, int) else shift.astype(np.int64)

    def pieces(self, epoch: int | Indices, sequences: Indices) -> Pieces:
        """Return the pieces of these sequences, in one epoch or each in its own."""
        sequences = np.asarray(sequences, np.int64)
        begin = sequences * self.length + self.shift(epoch)
        end = begin + np.minimum(self.length, self.total - sequences * self.length)
        # unrolled: the ring twice, so that a sequence across its end is one range
        first, last = (self._document(at) for at in (begin, end - 1))
        counts = last - first + 1
        sequence = np.repeat(np.arange(len(sequences)), counts)
        document = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        turn, document = np.divmod(document, len(self.ends))
        stops = self.ends[document] + turn * self.total
        starts = stops - self.lengths[document]
        low = np.maximum(starts, begin[sequence])
        high = np.minimum(stops, end[sequence])
        full = high > low  # documents without a token make no piece
        low, high, starts, sequence = low[full], high[full], starts[full], sequence[full]
        offset = low - begin[sequence]
        return Pieces(sequence, offset, document[full], low - starts, high - starts)

    def _document(self, token: Indices) -> Indices:
        turn, token = np.divmod(token, self.total)
        found: Indices = np.searchsorted(self.ends, token, side="right") + turn * len(self.ends)
        return found

    def identity(self) -> dict[str, Any]:
        """Return what the meaning of a sequence depends on."""
        return _identity("cut", self)


def best_fit(lengths: Indices, length: int) -> list[list[int]]:
    """Return the documents of each sequence: longest first, each into the fullest with room.

    >>> best_fit(np.array([3, 6, 2, 5]), 8)
    [[1, 2], [3, 0]]
    """
    sequences: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # room -> sequences that have it
    rooms: list[int] = []  # the keys of `with_room`, ascending
    for i in np.argsort(-lengths, kind="stable").tolist():
        need = int(lengths[i])
        at = bisect_left(rooms, need)
        if at == len(rooms):
            chosen, room = len(sequences), length
            sequences.append([])
        else:
            room = rooms[at]
            chosen = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[at]
        sequences[chosen].append(i)
        if room - need not in with_room:
            insort(rooms, room - need)
            with_room[room - need] = []
        with_room[room - need].append(chosen)
    return sequences


class WholeDocuments:
    """Documents packed whole, by best fit, within windows of consecutive documents.

    It keeps 16 bytes per document, and packs once: a second for a million documents. With a seed,
    documents of equal length within a window swap places in every epoch: the documents of a
    sequence change, but not the number of sequences or how full each is. That takes 24 more bytes
    per document.

    Args:
        lengths: Tokens of each document, at most ``length``.
        length: Tokens of a sequence.
        window: Documents that are packed together.
        seed: Seed of the swaps; None to pack every epoch in the same way.

    >>> packed = WholeDocuments([3, 6, 2, 5], length=8)
    >>> packed.size, packed.pieces(0, np.array([0])).document.tolist()
    (2, [1, 2])
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        length: int,
        window: int = WINDOW,
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        self.length = whole_number("length", length, minimum=1, unit="token")
        self.lengths = checked_lengths(lengths, np.size(lengths)).astype(np.int64)
        if not self.lengths.any():
            raise PlanError("no document has a token: there is nothing to pack")
        longest = int(self.lengths.max())
        if longest > self.length:
            raise PlanError(
                f"a document of {longest:,} tokens does not fit a sequence of {self.length:,}: "
                "use split=True, or longer sequences"
            )
        filled = np.flatnonzero(self.lengths)  # documents without a token make no piece
        windows = EqualWindows(len(filled), window)
        documents, counts = [], []
        for w in range(windows.count):
            here = filled[windows.positions(w)]
            packed = best_fit(self.lengths[here], self.length)
            documents.append(here[[i for held in packed for i in held]])
            counts += [len(held) for held in packed]
        self._documents, self._ends = np.concatenate(documents), np.cumsum(counts)
        self.total, self.size = int(self.lengths.sum()), len(counts)
        if seed is not None:
            of_window = np.repeat(np.arange(windows.count), [len(each) for each in documents])
            self._class = of_window * (self.length + 1) + self.lengths[self._documents]
            self._by_class = np.argsort(self._class, kind="stable")
            self._placed = Recent(self._place, keep=2)  # a member's pass ends within a batch

    def pieces(self, epoch: int | Indices, sequences: Indices) -> Pieces:
        """Return the pieces of these sequences, in one epoch or each in its own."""
        sequences = np.asarray(sequences, np.int64)
        end = self._ends[sequences]
        begin = np.where(sequences > 0, self._ends[sequences - 1], 0)
        counts = end - begin
        sequence = np.repeat(np.arange(len(sequences)), counts)
        row = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
        document = self._documents[row]
        if self.seed is not None:
            own = np.broadcast_to(epoch, sequences.shape)[sequence]
            for each in np.unique(epoch).tolist():
                document[own == each] = self._placed(each)[row[own == each]]
        sizes = self.lengths[document]
        offset = np.cumsum(sizes) - sizes
        firsts = np.searchsorted(sequence, sequence)
        return Pieces(sequence, offset - offset[firsts], document, np.zeros_like(sizes), sizes)

    def _place(self, epoch: int) -> Indices:
        """Return the documents of all sequences in an epoch, one after the other."""
        base, places = derive_key(self.seed or 0, "documents", epoch), np.arange(len(self._class))
        keys, placed = np.asarray(derive_key(base, places)), np.empty_like(self._documents)
        placed[self._by_class] = self._documents[np.lexsort((keys, self._class))]
        return placed

    def identity(self) -> dict[str, Any]:
        """Return what the meaning of a sequence depends on."""
        return _identity("whole", self)


def _identity(kind: str, packed: FlatTokens | WholeDocuments) -> dict[str, Any]:
    seed = {} if packed.seed is None else {"seed": packed.seed}
    lengths = digest_of(packed.lengths)
    return {"packed": kind, "length": packed.length, "lengths": lengths, **seed}
