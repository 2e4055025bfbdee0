"""Assertions that every loader must pass, also your own: resume, coverage, topology.

They work on any loader with the methods that all of Penstock's have (``iter``, ``len``,
``remaining``, ``state_dict``, ``load_state_dict``, ``close``), and read every batch of an epoch
many times: use a small dataset.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from penstock.loaders.base import Loader


@dataclass(frozen=True)
class _Delivered:
    """One batch, its epoch, and the state and length of the loader after it."""

    batch: Any
    epoch: int
    after: dict[str, Any]
    length: int


def assert_resumes_everywhere(make_loader: Callable[[], Loader], *, epochs: int = 2) -> None:
    """Stop after each batch, restore the state into a new loader, and expect exactly the rest.

    The state is converted to JSON and back each time. Not only the remaining batches must be the
    same, but also the states after each of them, ``len`` and ``remaining``.

    Args:
        make_loader: Returns a new loader at its beginning, each time it is called.
        epochs: How many epochs to read.

    >>> from penstock import ChunkedDataLoader
    >>> assert_resumes_everywhere(lambda: ChunkedDataLoader(torch.arange(9), 2, chunk_size=2))
    """
    with closing(make_loader()) as loader:
        first = _state(loader)
        whole = list(_deliveries(loader, epochs))
    if not whole:
        raise AssertionError("the loader delivers nothing: there is nothing to resume")
    states = [first] + [delivered.after for delivered in whole]
    for done, state in enumerate(states):
        with closing(make_loader()) as loader:
            loader.load_state_dict(state)
            where = f"resumed after {done} of {len(whole)} batches (state {state})"
            _expect(_state(loader) == state, f"{where}, the state reads {_state(loader)}")
            _expect_rest(_deliveries(loader, epochs), whole[done:], where)


def _expect_rest(rest: Iterator[_Delivered], want: Sequence[_Delivered], where: str) -> None:
    found = list(islice(rest, len(want) + 1))
    _expect(
        len(found) >= len(want), f"{where}, only {len(found)} of {len(want)} batches were delivered"
    )
    _expect(len(found) == len(want), f"{where}, more than {len(want)} batches were delivered")
    for number, (came, due) in enumerate(zip(found, want, strict=True)):
        at = f"{where}, batch {number} of the rest"
        same = same_batch(came.batch, due.batch)
        _expect(same, f"{at} differs: expected {due.batch!r}, got {came.batch!r}")
        _expect(came.after == due.after, f"{at} leaves state {came.after}, expected {due.after}")
        _expect(
            came.length == due.length, f"{at} has len(loader) {came.length}, expected {due.length}"
        )


def assert_covers(
    make_loader: Callable[[int, int], Loader],
    samples: int,
    *,
    world_size: int = 1,
    dropped: int = 0,
    epochs: int = 2,
    ids: Callable[[Any], Any] = torch.as_tensor,
) -> None:
    """Expect each sample exactly once per epoch over all ranks, and batches on every rank.

    Args:
        make_loader: Returns the loader of ``(rank, world_size)``, over a dataset whose samples
            contain their number in ``range(samples)``.
        samples: Number of samples of the dataset.
        world_size: Number of ranks; each gets a loader.
        dropped: Number of samples that an epoch leaves out, because of ``drop_last`` or a limit.
        epochs: Number of epochs to read. For evaluation loaders, each iteration is an epoch.
        ids: Returns the numbers of the samples of a batch.

    >>> from penstock import ChunkedDataLoader
    >>> def make(rank, world_size):
    ...     return ChunkedDataLoader(torch.arange(10), 2, rank=rank, world_size=world_size)
    >>> assert_covers(make, 10, world_size=3)
    """
    ranks = [
        _ids_by_epoch(make_loader(rank, world_size), samples, epochs, ids)
        for rank in range(world_size)
    ]
    for epoch in range(epochs):
        batches = [rank[epoch] for rank in ranks]
        counts = [len(mine) for mine in batches]
        _expect(
            len(set(counts)) == 1,
            f"epoch {epoch}: ranks have different numbers of batches: {counts}",
        )
        _expect(all(all(mine) for mine in batches), f"epoch {epoch}: a batch is empty")
        seen = Counter(i for mine in batches for batch in mine for i in batch)
        strange = sorted(i for i in seen if not 0 <= i < samples)
        twice = sorted(i for i, times in seen.items() if times > 1)
        missing = samples - len(seen)
        _expect(not strange, f"epoch {epoch}: samples {strange[:9]} are not in range({samples})")
        _expect(not twice, f"epoch {epoch}: samples {twice[:9]} were delivered more than once")
        _expect(
            missing == dropped,
            f"epoch {epoch}: {missing} samples were not delivered, expected {dropped}: "
            f"{sorted(set(range(samples)) - set(seen))[:9]}",
        )


def assert_topology_free(
    make_loader: Callable[[int, int, int], Loader],
    samples: int,
    *,
    global_batch: int,
    worlds: Iterable[int] = (1, 2, 4),
    ids: Callable[[Any], Any] = torch.as_tensor,
) -> None:
    """Expect the same global batches in the same order for every number of ranks.

    Incomplete steps at the end of an epoch may be divided differently (every rank needs a sample);
    together they must contain the same samples.

    Args:
        make_loader: Returns the loader of ``(rank, world_size, batch_size)``.
        samples: Number of samples of the dataset.
        global_batch: Samples of a step, over all ranks.
        worlds: Numbers of ranks to compare; each must divide ``global_batch``.
        ids: Returns the numbers of the samples of a batch.

    >>> from penstock import ChunkedDataLoader
    >>> def make(rank, world_size, batch_size):
    ...     ranks = {"rank": rank, "world_size": world_size}
    ...     return ChunkedDataLoader(torch.arange(50), batch_size, chunk_size=3, **ranks)
    >>> assert_topology_free(make, 50, global_batch=8)
    """
    control: tuple[int, list[list[int]]] | None = None
    for world in worlds:
        _expect(global_batch % world == 0, f"{world} ranks do not divide {global_batch}")
        ranks = [
            _ids_by_epoch(make_loader(rank, world, global_batch // world), samples, 1, ids)[0]
            for rank in range(world)
        ]
        counts = [len(rank) for rank in ranks]
        _expect(len(set(counts)) == 1, f"{world} ranks have different numbers of batches: {counts}")
        steps = [[*chain(*parts)] for parts in zip(*ranks, strict=True)]
        first, expected = control = control or (world, steps)
        both = list(zip(expected, steps, strict=False))
        whole = [len(one) == len(other) == global_batch for one, other in both]
        tail = [*whole, False].index(False)  # the first step that is not complete on both
        for number, (one, other) in enumerate(both[:tail]):
            at = f"step {number} is {one[:9]} on {first} ranks, {other[:9]} on {world}"
            _expect(one == other, at)
        _expect(
            sorted(chain(*expected[tail:])) == sorted(chain(*steps[tail:])),
            f"the last steps hold other samples on {world} ranks than on {first}",
        )


def same_batch(one: Any, other: Any) -> bool:
    """Return whether two batches are bit-identical: structure, types, shapes and values.

    Args:
        one: A batch.
        other: Another batch.

    >>> same_batch({"x": torch.zeros(2)}, {"x": torch.zeros(2)})
    True
    >>> same_batch([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)])
    False
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(_bits(one), _bits(other))
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool(_raw(one) == _raw(other))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same_batch(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same_batch(a, b) for a, b in pairs)
    return bool(one == other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view as bytes, so that NaN equals NaN; the last axis has the bytes of an element."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().unsqueeze(-1).view(torch.uint8)


def _raw(array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if array.dtype.hasobject else array.tobytes()


def _deliveries(loader: Loader, epochs: int) -> Iterator[_Delivered]:
    """Yield every batch up to the end of epoch ``epochs - 1``."""
    state, repeated = _state(loader), 0
    while (epoch := state["epoch"] + repeated) < epochs:
        start, length, promised, came = state, len(loader), loader.remaining, 0
        for batch in loader:
            state, came = _state(loader), came + 1
            yield _Delivered(batch, epoch, state, len(loader))
            if came < promised:  # after the last batch, len is that of the next chunk
                _expect(len(loader) == length, f"len changed from {length} in mid-chunk ({state})")
        _expect(
            came == promised, f"remaining was {promised} batches, {came} were delivered ({state})"
        )
        _expect(came > 0, f"an iteration delivers nothing ({state})")
        repeated += state == start  # an evaluation loader: each iteration is an epoch


def _ids_by_epoch(
    loader: Loader, samples: int, epochs: int, ids: Callable[[Any], Any]
) -> list[list[list[int]]]:
    """Return the numbers of the samples of every batch, by epoch."""
    found: list[list[list[int]]] = [[] for _ in range(epochs)]
    with closing(loader):
        for delivered in _deliveries(loader, epochs):
            batches = found[delivered.epoch]
            batches.append(np.asarray(ids(delivered.batch)).ravel().tolist())
            _expect(len(batches) <= samples, f"more than {samples} batches, and no end of epoch")
    return found


def _state(loader: Loader) -> dict[str, Any]:
    """Return the state after a conversion to JSON and back, as in a checkpoint."""
    state = loader.state_dict()
    again: dict[str, Any] = json.loads(json.dumps(state))
    _expect(again == state, f"the state changes in JSON: {state} becomes {again}")
    return again


def _expect(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError, also with ``python -O``."""
    if not holds:
        raise AssertionError(otherwise)
