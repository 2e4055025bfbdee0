"""Several datasets in fixed shares, and the classes of one dataset in equal shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Self, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, default_collate

from penstock.arguments import (
    a_path,
    array_of,
    map_style,
    mapping,
    real_number,
    shown,
    text,
    whole_number,
)
from penstock.datasets.gather import BatchedDataset, Reader, SourceDataset, by_index, fingerprint_of
from penstock.errors import PlanError, SourceError
from penstock.fingerprints import digest, row_bytes
from penstock.keyed import renumbered
from penstock.order import Indices, Order, SequentialOrder, ShuffledOrder, derive_key
from penstock.order.mixed_blocks import MixedBlocks
from penstock.order.mixture import MixtureOrder, Stage, flat_stages, shortest_counts
from penstock.order.permutation import LARGEST
from penstock.registry import unknown_name
from penstock.sources import Source, concatenate, open_source
from penstock.sources.contract import SourceLike

Weights = Mapping[str, float] | Sequence[float] | npt.NDArray[Any] | torch.Tensor | None


class Mixture(BatchedDataset):
    """Several datasets, mixed in fixed shares by the loader that reads them.

    Each member is delivered in full, in its own shuffle, before any of its samples repeats, also
    across epochs. Shares are exact within a short cycle of rows, so practically in every batch.
    As a dataset it is the members one after the other; the shares are those of the order that a
    loader makes for it: `ChunkedDataLoader`, or `StreamLoader` if all members are sources, arrays
    or paths. A member may be a `Mixture` itself.

    Args:
        members: By name: sources, map-style datasets, or paths of what `open_source` opens.
        weights: The share of each member, by name; only the ratios matter. None for shares in
            proportion to the numbers of samples.
        until: Samples of an epoch. ``"first"``: as many as deliver no member more than once;
            ``"all"``: as many as deliver each member at least once; or a number. No sample is ever
            lost: the next epoch continues where this one ended in every member.
        label: Name of a field with the number of each sample's member, which is added to samples
            that are dicts; other samples become ``(sample, number)``. None to add nothing: then
            ``mixture.locate(loader.samples_at(step))`` returns where samples come from.

    >>> web, code = torch.arange(100), torch.arange(100, 130)
    >>> mixture = Mixture({"web": web, "code": code}, weights={"web": 0.7, "code": 0.3})
    >>> len(mixture), mixture.shares
    (130, {'web': 0.7, 'code': 0.3})
    >>> mixture.locate([5, 105])
    [('web', 5), ('code', 5)]
    """

    def __init__(
        self,
        members: Mapping[str, Any],
        weights: Weights = None,
        *,
        until: str | int = "first",
        label: str | None = None,
    ) -> None:
        given = mapping("members", members)
        if not given:
            raise PlanError("members must be at least one dataset by name, got none")
        self.members = {name: _opened(name, member) for name, member in given.items()}
        self._reader = Reader(JoinedDataset(list(self.members.values())))
        self._first = np.cumsum([0, *map(len, self.members.values())])
        for name, member in self.members.items():
            if not len(member):
                raise PlanError(f"member {name!r} of the mixture has no samples: leave it out")
        self.label = None if label is None else text("label", label)
        if not isinstance(until, str):
            until = whole_number("until", until, minimum=1, maximum=LARGEST, unit="sample")
        self.until = until
        self._stages: list[Stage] = [(0, self._counts(weights))]
        self.make_order(0)  # an invalid `until` is refused here

    def _counts(self, weights: Weights) -> tuple[int, ...]:
        """Return the rows of each member in a cycle."""
        if weights is None:
            weights = [len(member) for member in self.members.values()]
        elif isinstance(weights, Mapping):
            for name in weights:
                if name not in self.members:
                    raise PlanError(unknown_name("member of the mixture", name, self.members))
            missing = [name for name in self.members if name not in weights]
            if missing:
                raise PlanError(f"weights has no weight for member {missing[0]!r}: add one, or 0")
            weights = [weights[name] for name in self.members]
        elif isinstance(weights, np.ndarray | torch.Tensor) and weights.ndim == 1:
            weights = weights.tolist()
        elif isinstance(weights, str) or not isinstance(weights, Sequence):
            raise PlanError(f"weights must be one number per member, got {shown(weights)}")
        if len(weights) != len(self.members):
            raise PlanError(f"{len(weights)} weights for {len(self.members)} members")
        return shortest_counts([_weight(each) for each in weights])

    # -- shares and stages

    def then(self, at: int, weights: Weights) -> Self:
        """Change the weights from a place on, also in a running job; return this mixture.

        Nothing before the place changes, and nothing is lost or repeated. The stage begins with
        the first whole cycle at or after the place.

        Args:
            at: Samples delivered before the change, counted over all ranks and epochs.
            weights: The share of each member from there on.

        >>> mixture = Mixture({"a": torch.arange(9), "b": torch.arange(9)}, weights=[1, 1])
        >>> mixture.then(at=40, weights=[2, 1]).stages
        [(0, (1, 1)), (40, (2, 1))]
        """
        at = whole_number("at", at, minimum=0, maximum=LARGEST, unit="sample")
        if at < self._stages[-1][0]:
            raise PlanError(
                f"at must be {self._stages[-1][0]} or more, got {at}: stages are in order"
            )
        counts = self._counts(weights)
        self._stages = [*(stage for stage in self._stages if stage[0] < at), (at, counts)]
        return self

    @property
    def stages(self) -> list[Stage]:
        """The place at which each stage was requested, and its rows per member in a cycle."""
        return list(self._stages)

    @property
    def all_stages(self) -> list[Any]:
        """The stages of this mixture, and those of members that are mixtures."""
        return [self.stages, *(m.all_stages for m in self.members.values() if _is_mixed(m))]

    @property
    def shares(self) -> dict[str, float]:
        """The share of each member in the first stage, by name."""
        counts = self._stages[0][1]
        return {name: c / sum(counts) for name, c in zip(self.members, counts, strict=True)}

    def __repr__(self) -> str:
        return f"<Mixture of {len(self):,} samples: shares {self.shares}>"

    def locate(self, indices: npt.ArrayLike) -> list[tuple[str, int]]:
        """Return the member of each sample of the mixture, and its index in that member.

        Args:
            indices: Samples, as ``loader.samples_at(step)`` returns them.
        """
        member, inner = self._inner(np.atleast_1d(array_of("indices", indices)))
        names = list(self.members)
        return [(names[i], j) for i, j in zip(member.tolist(), inner.tolist(), strict=True)]

    def _inner(self, indices: Indices) -> tuple[Indices, Indices]:
        indices = indices if indices.size else indices.astype(np.int64)
        if indices.dtype.kind not in "iu" or (
            indices.size and (indices.min() < 0 or indices.max() >= len(self))
        ):
            raise PlanError(f"indices must be in [0, {len(self)}), got {shown(indices)}")
        member = np.searchsorted(self._first, indices, side="right") - 1
        return member, indices - self._first[member]

    def make_order(
        self, seed: int, *, shuffle: bool = True, until: int | None = None
    ) -> MixtureOrder:
        """Return the order of a loader that reads this mixture.

        Args:
            seed: Seed of the cycles and of the members' shuffles.
            shuffle: False for members in storage order.
            until: Samples of an epoch, instead of those of the mixture.
        """
        orders: list[Order] = []
        for i, member in enumerate(self.members.values()):
            key = derive_key(seed, "member", i)
            if isinstance(member, Mixture):
                orders.append(member.make_order(key, shuffle=shuffle))
            else:
                orders.append((ShuffledOrder if shuffle else SequentialOrder)(len(member), key))
        make, size = partial(MixtureOrder, orders, seed=seed), until or self.until
        if isinstance(size, str):  # an epoch is as long as the first stage makes it
            size = make(stages=self._stages[:1], until=size).size
        return make(stages=self._stages, until=size)

    # -- from storage

    @property
    def is_stored(self) -> bool:
        """Whether all members are sources, which `StreamLoader` reads in blocks."""
        members = self.members.values()
        return all(m.is_stored if _is_mixed(m) else isinstance(m, SourceDataset) for m in members)

    def joined_source(self) -> Source:
        """Return the members as one source, for `StreamLoader`."""
        if self.label is not None:
            raise PlanError(
                f"label={self.label!r} of a Mixture is for ChunkedDataLoader: leave it out, and "
                "call mixture.locate(loader.samples_at(step))"
            )
        return concatenate([_source_of(n, member) for n, member in self.members.items()])

    @property
    def starts(self) -> Indices:
        """The first sample of each stored member, also of the members of a mixture."""
        inner = [m.starts if _is_mixed(m) else np.zeros(1, int) for m in self.members.values()]
        firsts = zip(self._first.tolist(), inner, strict=False)
        return np.concatenate([first + each for first, each in firsts])

    def block_order(
        self, seed: int, block: int, window: int, lanes: int, until: int | None = None
    ) -> MixedBlocks:
        """Return the order of a loader that reads the members in blocks.

        The members of a mixture in this one are mixed directly, in the same shares.

        Args:
            seed: Seed of all shuffles.
            block: Samples per block.
            window: Blocks that a lane holds, over all members.
            lanes: Independent readers.
            until: Samples of an epoch, instead of those of the mixture.
        """
        sizes = np.diff(self.starts, append=len(self)).tolist()
        size = until or self.until
        return MixedBlocks(sizes, self._flat_stages(), seed, block, window, lanes, size)

    def _flat_stages(self) -> list[Stage]:
        """Return the stages of a mixture of all stored members."""
        inner = [m._flat_stages() if _is_mixed(m) else None for m in self.members.values()]
        return flat_stages(self._stages, inner)

    # -- samples

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices."""
        places = self._places(indices)
        samples = self._reader.samples(places.tolist())
        if self.label is None:
            return samples
        members = self._inner(places)[0].tolist()
        return [self._labelled(s, m) for s, m in zip(samples, members, strict=True)]

    @property
    def gathers(self) -> bool:
        """Whether a batch is read in few operations: true if that holds for every member."""
        return self._reader.gathers

    def __getbatch__(self, indices: Indices) -> Any:
        """Return the collated batch of these indices."""
        batch = self._reader.batch(indices)
        if self.label is None:
            return batch
        return self._labelled(batch, torch.from_numpy(self._inner(indices)[0]))

    def _labelled(self, sample: Any, member: Any) -> Any:
        if isinstance(sample, Mapping):
            return {**sample, self.label: member}
        return [sample, member] if isinstance(member, torch.Tensor) else (sample, member)

    def fingerprint(self) -> str | None:
        """Identity of the members' data; None if that of a member is unknown."""
        data = self._reader.dataset
        if isinstance(data, Subset):  # classes of one dataset
            found, parts = {"": fingerprint_of(data.dataset)}, [row_bytes(np.asarray(data.indices))]
        else:
            found, parts = {n: fingerprint_of(member) for n, member in self.members.items()}, []
        return None if None in found.values() else digest(found, parts)


class JoinedDataset(BatchedDataset):
    """Datasets one after the other, read with one operation per dataset.

    Args:
        parts: Map-style datasets.

    >>> JoinedDataset([torch.arange(3), torch.arange(10, 12)]).__getbatch__(np.array([4, 0]))
    tensor([11,  0])
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._readers = [Reader(part) for part in parts]
        self._first = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices."""
        found: list[Any] = [None] * len(indices)
        for part, rows, inner in self._parts(np.array(indices, np.int64)):
            with renumbered(rows, inner, len(indices)):
                samples = part.samples(inner.tolist())
            for row, sample in zip(rows.tolist(), samples, strict=True):
                found[row] = sample
        return found

    @property
    def gathers(self) -> bool:
        """Whether every part reads a batch in one operation."""
        return all(reader.gathers for reader in self._readers)

    def __getbatch__(self, indices: Indices) -> Any:
        """Return the collated batch of these indices."""
        if not self.gathers:
            return default_collate(self.__getitems__(indices.tolist()))
        found = []
        for part, rows, inner in self._parts(indices):
            with renumbered(rows, inner, len(indices)):
                found.append((rows, part.batch(inner)))
        if len(found) == 1:
            return found[0][1]
        order = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in found])))
        return _join([batch for _, batch in found], order)

    def _parts(self, indices: Indices) -> list[tuple[Reader, Indices, Indices]]:
        part = np.searchsorted(self._first, indices, side="right") - 1
        chosen = [(i, np.flatnonzero(part == i)) for i in np.unique(part).tolist()]
        return [(self._readers[i], rows, indices[rows] - self._first[i]) for i, rows in chosen]


def _join(batches: list[Any], order: torch.Tensor) -> Any:
    """Return collated batches as one, its rows in the given order."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches)[order]
    if isinstance(first, Mapping):
        if any(each.keys() != first.keys() for each in batches):
            names = [sorted(map(str, each)) for each in batches]
            raise PlanError(f"members of a mixture need the same fields, got {names[0]} and others")
        return {name: _join([each[name] for each in batches], order) for name in first}
    if isinstance(first, list | tuple):
        return [_join(list(each), order) for each in zip(*batches, strict=True)]
    rows = [row for each in batches for row in each]  # a batch type with rows of its own
    return [rows[i] for i in order.tolist()]


def balanced(data: SourceLike, labels: npt.ArrayLike, *, until: str | int = "first") -> Mixture:
    """Return a mixture of the classes of a dataset, in equal shares.

    Each class is delivered in full before it repeats. Members have the names of the classes.

    Args:
        data: A map-style dataset, a source, or a path.
        labels: The class of each sample: numbers or strings.
        until: Samples of an epoch, as in `Mixture`.

    >>> mixture = balanced(torch.arange(6), ["cat", "dog", "cat", "cat", "cat", "dog"])
    >>> mixture.shares, [mixture[i].item() for i in range(6)]
    ({'cat': 0.5, 'dog': 0.5}, [0, 2, 3, 4, 1, 5])
    """
    dataset = _opened("data", data)
    classes = array_of("labels", labels)
    if classes.shape != (len(dataset),):
        raise PlanError(
            f"labels must be one class per sample, shape ({len(dataset)},), got {classes.shape}"
        )
    if not len(classes):
        raise PlanError("cannot balance the classes of 0 samples: the dataset is empty")
    names, which = np.unique(classes, return_inverse=True)
    parts = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    by_name = {str(name): part for name, part in zip(names, parts, strict=True)}
    return _of_parts(dataset, by_name, [1] * len(parts), until)


def prioritized(
    data: Any,
    parts: Mapping[str, Any],
    weights: Weights,
    *,
    cover_within_epochs: int | None = None,
) -> Mixture:
    """Return a mixture of parts of one dataset; an epoch has as many samples as the dataset.

    Args:
        data: A map-style dataset, a source, or a path.
        parts: By name: samples ``[start, stop]``, or the path of a ``.npy`` file of indices; one
            may be None, the rest. Every sample must be in exactly one part.
        weights: The share of each part, by name.
        cover_within_epochs: Refuse weights with which some sample is not delivered within this
            number of epochs; None to accept any.

    >>> mixture = prioritized(torch.arange(9), {"hard": [0, 3], "rest": None}, [1, 1])
    >>> mixture.shares, mixture.until
    ({'hard': 0.5, 'rest': 0.5}, 9)
    """
    dataset = _opened("data", data)
    size, given = len(dataset), mapping("parts", parts)
    rows = {n: _rows_of(n, part, size) for n, part in given.items() if part is not None}
    times = np.bincount(np.concatenate([np.empty(0, np.int64), *rows.values()]), minlength=size)
    rests = [name for name, part in given.items() if part is None]
    if len(rests) > 1 or times.max() > 1 or (times.min() == 0 and not rests):
        raise PlanError(
            f"parts must have each of {size:,} samples once, but {np.sum(times > 1):,} are in "
            f"several and {np.sum(times == 0):,} in none: change them; one part may be the rest"
        )
    rows |= {name: np.flatnonzero(times == 0) for name in rests}
    mixture = _of_parts(dataset, {name: rows[name] for name in given}, weights, size)
    if cover_within_epochs is not None:
        epochs = whole_number("cover_within_epochs", cover_within_epochs, minimum=1, unit="epoch")
        counts = mixture.stages[0][1]
        cycles = epochs * size // sum(counts)
        for (name, part), count in zip(mixture.members.items(), counts, strict=True):
            if count * cycles < len(part):
                raise PlanError(
                    f"part {name!r} of {len(part):,} samples gets {count * cycles:,} places in "
                    f"{epochs} epochs of {size:,}: raise its weight, or cover_within_epochs"
                )
    return mixture


def _rows_of(name: str, part: Any, size: int) -> Indices:
    if isinstance(part, str | PathLike):
        part = np.load(a_path(f"parts[{name!r}]", part), allow_pickle=False)
    elif isinstance(part, Sequence) and len(part) == 2:
        start, stop = (whole_number(f"parts[{name!r}]", each, minimum=0) for each in part)
        part = np.arange(start, min(stop, size + 1))
    rows = array_of(f"parts[{name!r}]", part)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or (rows.size and rows.max() >= size):
        raise PlanError(f"parts[{name!r}] must be samples of {size:,}, got {shown(part)}")
    return rows.astype(np.int64)


def _of_parts(
    dataset: Any, parts: Mapping[str, Any], weights: Weights, until: str | int
) -> Mixture:
    """Return a mixture of samples of one dataset, which is read in one operation."""
    rows: Any = np.concatenate(list(parts.values()))  # Subset takes arrays: 8 bytes per index
    members = {name: Subset(dataset, part) for name, part in parts.items()}
    mixture = Mixture(members, weights, until=until)
    mixture._reader = Reader(Subset(dataset, rows))
    return mixture


def _is_mixed(member: Any) -> TypeGuard[Mixture]:
    return isinstance(member, Mixture)


def mixture_of(dataset: Any) -> Mixture | None:
    """Return the mixture that a dataset is, or wraps sample by sample; None for others."""
    inner = dataset
    while inner is not None and not isinstance(inner, Mixture):
        inner = getattr(inner, "base_dataset", getattr(inner, "dataset", None))
    if inner is not None and len(inner) != len(dataset):
        raise PlanError(
            "a subset of a Mixture has no shares: take the subset of each member, and mix those"
        )
    return inner


def _opened(name: str, member: Any) -> Any:
    """Return a member as a map-style dataset."""
    if isinstance(member, str | PathLike):
        member = open_source(member)
    return map_style(f"member {name!r}", by_index(member))


def _source_of(name: str, member: Any) -> Source:
    """Return a member as a source, to be read in blocks."""
    if isinstance(member, Mixture):
        return member.joined_source()
    if isinstance(member, SourceDataset):
        return member.source
    if isinstance(member, torch.Tensor | np.ndarray):
        return open_source(member)
    # a class of `balanced`: `select` numbers samples in storage order, so they must ascend
    if isinstance(member, Subset) and np.all(np.diff(member.indices) > 0):
        return open_source(_source_of(name, member.dataset)).select(member.indices)
    raise SourceError(
        f"StreamLoader reads storage block by block, and member {name!r} of the mixture is a "
        f"{type(member).__name__}: use ChunkedDataLoader(mixture, batch_size), or make it a source"
    )


def _weight(value: Any) -> float | int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return whole_number("each of weights", value, minimum=0)
    return real_number("each of weights", value, minimum=0)
