"""Measurements of a dataset or source for `penstock doctor`; `doctor.py` interprets them."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, default_collate

from penstock.errors import PenstockError, first_line, one_line
from penstock.keyed import Reading, announce
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.pass_through import preserve_random_state
from penstock.loaders.stream import StreamLoader
from penstock.loaders.worker_errors import Culprit, twin, unpicklable_part
from penstock.order import BlockOrder
from penstock.order.quality import ShuffleQuality, shuffle_quality
from penstock.order.subset import SelectedBlocks
from penstock.ragged import Ragged
from penstock.sources import Source
from penstock.sources.contract import seams_of
from penstock.sources.ragged_rows import new_buffers, offsets_of
from penstock.tuning.cost import (
    SampleCost,
    attributes,
    cost_of,
    hazards_of,
    long_lists,
    packed,
    unbounded_caches,
)
from penstock.tuning.machine import Machine, this_machine

Values: TypeAlias = npt.NDArray[Any]

MAX_SAMPLES = 4096  # of a dataset that are read ...
MAX_ROWS = 1 << 16  # ... and of a source, within these bytes and seconds
MAX_BYTES = 64 << 20
MAX_SECONDS = 2.0
MIN_SAMPLES = 16  # are read in any case
UNMEASURED = SampleCost(0.0, 0.0, 0, True)


@dataclass(frozen=True)
class Subject:
    """Data to examine, and how it is loaded.

    Args:
        name: The part of the data: "train"; empty if there is only one.
        data: A source, a map-style dataset or an ``IterableDataset``.
        batch_size: Samples in a batch.
        workers: Number of worker processes requested; None if the loader is unknown.
        collate_fn: Makes a batch of samples; None for torch's default.
        loader: The `StreamLoader` of a source; None for one with default settings.
        packed: Fields that are stored packed, and are not decoded.
    """

    name: str
    data: Any
    batch_size: int = 32
    workers: int | None = None
    collate_fn: Any = None
    loader: StreamLoader | None = None
    packed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repeats:
    """What happens if a sample is read again.

    Args:
        same: Two reads of a sample give the same values.
        generators: Global random generators that a read draws from.
        same_in_copies: Two new copies, as in two workers or two epochs, give the same values.
        reused_memory: Reading another sample changes one that was read before.
        changed: The attribute that a read changes in place.
        grown: The attribute that has one more item for each sample read.
    """

    same: bool = True
    generators: tuple[str, ...] = ()
    same_in_copies: bool = True
    reused_memory: bool = False
    changed: str | None = None
    grown: str | None = None


@dataclass(frozen=True)
class Stream:
    """How storage fits the way it is read.

    Args:
        chunk_rows: Samples that are decoded together; 0 if storage is mapped.
        chunk_bytes: Their bytes.
        tiny_chunks: Whether each sample is a small storage chunk of its own.
        cut: Whether samples are patches.
        decoded: Bytes decoded for each byte that is used.
        shuffle: Whether the order is shuffled.
        quality: Quality of a shuffle in blocks; None for any other order.
        budget: Bytes of all buffers.
        needed: Bytes that the buffers take.
        pieces: Rows between two seams, for each piece.
        steps: Rows of a sample.
        refused: Why no stream is possible; empty if one is.
    """

    chunk_rows: int = 0
    chunk_bytes: int = 0
    tiny_chunks: bool = False
    cut: bool = False
    decoded: float = 1.0
    shuffle: bool = True
    quality: ShuffleQuality | None = None
    budget: int = 0
    needed: int = 0
    pieces: tuple[int, ...] = ()
    steps: int = 1
    refused: str = ""


@dataclass(frozen=True)
class Samples:
    """The samples that were read.

    Args:
        indices: Which ones, ascending.
        values: Their values by field: with a row for each sample, or all values in one row where
            samples have different shapes.
        digests: A digest of the inputs of each sample: fields that are more than one number.
        seams: Positions among these samples where one does not continue the one before it.
        sample_bytes: Mean size of a sample.
        problem: The first sample that cannot be used, and why.
        slowest: The sample that took longest, its seconds, and the median of all.
    """

    indices: Values = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Mapping[str, Values] = field(default_factory=dict)
    digests: tuple[bytes, ...] = ()
    seams: frozenset[int] = frozenset()
    sample_bytes: int = 0
    problem: str = ""
    slowest: tuple[int, float, float] = (0, 0.0, 0.0)


@dataclass(frozen=True)
class Examination:
    """Everything that was measured of one part."""

    subject: Subject
    samples: int
    read: Samples = field(default_factory=Samples)
    machine: Machine = field(default_factory=this_machine)
    culprit: Culprit | None = None
    hazards: tuple[tuple[str, str], ...] = ()
    long_lists: tuple[tuple[str, int], ...] = ()
    packed: tuple[str, ...] = ()
    repeats: Repeats = Repeats()
    cost: SampleCost = UNMEASURED
    stream: Stream | None = None
    same_in_workers: bool = False


def examine(subject: Subject) -> Examination:
    """Return what is measured of a part; global random generators stay as they were.

    Args:
        subject: The data.
    """
    with preserve_random_state():
        if isinstance(subject.data, Source):
            return _examine_source(subject, subject.data)
        if isinstance(subject.data, IterableDataset):
            return _examine_iterable(subject)
        return _examine_dataset(subject)


# -- sources


def _examine_source(subject: Subject, source: Source) -> Examination:
    found = Examination(subject, len(source), packed=subject.packed)
    if not len(source):
        return found
    try:
        read = _read_source(source)
    except (PenstockError, OSError) as error:
        read = Samples(problem=f"the source cannot be read: {error}")
    return replace(found, read=read, stream=stream_of(subject, source))


def _read_source(source: Source) -> Samples:
    block = source.block_samples
    row_bytes = max(1, sum(each.nbytes for each in source.fields.values()))
    rows = max(1, min(block, MAX_ROWS, MAX_BYTES // row_bytes))  # of each block
    parts: dict[int, dict[str, list[Values]]] = {}
    begin, read, size = perf_counter(), 0, 0
    for number in np.random.default_rng(0).permutation(-(-len(source) // block)).tolist():
        start = number * block
        stop = min(len(source), start + rows)
        out = new_buffers(source, source.fields, start, stop)
        source.read(start, stop, out)
        parts[start] = {name: _by_sample(source, name, start, stop, out[name]) for name in out}
        read, size = read + stop - start, size + sum(each.nbytes for each in out.values())
        enough = read >= MAX_ROWS or size >= MAX_BYTES
        if enough or perf_counter() - begin > MAX_SECONDS:
            break
    starts = sorted(parts)
    named = {n: [row for s in starts for row in parts[s][n]] for n in source.fields}
    lengths = [len(next(iter(parts[s].values()))) for s in starts]
    indices = np.concatenate(
        [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    ).astype(np.int64)
    seams = np.searchsorted(indices, seams_of(source))
    return _collected(indices, named, seams=frozenset(seams.tolist()))


def _by_sample(source: Source, name: str, start: int, stop: int, out: Values) -> list[Values]:
    if not getattr(source.fields[name], "ragged", False):
        return list(out)
    offsets = offsets_of(source, name)[start : stop + 1]
    return np.split(out, (offsets[1:-1] - offsets[0]).tolist())


def stream_of(subject: Subject, source: Source) -> Stream:
    """Return how the storage of a source fits the loader of a subject; reads no samples."""
    try:
        loader = subject.loader or StreamLoader(source, min(subject.batch_size, len(source)))
    except (PenstockError, TypeError) as error:
        return Stream(refused=str(error))
    try:
        reading = loader.stream_input
        cost = reading.cost(min(loader.block_samples, len(reading.source)))
        order, steps = loader.plan.order, loader.plan.steps
        quality = None
        if loader.shuffle and isinstance(order, BlockOrder | SelectedBlocks):
            quality = shuffle_quality(order, steps.batch, steps.world)
        seams = [0, *seams_of(loader.source), len(loader.source)]
        return Stream(
            chunk_rows=loader.chunk_rows,
            chunk_bytes=reading.chunk_bytes,
            tiny_chunks=reading.has_tiny_chunks,
            cut=reading.is_cut,
            decoded=cost.decoded_bytes / max(1, cost.own_bytes) if reading.decodes else 1.0,
            shuffle=loader.shuffle,
            quality=quality,
            budget=loader.memory_budget,
            needed=loader.buffer_bytes,
            pieces=tuple(np.diff(seams).tolist()),
            steps=loader.steps,
        )
    finally:
        if subject.loader is None:
            loader.close()


# -- datasets


def _examine_iterable(subject: Subject) -> Examination:
    """Read an iterable dataset in two workers, which may both deliver every sample."""
    culprit = unpicklable_part(subject.data, "dataset")
    first = list(islice(iter(subject.data), MIN_SAMPLES))
    found = Examination(
        subject, len(first), culprit=culprit, hazards=tuple(hazards_of(subject.data))
    )
    if not first or culprit is not None:
        return found
    with ChunkedDataLoader(subject.data, 1, collate_fn=_first, num_workers=2) as loader:
        given = [digest_of(flat(each)) for each in islice(loader, 2 * MIN_SAMPLES)]
    return replace(found, same_in_workers=len(set(given)) <= (len(given) + 1) // 2)


def _first(samples: list[Any]) -> Any:
    return samples[0]


def _examine_dataset(subject: Subject) -> Examination:
    data = subject.data
    found = Examination(
        subject,
        len(data),
        culprit=unpicklable_part(data, "dataset"),
        hazards=tuple(hazards_of(data)),
        long_lists=tuple(long_lists(data)),
        packed=tuple(packed(data)),
    )
    if not len(data):
        return found
    # read from copies: files that a read opens must not be shared with workers
    own, other = (twin(data), twin(data)) if found.culprit is None else (data, data)
    before = {name: len(each) for name, each in attributes(own) if isinstance(each, list | dict)}
    try:
        repeats = _repeats(own, other)
        read = _read_dataset(own, subject)
        cost = cost_of(own)
    except Exception as error:  # noqa: BLE001  # of the user's own code: any error is a finding
        return replace(found, read=Samples(problem=f"sample 0 cannot be read: {one_line(error)}"))
    grown = [
        name
        for name, each in attributes(own)
        if isinstance(each, list | dict) and len(each) - before.get(name, 0) >= len(read.indices)
    ]
    grown += [name for name, size in unbounded_caches(own) if size >= len(read.indices)]
    if grown and len(read.indices) >= MIN_SAMPLES:
        repeats = replace(repeats, grown=grown[0])
    return replace(found, read=read, repeats=repeats, cost=cost)


def read_one(dataset: Any, index: int, epoch: int = 0) -> Any:
    """Return a sample as a loader with seed 0 reads it."""
    announce(Reading(0, epoch, np.array([index], np.int64)))
    try:
        return dataset[index]
    finally:
        announce(None)


def _repeats(own: Any, other: Any) -> Repeats:
    index, another = len(own) // 2, len(own) - 1
    arrays = dict(_arrays(own))
    states = _generators()
    first = read_one(own, index)
    digest = digest_of(flat(first))
    moved = tuple(name for name, state in _generators().items() if state != states[name])
    read_one(own, another)
    reused = digest_of(flat(first)) != digest and another != index
    same = digest_of(flat(read_one(own, index))) == digest
    copies = (
        digest_of(flat(read_one(other, index, epoch=1))) == digest if other is not own else True
    )
    changed = next((name for name, crc in _arrays(own) if arrays.get(name, crc) != crc), None)
    return Repeats(same or reused, moved, copies, reused, changed)


def _generators() -> dict[str, bytes]:
    """Return the states of the global random generators by name."""
    numpy: Any = np.random.get_state()  # noqa: NPY002  # whether a dataset uses it is the question
    return {
        "random": repr(random.getstate()).encode(),
        "numpy.random": numpy[1].tobytes() + str(numpy[2:]).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def _arrays(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield name and checksum of each array that a dataset holds in memory."""
    left = MAX_BYTES
    for name, value in attributes(dataset):
        plain = isinstance(value, np.ndarray) and not value.dtype.hasobject
        tensor = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        if (plain or tensor) and value.nbytes <= left:
            left -= value.nbytes
            array = np.ascontiguousarray(value.detach().numpy() if tensor else value)
            yield name, zlib.crc32(array.data)


def _read_dataset(dataset: Any, subject: Subject) -> Samples:
    order = np.random.default_rng(0).permutation(len(dataset))[:MAX_SAMPLES].tolist()
    order = list(dict.fromkeys([0, len(dataset) - 1, *order]))
    rows: dict[int, dict[str, Values]] = {}
    seconds: dict[int, float] = {}
    begin, size, problem = perf_counter(), 0, ""
    for index in order:
        start = perf_counter()
        try:
            sample = read_one(dataset, index)
        except Exception as error:  # noqa: BLE001  # of the user's own code
            problem = f"sample {index} cannot be read: {one_line(error)}"
            break
        seconds[index] = perf_counter() - start
        rows[index] = {name: each.copy() for name, each in flat(sample).items()}
        size += sum(each.nbytes for each in rows[index].values())
        if subject.collate_fn is None and not problem:
            problem = _misfit(index, sample, rows[index], rows[order[0]])
        enough = size >= MAX_BYTES or perf_counter() - begin > MAX_SECONDS
        if problem or (enough and len(rows) >= MIN_SAMPLES):
            break
    if not rows:
        return Samples(problem=problem)
    slowest = max(seconds, key=seconds.__getitem__)
    start = perf_counter()
    read_one(dataset, slowest)  # again: the first time, something else may have had the core
    longest = min(seconds[slowest], perf_counter() - start)
    indices = sorted(rows)
    names = dict.fromkeys(name for each in rows.values() for name in each)
    named = {n: [rows[i][n] for i in indices if n in rows[i]] for n in names}
    found = _collected(np.array(indices, np.int64), named)
    median = float(np.median(list(seconds.values())))
    return replace(found, problem=problem, slowest=(slowest, longest, median))


def _misfit(index: int, sample: Any, row: Mapping[str, Values], first: Mapping[str, Values]) -> str:
    """Return why torch cannot make a batch of a sample and the first one; empty if it can."""
    for name, value in arrays_by_name(sample):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            label = f"field {name!r} of " if name else ""
            return f"{label}sample {index} requires grad, so no worker can send it: detach() it"
    if row.keys() != first.keys():
        return (
            f"sample {index} has fields {sorted(row)}, sample 0 has {sorted(first)}: give all "
            "samples the same fields, or pass a collate_fn"
        )
    for name, value in row.items():
        if value.shape != first[name].shape:
            label = f"field {name!r} of " if name else ""
            return (
                f"{label}sample {index} has shape {value.shape}, sample 0 has shape "
                f"{first[name].shape}: pad them, or pass a collate_fn"
            )
    if index == 0:
        try:
            default_collate([sample, sample])
        except (TypeError, RuntimeError) as error:
            return f"torch makes no batch of sample 0 ({first_line(error)}): pass a collate_fn"
    return ""


# -- samples as arrays


def arrays_by_name(sample: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield arrays and numbers of a sample by name; "0", "1" for those of a tuple."""
    if isinstance(sample, Mapping):
        for key, each in sample.items():
            yield from arrays_by_name(each, f"{name}.{key}".lstrip("."))
    elif isinstance(sample, list | tuple):
        for number, each in enumerate(sample):
            yield from arrays_by_name(each, f"{name}.{number}".lstrip("."))
    elif isinstance(sample, Ragged):
        yield name, sample.values
    elif isinstance(sample, torch.Tensor | np.ndarray | np.generic | bool | int | float):
        yield name, sample


def flat(sample: Any) -> dict[str, Values]:
    """Return the arrays of a sample by name, as numpy arrays over the same memory.

    >>> {name: each.tolist() for name, each in flat((torch.ones(2), {"y": 3})).items()}
    {'0': [1.0, 1.0], '1.y': 3}
    """
    found = {}
    for name, value in arrays_by_name(sample):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype == torch.bfloat16 else value
            found[name] = value.numpy() if value.layout == torch.strided else np.zeros(0)
        elif not isinstance(value, np.ndarray) or not value.dtype.hasobject:
            found[name] = np.asarray(value)
    return found


def digest_of(row: Mapping[str, Values]) -> bytes:
    """Return a digest of all values of a sample."""
    digest = hashlib.blake2b(digest_size=12)
    for name, value in row.items():
        digest.update(f"{name}{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.digest()


def _collected(
    indices: Values, named: Mapping[str, list[Values]], seams: frozenset[int] = frozenset()
) -> Samples:
    values = {}
    for name, rows in named.items():
        if len({(row.shape, row.dtype) for row in rows}) == 1:
            values[name] = np.stack(rows)
        else:
            values[name] = np.concatenate([row.reshape(-1) for row in rows])[None]
    inputs = [name for name, rows in named.items() if any(row.size > 1 for row in rows)]
    complete = [rows for rows in named.values() if len(rows) == len(indices)]
    digests = [
        digest_of({name: named[name][i] for name in inputs})
        for i in range(len(indices))
        if inputs and len(complete) == len(named) and _varies([named[n][i] for n in inputs])
    ]
    size = sum(row.nbytes for rows in named.values() for row in rows) // max(1, len(indices))
    return Samples(indices, values, tuple(digests), seams, size)


def _varies(arrays: Sequence[Values]) -> bool:
    """Return whether a sample has different values: equal blank samples are not copies."""
    return any(each.size > 3 and bool((each != each.flat[0]).any()) for each in arrays)
