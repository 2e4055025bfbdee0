"""Documents packed into sequences of one length, as a source and as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import LARGEST_SEED, array_of, flag, map_style, shown, whole_number
from penstock.datasets.gather import Reader, SourceDataset, fingerprint_of
from penstock.errors import PlanError
from penstock.fingerprints import digest
from penstock.keyed import current_reading
from penstock.order import Indices
from penstock.order.length_batches import checked_lengths
from penstock.order.packing import FlatTokens, Pieces, WholeDocuments
from penstock.sources import Source, open_source
from penstock.sources.base import BaseSource
from penstock.sources.contract import Arrays, DatasetLike, Field

NAMES: Final = ("tokens", "position_ids", "segment_ids")
DOCUMENT_FIELDS: Final = ("tokens", "input_ids")
AT_ONCE: Final = 1024  # documents that are read together to find their lengths

Read = Callable[[Pieces], npt.NDArray[np.generic]]


def pack(
    data: DatasetLike,
    length: int,
    *,
    lengths: npt.ArrayLike | None = None,
    split: bool = True,
    seed: int | None = None,
) -> PackedTokens:
    """Return documents as sequences of one length, for any loader and as members of a `Mixture`.

    A sequence is a dict: ``tokens`` (0 in padding), ``position_ids`` (from 0 in each piece of
    a document) and ``segment_ids`` (1, 2, ... by piece; 0 is padding), each int64 of ``length``.
    The tokens of a sequence depend only on its index and, with a seed, on its pass; so every token
    occurs once in a pass, and a resume needs no buffer. The shares of a mixture
    are shares of sequences: with ``split=True`` these are shares of tokens, with ``split=False``
    see `PackedTokens.filled`.

    Args:
        data: Documents: a map-style dataset or a source whose samples are rows of tokens (alone,
            or as field ``tokens`` or ``input_ids``); or all tokens one after the other, in an
            array, a source or a file. Or the path of a file.
        length: Tokens of a sequence.
        lengths: Tokens of each document. Without them, tokens that are one after the other are one
            document, and every document of a dataset is read once to find its length.
        split: True: documents end to end, cut every ``length`` tokens; only the last sequence has
            padding. False: documents stay whole, by best fit; longer ones are refused.
        seed: Packs differently in every pass: cuts move, or documents of equal length swap places;
            the number of sequences stays the same. The pass is the epoch, or in a `Mixture` that
            of the member. Without a Penstock loader it is 0. None packs once.

    >>> packed = pack([[1, 2, 3], [4, 5, 6, 7], [8]], length=4)
    >>> len(packed), packed[1]["tokens"].tolist(), packed[1]["segment_ids"].tolist()
    (2, [5, 6, 7, 8], [1, 1, 1, 2])
    """
    length = whole_number("length", length, minimum=1, unit="token")
    split = flag("split", split)
    if isinstance(data, str | PathLike):
        data = open_source(data)
    if lengths is not None:
        lengths = array_of("lengths", lengths)
        lengths = checked_lengths(lengths, lengths.size)
    found, read = _tokens_of(data, lengths)
    if seed is not None:
        seed = whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
    kind = FlatTokens if split else WholeDocuments
    packed = kind(found, length, seed=seed)
    return PackedTokens(data, packed, read)


class PackedTokens(BaseSource, SourceDataset):
    """What `pack` returns: a source and a map-style dataset of sequences.

    Args:
        data: The documents, for the fingerprint and the block size.
        packed: Which pieces of documents make up a sequence.
        read: Returns the tokens of pieces, one after the other.
    """

    def __init__(self, data: Any, packed: FlatTokens | WholeDocuments, read: Read) -> None:
        field = Field((packed.length,), np.dtype(np.int64))
        super().__init__(packed.size, dict.fromkeys(NAMES, field))
        self.packed, self._data, self._tokens = packed, data, read
        self.varies = packed.seed is not None

    @property
    def source(self) -> Source:  # type: ignore[override]
        """This object: it is its own source."""
        return self

    @property
    def filled(self) -> float:
        """The share of tokens that is not padding."""
        return self.packed.total / (self.packed.size * self.packed.length)

    def fingerprint(self) -> str:
        """Identity of the documents and of how they are packed."""
        return digest(self.packed.identity() | {"data": fingerprint_of(self._data)}, [])

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        self._take(np.arange(start, stop), out)

    def _take(self, indices: Indices, out: Arrays) -> None:
        epoch = self._passes(indices) if self.varies else 0
        pieces, length = self.packed.pieces(epoch, indices), self.packed.length
        segment, position = pieces.ids(len(indices), length)
        filled = {"position_ids": position, "segment_ids": segment}
        if "tokens" in out:
            filled["tokens"] = np.zeros((len(indices), length), np.int64)
            # pieces are in the order of sequences, so their tokens are in that of filled places
            filled["tokens"][segment > 0] = self._tokens(pieces)
        for name, rows in out.items():
            np.copyto(rows, filled[name])

    def _passes(self, indices: Indices) -> int | Indices:
        """Return the pass of each sequence that is read."""
        reading = current_reading()
        if reading is None or reading.passes is None:
            return 0 if reading is None else reading.epoch
        if reading.row is not None and len(indices) == 1:
            return int(reading.passes[reading.row])
        if np.array_equal(indices, reading.samples):
            return reading.passes
        raise PlanError(
            "sequences that are packed differently in every pass are read inside of another "
            "source, which does not provide their passes: pass the result of pack to the loader or "
            "the Mixture directly, or leave out its seed"
        )


# -- where tokens are read from


def _tokens_of(data: Any, lengths: npt.NDArray[Any] | None) -> tuple[npt.ArrayLike, Read]:
    """Return the length of each document, and a function that reads pieces of them."""
    if isinstance(data, Source) and not isinstance(data, torch.Tensor | np.ndarray):
        return _tokens_of_source(data, lengths)
    array = data.numpy() if isinstance(data, torch.Tensor) else data
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype != object:
        _check_integers(array.dtype)
        return _flat(array.__getitem__, len(array), lengths)
    size, read = len(map_style("data", data)), partial(_samples, Reader(data))
    if lengths is None:
        parts = (np.arange(a, min(a + AT_ONCE, size)) for a in range(0, size, AT_ONCE))
        lengths = np.array([len(row) for part in parts for row in read(part)], np.int64)
    if len(lengths) != size:
        raise PlanError(f"{len(lengths):,} lengths for {size:,} documents: pass one for each")
    return lengths, partial(_read_documents, read, lengths.astype(np.int64))


def _tokens_of_source(source: Source, lengths: npt.NDArray[Any] | None) -> tuple[Any, Read]:
    names = [name for name in DOCUMENT_FIELDS if name in source.fields] or list(source.fields)
    field = source.fields[names[0]]
    _check_integers(field.dtype)
    if getattr(field, "ragged", False):
        offsets = source.offsets(names[0])  # type: ignore[attr-defined]
        if lengths is not None and not np.array_equal(lengths, np.diff(offsets)):
            raise PlanError("lengths differ from those of the source: leave them out")
        read = partial(_ragged_rows, source, names[0])
        return np.diff(offsets), partial(_read_documents, read, np.diff(offsets))
    if field.shape:
        raise PlanError(
            f"field {names[0]!r} has samples of shape {field.shape}, which are packed already: "
            "pass rows of different lengths, or single tokens with lengths="
        )
    return _flat(partial(_token_range, source, names[0]), len(source), lengths)


def _flat(at: Callable[[slice], Any], total: int, lengths: Any) -> tuple[Any, Read]:
    lengths = np.array([total]) if lengths is None else lengths
    if lengths.sum() != total:
        raise PlanError(
            f"lengths sum to {int(lengths.sum()):,}, but there are {total:,} tokens: "
            "pass the number of tokens of each document"
        )
    return lengths, partial(_read_ranges, at, np.cumsum(lengths) - lengths)


def _check_integers(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise PlanError(f"data must be integer tokens, got {dtype}: tokenize the documents first")


# what reads tokens is a partial of one of these functions, which can be pickled


def _read_ranges(at: Callable[[slice], Any], begins: Indices, pieces: Pieces) -> Any:
    """Return pieces of tokens that are stored one after the other, each run in one operation."""
    start = begins[pieces.document] + pieces.start
    stop = start + pieces.sizes
    new = np.flatnonzero(start[1:] != stop[:-1]) + 1
    runs = pairwise([0, *new.tolist(), len(start)])
    return np.concatenate([at(slice(int(start[a]), int(stop[b - 1]))) for a, b in runs])


def _token_range(source: Source, name: str, part: slice) -> npt.NDArray[np.generic]:
    """Return a slice of a field of single tokens."""
    found = np.empty(part.stop - part.start, source.fields[name].dtype)
    source.read(part.start, part.stop, {name: found})
    return found


def _read_documents(read: Callable[[Indices], Any], lengths: Indices, pieces: Pieces) -> Any:
    """Return pieces of documents; each document of a request is read once."""
    wanted, which = np.unique(pieces.document, return_inverse=True)
    found = read(wanted)
    for document, tokens in zip(wanted.tolist(), found, strict=True):
        if len(tokens) != lengths[document]:
            raise PlanError(
                f"document {document} has {len(tokens):,} tokens, but its length was given as "
                f"{lengths[document]:,}: pass the lengths of these documents"
            )
    spans = zip(which.tolist(), pieces.start.tolist(), pieces.stop.tolist(), strict=True)
    return np.concatenate([found[i][a:b] for i, a, b in spans])


def _ragged_rows(source: Any, name: str, documents: Indices) -> list[npt.NDArray[np.generic]]:
    """Return documents of a ragged field."""
    offsets = source.offsets(name)
    ends = np.cumsum(offsets[documents + 1] - offsets[documents])
    found = np.empty(int(ends[-1]), source.fields[name].dtype)
    source.take(documents, {name: found})
    return np.split(found, ends[:-1])


def _samples(reader: Reader, documents: Indices) -> list[npt.NDArray[np.generic]]:
    """Return documents that are the samples of a map-style dataset."""
    return [_row(sample) for sample in reader.samples(documents.tolist())]


def _row(sample: Any) -> npt.NDArray[np.generic]:
    if isinstance(sample, Mapping):
        named = [sample[name] for name in DOCUMENT_FIELDS if name in sample]
        sample = named[0] if named else next(iter(sample.values())) if len(sample) == 1 else None
    row = np.asarray(sample) if sample is not None else np.empty((0, 0))
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise PlanError(
            "each document of data must be a row of integers, alone or as field 'tokens' or "
            f"'input_ids', got {shown(sample)}"
        )
    return row
