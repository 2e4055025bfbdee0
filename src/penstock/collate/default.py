"""The default collator, and the steps that all collators share: columns, stacking, labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from penstock.arguments import with_article
from penstock.collate.task_spec import TaskSpec
from penstock.errors import BatchError
from penstock.ragged import Ragged

Columns: TypeAlias = dict[str, list[Any]]

HUGE_BYTES = 1 << 22  # from this size on, numpy asks the system for huge pages


class CollateError(BatchError, ValueError):
    """Samples that cannot form a batch; the message names the sample and the field."""


class DefaultCollator:
    """Collator for nested dicts, tuples, tensors, arrays, numbers and strings.

    The result equals that of ``torch.utils.data.default_collate`` and is computed faster. Where
    torch fails or loses data (None, unequal shapes or lengths, a key that only some samples have),
    the error names the sample and the field.

    >>> DefaultCollator()([{"x": np.ones(2), "name": "a"}, {"x": np.zeros(2), "name": "b"}])
    {'x': tensor([[1., 1.],
            [0., 0.]], dtype=torch.float64), 'name': ['a', 'b']}
    >>> DefaultCollator()([{"x": 1, "y": None}])
    Traceback (most recent call last):
    ...
    penstock.collate.default.CollateError: sample 0, 'y', is None: ...
    """

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of ``samples``."""
        _check_samples(samples)
        return collate_values(samples, "")


# isinstance with a tuple: a union of types would be rebuilt at every call
_STACKED = (torch.Tensor, np.ndarray, np.generic)
_STRINGS = (str, bytes)
_NUMBERS = (int, float, complex)


def collate_values(values: Sequence[Any], path: str) -> Any:
    """Return the batch of one field's values.

    Args:
        values: One value per sample.
        path: Name of the field in error messages.
    """
    if isinstance(values, Ragged):
        return values
    first = values[0]
    prefix = f"{path}." if path else ""
    if isinstance(first, _STRINGS):
        if None in values:
            raise _none_at(path, list(values).index(None))
        return list(values)
    if isinstance(first, _NUMBERS):
        return _stack_numbers(values, path)
    if isinstance(first, _STACKED):
        return stack(values, path)
    if isinstance(first, Mapping):
        columns = _mapped_columns(values, path)
        return {key: collate_values(each, f"{prefix}{key}") for key, each in columns.items()}
    if isinstance(first, Sequence):
        if any(not isinstance(v, Sequence) or len(v) != len(first) for v in values):
            raise unequal(values, path)
        items = enumerate(zip(*values, strict=True))
        parts = [collate_values(each, f"{prefix}{i}") for i, each in items]
        # plain tuples become a list, as torch does
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    if first is None:
        raise _none_at(path, 0)
    raise CollateError(
        f"{at(path, 0)} is {describe(first)}: a batch is made of tensors, arrays, numbers, "
        "strings, and dicts or tuples of these; convert it, or pass your own collate_fn"
    )


def _stack_numbers(values: Sequence[Any], path: str) -> torch.Tensor:
    is_float = isinstance(values[0], float)
    try:
        array = np.array(values)
        if array.dtype == (np.float64 if is_float else np.int64):
            return torch.from_numpy(array)  # three times as fast as torch.tensor
        return torch.tensor(values, dtype=torch.float64 if is_float else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise unequal(values, path) from error


# -- columns: the samples of a batch, by field


def columns_of(samples: Sequence[Any], names: Sequence[str]) -> Columns:
    """Return the values of each field, one per sample.

    Args:
        samples: Mappings with equal keys, tuples, or single values; or a batch of a stream: one
            tensor or `Ragged`, or several by field.
        names: The fields of a tuple in their order; a single value is the first one.

    >>> columns_of([{"x": 1, "y": 2}, {"x": 3, "y": 4}], ["x"])
    {'x': [1, 3], 'y': [2, 4]}
    >>> columns_of([("a", 0), ("b", 1)], ["image", "labels"])
    {'image': ['a', 'b'], 'labels': [0, 1]}
    """
    if isinstance(samples, Mapping):
        return {key: _column(values) for key, values in samples.items()}
    if isinstance(samples, Ragged):
        return {names[0]: _column(samples)}
    _check_samples(samples)
    first = samples[0]
    if isinstance(first, Mapping):
        return _mapped_columns(samples)
    if not isinstance(first, tuple):
        return {names[0]: list(samples)}
    if len(first) > len(names):
        raise CollateError(f"sample 0 is a tuple of {len(first)}, expected {', '.join(names)}")
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != len(first):
            raise CollateError(f"sample {number} is not a tuple of {len(first)}, as sample 0 is")
    columns = zip(*samples, strict=True)
    return {name: list(column) for name, column in zip(names, columns, strict=False)}


def _column(values: Any) -> Any:
    """Return a field of a batch with one value per sample; a `Ragged` is returned as it is."""
    _check_samples(values)
    return values if isinstance(values, Ragged) else list(values)


def _mapped_columns(samples: Sequence[Mapping[Any, Any]], path: str = "") -> dict[Any, list[Any]]:
    first = samples[0]
    try:
        columns = {key: [sample[key] for sample in samples] for key in first}
        if all(len(sample) == len(first) for sample in samples):
            return columns
    except (KeyError, TypeError):
        pass  # reported below, with the number of the sample
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise CollateError(f"{at(path, number)} is {describe(sample)}, not a mapping")
        for key in [*first, *sample]:
            if (key in first) != (key in sample):
                has, lacks = (0, number) if key in first else (number, 0)
                field = f"{path}.{key}" if path else str(key)
                raise CollateError(
                    f"sample {has} has the field {field!r}, sample {lacks} does not: give it to "
                    "all samples of a batch, or to none"
                )
    raise CollateError(f"the samples' keys at {path!r} change while they are read")


def _check_samples(samples: Any) -> None:
    if not hasattr(samples, "__len__") or isinstance(samples, Mapping | str | bytes):
        raise CollateError(f"samples must be a list of samples, got {describe(samples)}")
    if len(samples) == 0:
        raise CollateError("empty batch: collating needs at least one sample")


def take_inputs(
    samples: Sequence[Any], names: Sequence[str], what: str, task_spec: TaskSpec | None
) -> tuple[Columns, list[Any], list[Any] | None]:
    """Return the columns that are left, the inputs of a task, and its targets if there are any.

    Args:
        samples: As for `columns_of`.
        names: Fields that hold the inputs where the task names none.
        what: What they hold, for the error if there is none.
        task_spec: Names the fields.
    """
    columns = columns_of(samples, (names[0], "labels"))
    wanted = [*([] if task_spec is None else task_spec.input_fields), *names]
    found = next((name for name in wanted if name in columns), None)
    if found is None:
        raise CollateError(
            f"no {what} in samples with the fields {sorted(map(str, columns))}: give it under one "
            f"of {', '.join(dict.fromkeys(wanted))}"
        )
    return columns, columns.pop(found), take_target(columns, task_spec)


def take_target(columns: Columns, task_spec: TaskSpec | None) -> list[Any] | None:
    """Remove the targets from the columns and return them; None if the samples have none.

    They are the task's ``target_field``, or else ``labels`` or ``label``.
    """
    wanted = task_spec.target_field if task_spec is not None else None
    for name in (wanted, "labels", "label"):
        if name is not None and name in columns:
            return columns.pop(name)
    return None


def is_sequence(value: Any) -> bool:
    """Return whether a target is a sequence (of tokens or classes) rather than one number."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def label_tensor(values: Sequence[Any], *, multilabel: bool = False) -> torch.Tensor:
    """Return one row per sample: classes as int64, other numbers and multilabel as float32.

    >>> label_tensor([1, 0])
    tensor([1, 0])
    >>> label_tensor([[0, 1], [1, 1]], multilabel=True)
    tensor([[0., 1.],
            [1., 1.]])
    """
    rows = [np.asarray(each) for each in values] if isinstance(values[0], list | tuple) else values
    labels = collate_values(rows, "labels")
    if not isinstance(labels, torch.Tensor):
        raise CollateError(f"{at('labels', 0)} is {values[0]!r}: map the classes to integers")
    if multilabel and labels.ndim != 2:
        raise CollateError(f"multilabel targets are one 0 or 1 per class, got {labels.shape}")
    if multilabel or labels.dtype == torch.float64:
        return labels.to(torch.float32)
    return labels if labels.is_floating_point() or labels.is_complex() else labels.to(torch.int64)


# -- stacking: the values of one field as one tensor


def batch_memory(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Return uninitialised memory for a batch.

    Large batches on the CPU use memory of numpy, which asks for huge pages where torch does not:
    the first write to 38 MB then takes 3 ms instead of 16.

    >>> batch_memory((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < HUGE_BYTES or (device is not None and device.type != "cpu"):
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(size_bytes, np.uint8)).view(dtype).view(*shape)


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory; read-only arrays are copied."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def stack(values: Sequence[Any], path: str) -> torch.Tensor:
    """Return one tensor of equal-shaped tensors, arrays or numpy numbers.

    Args:
        values: One of each sample.
        path: Where they are in a sample, for messages.

    >>> stack([np.array([1, 2]), np.array([3, 4])], "x")
    tensor([[1, 2],
            [3, 4]])
    """
    first = values[0]
    try:
        if isinstance(first, torch.Tensor):
            return _stack_tensors(values)
        if not isinstance(first, np.ndarray):
            return torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise unequal(values, path) from error
    if first.dtype.kind not in "biufc":
        raise CollateError(f"{at(path, 0)} is an array of {first.dtype}, which no tensor can hold")
    if not all(isinstance(a, np.ndarray) and a.shape == first.shape for a in values):
        raise unequal(values, path)
    if first.ndim == 0:
        return torch.from_numpy(np.array(values))
    return torch.from_numpy(np.concatenate(values).reshape(len(values), *first.shape))


def _stack_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    plain = first.nbytes * len(tensors) >= HUGE_BYTES and all(
        t.device.type == "cpu"
        and t.layout == torch.strided
        and t.dtype == first.dtype
        and not t.requires_grad
        for t in tensors
    )
    memory = batch_memory((len(tensors), *first.shape), first.dtype) if plain else None
    return torch.stack(tuple(tensors), out=memory)


# -- errors


def unequal(values: Sequence[Any], path: str) -> CollateError:
    """Return the error that names the first sample that differs from sample 0, and how.

    Args:
        values: One of each sample.
        path: Where they are in a sample.
    """
    first = describe(values[0])
    for number, value in enumerate(values):
        if value is None:
            return _none_at(path, number)
        if describe(value) != first:
            return CollateError(
                f"{at(path, number)} is {describe(value)}, sample 0 has {first}: samples of a "
                "batch must be alike; pad or convert them, or pass your own collate_fn"
            )
    return CollateError(f"{at(path, 0)} is {first}, which cannot be made a tensor")


def _none_at(path: str, number: int) -> CollateError:
    return CollateError(
        f"{at(path, number)} is None: give every sample a value there, or leave the field out of "
        "all of them"
    )


def at(path: str, number: int) -> str:
    """Return how errors name a field of a sample: ``sample 3, 'image',``."""
    return f"sample {number}, {path!r}," if path else f"sample {number}"


def describe(value: Any) -> str:
    """Return the type and shape of a value in words."""
    kind = with_article(type(value).__name__)
    if isinstance(value, torch.Tensor | np.ndarray):
        device = value.device if isinstance(value, torch.Tensor) else "cpu"
        return f"{kind} of shape {tuple(value.shape)} on {device}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"{kind} of {len(value)}"
    return "None" if value is None else kind
