"""How a finished batch goes through torch's worker processes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from penstock.datasets.gather import Reader
from penstock.errors import WorkerError
from penstock.metrics import Recorder, Span, Work
from penstock.metrics.snapshot import PROBED_SECONDS

BY_VALUE_BYTES = 1 << 17  # of a tensor: larger ones are faster through shared memory


class Gathered:
    """A finished batch between torch's fetcher and the collate function."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


class ReadDataset(Dataset[Any]):
    """A dataset as worker processes of torch read it: a finished batch, or samples.

    Args:
        dataset: A map-style dataset.
        gathers: Whether ``__getitems__`` returns a finished batch.
    """

    def __init__(self, dataset: Any, *, gathers: bool) -> None:
        self.dataset, self._reader, self._gathers = dataset, Reader(dataset), gathers

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> Gathered | list[Any]:
        if self._gathers:
            return Gathered(self._reader.batch(np.asarray(indices, np.int64)))
        return self._reader.samples(indices)


def begin_with_own_dataset(own: Callable[[int], Any] | None, worker_id: int) -> None:
    """Call the user's ``worker_init_fn`` with the user's dataset in torch's worker info."""
    info = get_worker_info()
    assert info is not None  # torch calls this in a worker process
    assert isinstance(info.dataset, ReadDataset)
    object.__setattr__(info, "dataset", info.dataset.dataset)  # it is frozen
    if own is not None:
        own(worker_id)


def hand_over(gathered: Gathered) -> Any:
    """Return the finished batch: the collate function of a `ReadDataset` that gathers."""
    return gathered.batch


# -- in a worker, one batch in `PROBED_SECONDS` is measured, and the figures are sent with it

_measured = Recorder()
_begun = [0.0, 0.0]  # when the worker began to read this batch, 0 if it is not measured; the next


def fetching() -> None:
    """Note that a worker begins to read a batch."""
    now = perf_counter()
    _begun[0] = now if now >= _begun[1] else 0.0
    if _begun[0]:
        _begun[1] = now + PROBED_SECONDS
    # until the next batch, also in place of the recorder of the loader, which a fork has
    Work(_measured if _begun[0] else None, _name()).__enter__()


def _name() -> str:
    info = get_worker_info()
    return "" if info is None else f"worker {info.id}"


def collate_and_pack(collate: Callable[[Any], Any], samples: Any, *, timed: bool = False) -> Packed:
    """Collate samples in a worker and return the batch, ready to be sent.

    Args:
        collate: The user's collate function.
        samples: The samples.
        timed: Whether to send how long reading and collating took.
    """
    begun, spans = _begun[0], None
    if timed and begun:
        read = perf_counter()
        inner = sum(span.own for span in _measured.arrivals)
        batch = collate(samples)
        now, who = perf_counter(), _name()
        spans = [tuple(span) for span in _measured.arrivals]
        spans.append(("read", begun, read - begun, read - begun - inner, who, None))
        spans.append(("collate", read, now - read, now - read, who, None))
        _measured.arrivals.clear()
    else:
        batch = collate(samples)
    try:
        return Packed(batch, spans)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise WorkerError(
            f"a batch cannot be sent from a worker process ({error}): "
            "return tensors, arrays and plain values, or use num_workers=0"
        ) from error


class Packed:
    """A batch as bytes, including its small tensors; unpickling it returns the batch.

    torch puts every tensor into its own shared memory, which the two processes exchange by
    messages: a third of a millisecond for each tensor, however small. Small tensors that share
    memory become separate copies here.

    >>> pickle.loads(pickle.dumps(Packed({"x": torch.arange(3)})))
    {'x': tensor([0, 1, 2])}
    """

    def __init__(self, batch: Any, spans: list[tuple[Any, ...]] | None = None) -> None:
        self._spans = spans
        packed = io.BytesIO()
        _BatchPickler(packed, pickle.HIGHEST_PROTOCOL).dump(batch)
        self._bytes = packed.getvalue()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._spans is None:
            return pickle.loads, (self._bytes,)
        return _received, (self._bytes, self._spans)


class Received(NamedTuple):
    """A batch of a worker, and what the worker measured; a tuple, so that torch can pin it."""

    batch: Any
    spans: list[Any]  # fields of `Span`

    def opened(self, recorder: Recorder | None) -> Any:
        """Return the batch, and add the measurements to those of the loader."""
        if recorder is not None:
            recorder.arrivals.extend(Span(*each) for each in self.spans)
        return self.batch


def _received(packed: bytes, spans: list[tuple[Any, ...]]) -> Received:
    return Received(pickle.loads(packed), spans)  # noqa: S301 - of our own worker, through torch


class _BatchPickler(ForkingPickler):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        shares = self.dispatch_table[torch.Tensor]  # as torch does it

        def reduce(tensor: torch.Tensor) -> Any:
            if not tensor.requires_grad:
                tensor = tensor.resolve_conj().resolve_neg()  # torch sends what lies in memory
            return _by_value(tensor) if _is_small_and_plain(tensor) else shares(tensor)

        self.dispatch_table = {**self.dispatch_table, torch.Tensor: reduce}


def _is_small_and_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.nbytes <= BY_VALUE_BYTES
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
    )


def _by_value(tensor: torch.Tensor) -> Any:
    flat = tensor.reshape(-1).view(torch.uint8)  # as bytes: numpy knows no bfloat16
    return _tensor_of, (bytearray(flat.numpy()), tensor.dtype, tuple(tensor.shape))


def _tensor_of(values: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not values:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(values, dtype=dtype).view(shape)
