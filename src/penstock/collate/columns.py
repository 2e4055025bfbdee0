"""A list of samples seen by field: what every collator works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from penstock.collate.errors import CollateError

Columns: TypeAlias = dict[str, list[Any]]


def columns_of(samples: Sequence[Any], names: Sequence[str]) -> Columns:
    """Field -> the samples' values; ``names`` are the fields of samples that are not mappings.

    A tuple is taken by place, anything else is the first field.

    >>> columns_of([{"x": 1, "y": 2}, {"x": 3, "y": 4}], ["x"])
    {'x': [1, 3], 'y': [2, 4]}
    >>> columns_of([("a", 0), ("b", 1)], ["image", "labels"])
    {'image': ['a', 'b'], 'labels': [0, 1]}
    """
    if len(samples) == 0:
        raise CollateError("empty batch: nothing to collate, give at least one sample")
    first = samples[0]
    if isinstance(first, Mapping):
        return mapped_columns(samples)
    if isinstance(first, tuple):
        _check_tuples(samples, len(first), names)
        return {
            name: [sample[i] for sample in samples] for i, name in enumerate(names[: len(first)])
        }
    return {names[0]: list(samples)}


def mapped_columns(samples: Sequence[Mapping[Any, Any]], path: str = "") -> dict[Any, list[Any]]:
    """Key -> the samples' values, where all samples have the same keys."""
    first = samples[0]
    try:
        columns = {key: [sample[key] for sample in samples] for key in first}
        if all(len(sample) == len(first) for sample in samples):
            return columns
    except (KeyError, TypeError):
        pass  # said below, with the sample's number
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise CollateError(
                f"{at(path, number)} is a {type(sample).__name__}, sample 0 a mapping"
            )
        for key in [*first, *sample]:
            if (key in first) != (key in sample):
                has, lacks = (0, number) if key in first else (number, 0)
                raise CollateError(
                    f"sample {has} has the field {at(path, key=key)}, sample {lacks} has not: "
                    "give it to all samples of a batch, or to none"
                )
    raise CollateError(f"the samples' keys at {path!r} change while they are read")


def at(path: str, number: int | None = None, key: object = None) -> str:
    """How a place in a sample is named in an error: ``sample 3, 'image'``."""
    place = f"{path}.{key}" if path and key is not None else str(key) if key is not None else path
    if number is None:
        return repr(place)
    return f"sample {number}, {place!r}," if place else f"sample {number}"


def _check_tuples(samples: Sequence[Any], length: int, names: Sequence[str]) -> None:
    if length > len(names):
        raise CollateError(
            f"sample 0 is a tuple of {length}, expected at most {len(names)} ({', '.join(names)}): "
            "give samples as dicts"
        )
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple) or len(sample) != length:
            raise CollateError(f"sample {number} is not a tuple of {length}, as sample 0 is")
