"""Read a batch of a map-style dataset in as few operations as possible."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from penstock.arguments import map_style
from penstock.errors import BatchError
from penstock.fingerprints import sampled_blocks, short_digest
from penstock.keyed import announced, current_reading, renumbered
from penstock.metrics import Probe
from penstock.order import Indices
from penstock.order.permutation import Keys
from penstock.sources import ComposedSource, Source
from penstock.streaming.ragged import batch_of
from penstock.transforms import Transform

Gather: TypeAlias = Callable[[Indices], Any]

SAMPLED_ROWS = 8  # of an array in memory, for its fingerprint


def gather_of(dataset: Any) -> Gather | None:
    """Return a function that reads a batch at once, as torch's default collation forms it.

    It supports tensors, arrays, ``TensorDataset``, subsets of these, and any dataset with a method
    ``__getbatch__(indices)`` (whose ``gathers`` is not False). Returns None for others, including
    tensor subclasses, for which torch returns whatever their samples stack to.

    >>> gather_of(torch.arange(10) * 2)(np.array([3, 1]))
    tensor([6, 2])
    """
    own = getattr(dataset, "__getbatch__", None)
    if own is not None:
        # a dataset that wraps another one gathers if that one does
        gathers = getattr(dataset, "gathers", True) and not _samples_are_its_own(type(dataset))
        return own if gathers else None
    if _is_plain(dataset):
        return partial(_take, dataset)
    if type(dataset) in (np.ndarray, np.memmap):
        plain = dataset.ndim and dataset.dtype.kind in "biufc" and dataset.dtype.isnative
        return partial(_take_array, dataset) if plain else None
    if hasattr(dataset, "__getitems__") and type(dataset) is not Subset:
        return None
    if getattr(type(dataset), "__getitem__", None) is TensorDataset.__getitem__:
        return partial(_take_tensors, dataset) if all(map(_is_plain, dataset.tensors)) else None
    if type(dataset) is Subset and (inner := gather_of(dataset.dataset)) is not None:
        return _GatherSubset(inner, dataset)
    return None


def parts_of(dataset: Any) -> tuple[Any, ...]:
    """Return the objects that a dataset of torch reads from; each may be replaced by the user."""
    if isinstance(dataset, Subset):
        return (dataset.dataset, dataset.indices, *parts_of(dataset.dataset))
    return tuple(dataset.tensors) if isinstance(dataset, TensorDataset) else ()


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _samples_are_its_own(kind: type) -> bool:
    """Return whether a subclass overrides ``__getitem__`` but inherits ``__getbatch__``."""
    # the method nearest to the class decides: what overrides samples must not be bypassed
    for each in kind.__mro__:
        if "__getbatch__" in vars(each):
            return False
        if "__getitem__" in vars(each):
            return True
    return False


def _take(tensor: torch.Tensor, indices: Indices) -> torch.Tensor:
    try:
        array = tensor.numpy()  # refuses what requires grad, is elsewhere, or has torch's own type
    except (RuntimeError, TypeError):
        return tensor.index_select(0, torch.from_numpy(indices).to(tensor.device))
    # in the caller's thread: torch's own threads wait for each other on shared cores, for
    # milliseconds per batch. The array is not kept: torch may move a tensor's memory (to share it
    # with workers), and the array would then refer to freed memory.
    return torch.from_numpy(np.take(array, indices, axis=0))


def _take_array(array: np.ndarray[Any, Any], indices: Indices) -> torch.Tensor:
    return torch.from_numpy(np.take(array, indices, axis=0))


def _take_tensors(dataset: TensorDataset, indices: Indices) -> list[torch.Tensor]:
    # of the dataset each time: its tensors may be replaced
    return [_take(tensor, indices) for tensor in dataset.tensors]


class _GatherSubset:
    def __init__(self, gather: Gather, dataset: Subset[Any]) -> None:
        # an array once, not at every batch: converting millions takes longer than the read
        self.gather, self.dataset, self.indices = gather, dataset, dataset.indices
        self.members = np.asarray(dataset.indices, np.int64)

    def __call__(self, indices: Indices) -> Any:
        if self.dataset.indices is not self.indices:
            self.indices = self.dataset.indices
            self.members = np.asarray(self.indices, np.int64)
        inner = self.members[indices]
        with renumbered(np.arange(len(inner)), inner, len(inner)):
            return self.gather(inner)


def fingerprint_of(dataset: Any) -> str | None:
    """Return the identity of the data if it is cheap: its own, or that of tensors in memory.

    >>> fingerprint_of(torch.zeros(4)) == fingerprint_of(torch.ones(4))
    False
    """
    own = getattr(dataset, "fingerprint", None)
    if callable(own):
        value = own()
        return None if value is None else str(value)
    if isinstance(dataset, torch.Tensor | np.ndarray | TensorDataset):
        # a few rows are enough to detect regenerated data, however large it is
        arrays = dataset.tensors if isinstance(dataset, TensorDataset) else [dataset]
        return short_digest(_array_parts(arrays))
    return None


def _array_parts(arrays: Iterable[Any]) -> Iterator[bytes]:
    """Yield shape, dtype and a few rows of each array."""
    for array in arrays:
        yield repr((tuple(array.shape), str(array.dtype))).encode()
        yield from (_row_bytes(array[row]) for row in sampled_blocks(len(array), SAMPLED_ROWS))


def _row_bytes(row: Any) -> bytes:
    if isinstance(row, torch.Tensor):  # viewed as bytes, because numpy has no bfloat16
        return row.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    row = np.asarray(row)
    return b"" if row.dtype.hasobject else row.tobytes()  # of objects: addresses, new every time


class Reader:
    """Reads any map-style dataset, in as few operations as it allows.

    >>> Reader(torch.arange(10)).batch(np.array([3, 1]))
    tensor([3, 1])
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset}  # the gather is found again in the process that gets this

    @cached_property
    def _gather(self) -> Gather | None:
        return gather_of(self.dataset)

    @property
    def gathers(self) -> bool:
        """Whether the dataset reads a batch in one operation."""
        return self._gather is not None

    def samples(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices, by ``__getitems__`` if the dataset has it."""
        data = self.dataset
        if type(data) is Subset:  # an inner dataset may ask for the pass of an index of its own
            inner = [int(data.indices[index]) for index in indices]
            with renumbered(np.arange(len(inner)), np.array(inner, np.int64), len(inner)):
                return Reader(data.dataset).samples(inner)
        batched = getattr(data, "__getitems__", None)
        if batched is not None:
            return list(batched(announced(indices)))
        return [data[index] for index in announced(indices)]

    def batch(self, indices: Indices) -> Any:
        """Return the batch of these indices, as torch's default collation forms it."""
        if self._gather is not None:
            return self._gather(indices)
        return default_collate(self.samples(indices.tolist()))


class BatchedDataset(Dataset[Any]):
    """A dataset whose samples are read together, by ``__getitems__``."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    @abstractmethod
    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices, read together."""

    def _places(self, indices: list[int]) -> Indices:
        """Return indices counted from 0; refuse those out of range."""
        size = len(self)  # type: ignore[arg-type]
        if any(not -size <= index < size for index in indices):
            raise IndexError(f"index out of range({size})")
        return np.array(indices, np.int64) % size


class SourceDataset(BatchedDataset):
    """The samples of a source by index.

    A source with one unnamed array gives tensors, one with named fields gives a dict of tensors.

    Args:
        source: Where the samples are stored.

    >>> from penstock.sources import MemorySource
    >>> SourceDataset(MemorySource(np.arange(10))).__getbatch__(np.array([7, 2]))
    tensor([7, 2])
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices, read together."""
        batch = self.__getbatch__(self._places(indices))
        if isinstance(batch, Mapping):
            rows = {
                n: each if each.layout == torch.strided else each.to_dense()
                for n, each in batch.items()
            }
            return [{name: each[i] for name, each in rows.items()} for i in range(len(indices))]
        return list(batch)

    def __getbatch__(self, indices: Indices) -> Any:
        """Return the collated batch of these indices."""
        source, reading = self.source, current_reading()
        if reading is not None and isinstance(source, ComposedSource):
            source = source.drawn(reading.seed, reading.epoch)  # its random patches
        batch = batch_of(source, indices)
        return batch[""] if list(batch) == [""] else batch

    def fingerprint(self) -> str:
        """Identity of the data."""
        return self.source.fingerprint()


def by_index(dataset: Any) -> Any:
    """Return a dataset as it is, and a source as the dataset of its samples."""
    if isinstance(dataset, Source) and not hasattr(dataset, "__getitem__"):
        return SourceDataset(dataset)
    return dataset


class TransformedDataset(BatchedDataset):
    """The samples of a dataset with their first field transformed.

    A subclass sets `transform` and overrides `_keys` where it draws random numbers, and `_members`
    where it has other indices than the base dataset.
    """

    transform: Transform

    def __init__(self, base_dataset: Any) -> None:
        self.base_dataset = map_style("base_dataset", base_dataset)
        self._reader = Reader(base_dataset)

    @property
    def training(self) -> bool:
        """Whether samples are transformed."""
        return True

    def _members(self, indices: Indices) -> Indices:
        """Return the indices in the base dataset."""
        return indices

    def _keys(self, indices: Indices) -> Keys:
        """Return the key of each sample's random draws."""
        return np.zeros(len(indices), np.uint64)

    def __len__(self) -> int:
        return len(self.base_dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the samples of these indices, transformed together."""
        places = self._places(indices)
        samples = self._reader.samples(self._members(places).tolist())
        if not self.training or not samples:
            return samples
        with Probe("transform"):
            return transform_samples(samples, self.transform, self._keys(places))

    @property
    def gathers(self) -> bool:
        """Whether a batch is one operation: not if the base dataset reads sample by sample."""
        return self._reader.gathers

    def __getbatch__(self, indices: Indices) -> Any:
        """Return the collated batch of these indices."""
        batch = self._reader.batch(self._members(indices))
        if not self.training:
            return batch
        with Probe("transform"):
            return transform_batch(batch, self.transform, self._keys(indices))

    def fingerprint(self) -> str | None:
        """Identity of the base dataset's data."""
        return fingerprint_of(self.base_dataset)


def transform_batch(batch: Any, transform: Transform, keys: Keys) -> Any:
    """Return a collated batch with its first field (or itself, if one tensor) transformed."""
    if isinstance(batch, torch.Tensor):
        return transform.batch(batch, keys)
    return [transform.batch(first_field(batch), keys), *batch[1:]]


def transform_samples(samples: list[Any], transform: Transform, keys: Keys) -> list[Any]:
    """Return samples with their first field transformed, together if they have one shape."""
    fields = [first_field(sample) for sample in samples]
    if len({(field.shape, field.dtype) for field in fields}) == 1:
        changed = list(transform.batch(torch.stack(fields), keys))
    else:
        pairs = zip(fields, keys, strict=True)
        changed = [transform.batch(x.unsqueeze(0), np.array([key]))[0] for x, key in pairs]
    return [
        (x, *sample[1:]) if isinstance(sample, tuple | list) else x
        for sample, x in zip(samples, changed, strict=True)
    ]


def first_field(sample: Any) -> torch.Tensor:
    """Return the first field of a sample, or the sample itself if it is a tensor or array."""
    if isinstance(sample, tuple | list) and sample:
        sample = sample[0]
    if not isinstance(sample, torch.Tensor | np.ndarray):
        raise BatchError(
            "a sample must be a tensor, or a tuple whose first field is one, "
            f"got {type(sample).__name__}: convert it in the base dataset"
        )
    return torch.as_tensor(sample)
