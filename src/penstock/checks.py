"""Checks of batches against a schema, and reports of what is wrong with a dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import torch

from penstock.arguments import flag, mapping, real_number, shown, whole_number
from penstock.errors import BatchError, ConfigError, SourceError

Value: TypeAlias = int | float | str | None

SHOWN = 10  # findings in an error message; the report has all of them

Dimension: TypeAlias = int | str | None
SHARE = 0.01  # of the time is for checks: negligible, yet thousands of batches in hours of training


class InvalidDataError(SourceError, ValueError):
    """Data on disk that is missing, unreadable or wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of fault in one file.

    Args:
        file: Name of the file.
        problem: What is wrong.
        row: The first row that has the fault.
        value: The value found there.
        rows: Number of rows that have the fault.

    >>> str(Finding("relevance.pt", "pair_relevance out of range [0, 1]: 1.5", 3, 1.5, rows=2))
    'relevance.pt row 3 (and 1 more): pair_relevance out of range [0, 1]: 1.5'
    """

    file: str
    problem: str
    row: int | None = None
    value: Value = None
    rows: int = 1

    def __str__(self) -> str:
        where = "" if self.row is None else f" row {self.row}"
        more = f" (and {self.rows - 1} more)" if self.rows > 1 else ""
        return f"{self.file}{where}{more}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a validation; none if the data are valid.

    Args:
        subject: What was validated.
        findings: What is wrong.
        facts: Sizes of the data.
    """

    subject: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, Value] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def raise_if_any(self) -> None:
        """Raise an `InvalidDataError` if there are findings."""
        if self.findings:
            raise InvalidDataError(str(self))

    def to_json(self) -> str:
        """Return the report as JSON.

        >>> Report("data", ()).to_json()
        '{"subject": "data", "ok": true, "facts": {}, "findings": []}'
        """
        found = [{name: _plain(v) for name, v in asdict(f).items()} for f in self.findings]
        facts = {"subject": self.subject, "ok": self.ok, "facts": dict(self.facts)}
        return json.dumps(facts | {"findings": found})

    def __str__(self) -> str:
        if self.ok:
            facts = ", ".join(f"{value:,} {name}" for name, value in self.facts.items())
            return f"{self.subject} is valid" + (f": {facts}" if facts else "")
        lines = [str(finding) for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"... and {len(self.findings) - SHOWN} more findings")
        if len(lines) == 1:
            return lines[0]
        return "\n  ".join([f"{self.subject} has {len(self.findings)} faults:", *lines])


def _plain(value: Value) -> Value:
    """Return NaN and infinity as strings, since JSON has neither."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The expected shape, dtype and values of a tensor; an argument that is None is not checked.

    Args:
        shape: For each dimension a number, None for any size, or a name: dimensions of the same
            name must have the same size.
        dtype: The expected dtype.
        low: Smallest value allowed.
        high: Largest value allowed.
        labels: The only values allowed.
        finite: Whether NaN and infinity are errors.

    >>> TensorSpec(("batch", 3), torch.float32, low=0, high=1).faults("x", torch.tensor([0, 2.0]))
    ['x must have shape (batch, 3), found (2,)', 'x out of range [0, 1]: 2.0 at row 1']
    """

    shape: tuple[Dimension, ...] | None = None
    dtype: torch.dtype | None = None
    low: float | None = None
    high: float | None = None
    labels: frozenset[int] | None = None
    finite: bool = True

    def __post_init__(self) -> None:
        if self.shape is not None:
            if not isinstance(self.shape, tuple | list):
                raise ConfigError(f"shape must be a tuple, got {shown(self.shape)}")
            for part in self.shape:
                if not (part is None or isinstance(part, str)):
                    whole_number("shape", part, minimum=0, error=ConfigError)
            object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"dtype must be a torch.dtype, got {shown(self.dtype)}")
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                real_number(name, getattr(self, name), error=ConfigError)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError(f"low must be at most high, got {self.low!r} and {self.high!r}")
        if self.labels is not None:
            if not isinstance(self.labels, Set | list | tuple):
                raise ConfigError(f"labels must be a set of integers, got {shown(self.labels)}")
            known = (whole_number("labels", each, error=ConfigError) for each in self.labels)
            object.__setattr__(self, "labels", frozenset(known))
        flag("finite", self.finite, error=ConfigError)

    def faults(self, name: str, value: Any, sizes: dict[str, int] | None = None) -> list[str]:
        """Return a message for each thing that is wrong with ``value``.

        Args:
            name: The tensor's name, for the messages.
            value: The value to check.
            sizes: Sizes of named dimensions; those of ``value`` are added.
        """
        name = name or "the batch"
        if not isinstance(value, torch.Tensor):
            return [f"{name} must be a tensor, found {type(value).__name__}"]
        found = []
        if self.dtype is not None and value.dtype != self.dtype:
            found.append(f"{name} must be {_brief(self.dtype)}, found {_brief(value.dtype)}")
        if self.shape is not None and not _fits(value.shape, self.shape, sizes or {}):
            wanted = ", ".join(_dimension(part, sizes or {}) for part in self.shape)
            found.append(f"{name} must have shape ({wanted}), found {tuple(value.shape)}")
        elif self.shape is not None and sizes is not None:
            named = zip(self.shape, value.shape, strict=True)
            sizes.update({part: size for part, size in named if isinstance(part, str)})
        return found + self._value_faults(name, value)

    def _value_faults(self, name: str, value: torch.Tensor) -> list[str]:
        if value.is_complex() or value.is_meta:
            return []
        if value.layout != torch.strided or value.is_nested:
            name = f"{name} (stored values)"
        value = _stored_values(value.detach())
        if value.numel() == 0:
            return []
        smallest, largest = extremes(value)
        if self.finite and value.is_floating_point() and not math.isfinite(smallest + largest):
            for what, bad in (("NaN", torch.isnan), ("Inf", torch.isinf)):
                if bad(value).any():
                    return [f"{what} detected in {name}: {_first(value, bad(value))}"]
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not (low <= smallest and largest <= high):
            outside = (value < low) | (value > high)
            if outside.any():  # false if NaN is allowed and the extremes are NaN
                return [f"{name} out of range [{low:g}, {high:g}]: {_first(value, outside)}"]
        if self.labels is not None:
            known = torch.tensor(sorted(self.labels), dtype=value.dtype, device=value.device)
            strange = ~torch.isin(value, known)
            if strange.any():
                wanted = sorted(self.labels)
                return [f"{name} out of range: {_first(value, strange)} is not one of {wanted}"]
        return []


@dataclass(frozen=True, slots=True)
class BatchSchema:
    """The expected fields of a batch.

    The fields of a mapping are named by its keys, those of a tuple or list by their index ("0",
    "1", ...), and a batch that is a single tensor has the field "". A check draws no random
    numbers, moves no data and changes nothing.

    Args:
        fields: The expected tensor of each required field.
        sizes: Sizes of named dimensions.
        exact: Whether other fields are errors.

    >>> schema = BatchSchema({
    ...     "x": TensorSpec(("batch", "features"), torch.float32),
    ...     "y": TensorSpec(("batch",), torch.int64, labels=frozenset({0, 1})),
    ... })
    >>> schema.check({"x": torch.zeros(4, 8), "y": torch.tensor([0, 1, 1, 0])})
    >>> schema.faults({"x": torch.zeros(4, 8), "y": torch.tensor([0, 1, 7])})
    ['y must have shape (batch=4), found (3,)', 'y out of range: 7 at row 2 is not one of [0, 1]']
    """

    fields: Mapping[str, TensorSpec]
    sizes: Mapping[str, int] = field(default_factory=dict)
    exact: bool = False

    def __post_init__(self) -> None:
        for name, spec in mapping("fields", self.fields, error=ConfigError).items():
            if not isinstance(spec, TensorSpec):
                raise ConfigError(f"fields must be TensorSpecs, got {shown(spec)} for {name!r}")
        for name, size in mapping("sizes", self.sizes, error=ConfigError).items():
            whole_number(f"sizes[{name!r}]", size, minimum=0, error=ConfigError)
        flag("exact", self.exact, error=ConfigError)

    def faults(self, batch: Any) -> list[str]:
        """Return a message for each thing that is wrong with a batch."""
        values, sizes, found = fields_of(batch), dict(self.sizes), []
        for name, spec in self.fields.items():
            if name in values:
                found += spec.faults(name, values[name], sizes)
            else:
                what = name or "a single tensor"
                found.append(f"{what} is missing: the batch has {sorted(values)}")
        if self.exact and (more := sorted(values.keys() - self.fields.keys())):
            found.append(f"the batch has unexpected fields: {more}")
        return found

    def check(self, batch: Any) -> None:
        """Raise a `BatchError` (an ``AssertionError``) if anything is wrong with a batch."""
        found = self.faults(batch)
        if found:
            raise BatchError("; ".join(found))


class Checked:
    """The batches of any loader; the first is checked, then as many as the time budget allows.

    Which batches are checked depends on the clock only: no random number is drawn, and batches are
    passed on unchanged. It may be iterated any number of times.

    Args:
        loader: Iterable of batches.
        schema: What each batch must look like.
        share: Fraction of the time since the first batch that checks may take; 1 checks all.
        clock: Returns the time in seconds.

    >>> schema = BatchSchema({"": TensorSpec(("batch",), torch.int64, low=0)})
    >>> batches = checked([torch.tensor([1, 2]), torch.tensor([3])], schema)
    >>> [batch.tolist() for batch in batches], batches.seen
    ([[1, 2], [3]], 2)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        schema: BatchSchema,
        *,
        share: float = SHARE,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not isinstance(schema, BatchSchema):
            raise ConfigError(f"schema must be a BatchSchema, got {shown(schema)}")
        if not isinstance(loader, Iterable):
            raise ConfigError(f"loader must be iterable, got {shown(loader)}")
        self.share = real_number("share", share, minimum=0, maximum=1, error=ConfigError)
        self.loader, self.schema = loader, schema
        self.seen = self.checks = 0
        self.spent_seconds = 0.0
        self._clock = clock
        self._began: float | None = None
        self._longest_seconds = 0.0  # the longest check so far: the estimate for the next one

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.look(batch)
            yield batch

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def look(self, batch: Any) -> None:
        """Check this batch if the budget allows; raise a `BatchError` if it is wrong."""
        now = self._clock()
        if self._began is None:
            self._began = now
        self.seen += 1
        allowed = self.share * (now - self._began)
        if self.checks and self.share < 1 and self.spent_seconds + self._longest_seconds > allowed:
            return
        self.checks += 1
        self.schema.check(batch)
        took = self._clock() - now
        self.spent_seconds += took
        self._longest_seconds = max(self._longest_seconds, took)


def checked(loader: Iterable[Any], schema: BatchSchema, *, share: float = SHARE) -> Checked:
    """Return the batches of ``loader``, some of them checked.

    Args:
        loader: Iterable of batches.
        schema: What each batch must look like.
        share: Fraction of the time since the first batch that checks may take; 1 checks all.
    """
    return Checked(loader, schema, share=share)


def extremes(value: torch.Tensor) -> tuple[float, float]:
    """Return the smallest and the largest element; NaN if the tensor contains one.

    >>> extremes(torch.tensor([3, 1, 2]))
    (1.0, 3.0)
    """
    if value.device.type == "cpu":
        array = value.numpy()  # in this thread: torch's thread pool stalls when all cores are busy
        return float(array.min()), float(array.max())
    smallest, largest = torch.aminmax(value)
    return float(smallest), float(largest)


def _stored_values(value: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor of any layout, in a dtype that numpy and torch.isin support."""
    if value.layout == torch.sparse_coo:
        value = value.coalesce()
    if value.layout != torch.strided or value.is_nested:
        value = value.values()
    if value.is_quantized:
        return value.dequantize()
    if value.is_floating_point() and value.itemsize < 4:
        return value.float()
    return value.to(torch.uint8) if value.dtype == torch.bool else value


def fields_of(batch: Any) -> Mapping[str, Any]:
    """Return the parts of a batch by name.

    >>> list(fields_of([1, 2])), list(fields_of(torch.zeros(1)))
    (['0', '1'], [''])
    """
    if isinstance(batch, Mapping):
        return batch
    if isinstance(batch, list | tuple):
        names = getattr(batch, "_fields", range(len(batch)))
        return {str(name): part for name, part in zip(names, batch, strict=True)}
    return {"": batch}


def _fits(shape: torch.Size, wanted: tuple[Dimension, ...], sizes: Mapping[str, int]) -> bool:
    if len(shape) != len(wanted):
        return False
    known = [sizes.get(part) if isinstance(part, str) else part for part in wanted]
    return all(want is None or want == size for want, size in zip(known, shape, strict=True))


def _dimension(part: Dimension, sizes: Mapping[str, int]) -> str:
    if isinstance(part, str) and part in sizes:
        return f"{part}={sizes[part]}"
    return "any" if part is None else str(part)


def _first(value: torch.Tensor, where: torch.Tensor) -> str:
    """Return value and index of the first element for which ``where`` is true."""
    if value.ndim == 0:
        return f"{value.item()}"
    index = where.nonzero()[0].tolist()
    inside = f", element {index[1:] if len(index) > 2 else index[1]}" if index[1:] else ""
    return f"{value[tuple(index)].item()} at row {index[0]}{inside}"


def _brief(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
