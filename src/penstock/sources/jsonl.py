"""JSON Lines: one object in each line, whose keys are fields."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import shown
from penstock.errors import SourceError
from penstock.registry import did_you_mean
from penstock.sources.base import BaseSource
from penstock.sources.cache import Index, cached_index
from penstock.sources.contract import Arrays, Field, Indices, checked_names
from penstock.sources.storage import LocalFile, new_memory, read_exactly, reading

MOST_LINE_BYTES = 1 << 28
DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64, "text": np.uint8}
WIDER = {("int", "float"): "float", ("float", "int"): "float", ("empty", "empty"): "empty"}


class JsonLinesSource(BaseSource):
    r"""The objects of a JSON Lines file; each key is a field.

    Numbers and booleans are single values, strings (as bytes) and lists of numbers are ragged. The
    file is read once to index its lines; the index is cached. Every object must have the chosen
    keys, with values of one kind.

    Args:
        path: The file.
        columns: Keys; all those of the first object if None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "x.jsonl")
    ...     _ = file.write_text('{"text": "a", "label": 1}\n{"text": "bcd", "label": 0}\n')
    ...     source = JsonLinesSource(file)
    >>> source.offsets("text").tolist()
    [0, 1, 4]
    """

    def __init__(
        self, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
    ) -> None:
        self._file = LocalFile(path)
        self._path = self._file.path
        names = checked_names("columns", columns)
        index = cached_index("jsonl-2", [self._path], names, lambda: _index(self._path, names))
        self._lines: Indices = index["lines"]
        kinds = dict(zip(index["fields"].tolist(), index["kinds"].tolist(), strict=True))
        fields = {name: _field(kind) for name, kind in kinds.items()}
        offsets = {n: index[f"offsets/{n}"] for n, field in fields.items() if field.ragged}
        super().__init__(len(self._lines) - 1, fields, str(self._path), offsets)

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        ends = (self._lines[start : stop + 1] - self._lines[start]).tolist()
        raw = new_memory(ends[-1])
        read_exactly(self._path, raw, int(self._lines[start]))
        self._file.verify()
        objects = [_parsed(raw[a:b].tobytes(), self._path) for a, b in pairwise(ends)]
        for name, rows in out.items():
            values = [_value(each, name, self._path) for each in objects]
            ragged = self._fields[name].ragged
            try:
                parts = [_items(value) for value in values] if ragged else [np.array(values)]
                joined = np.concatenate(parts) if parts else np.empty(0)
                if len(joined) != len(rows):
                    raise ValueError(f"{len(joined)} items")
                np.copyto(rows, joined.astype(rows.dtype) if not joined.size else joined)
            except (TypeError, ValueError) as error:
                raise SourceError(
                    f"{self._path} has changed since it was indexed (field {name!r} of samples "
                    f"{start}:{stop}): open the source again"
                ) from error


def _items(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, str):
        return np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8)
    return np.array(value) if value else np.empty(0, np.int64)


def _field(kind: str) -> Field:
    inner = kind.removeprefix("list of ").replace("empty", "float")
    return Field((), np.dtype(DTYPES[inner]), ragged=inner == "text" or inner != kind)


def _kind(value: Any) -> str | None:
    """Return the kind of a value, or None if it cannot be a field."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        return None
    for name, kind in (("bool", bool), ("int", int), ("float", float), ("text", str)):
        if isinstance(value, kind):
            return name
    if not isinstance(value, list):
        return None
    kinds = {_kind(each) for each in value}
    if kinds == {"int", "float"}:
        return "list of float"
    inner = kinds.pop() if len(kinds) == 1 else None if kinds else "empty"
    return None if inner is None or inner == "text" or " " in inner else f"list of {inner}"


def _wider(old: str, new: str) -> str | None:
    """Return the kind that holds values of both kinds, or None.

    >>> _wider("int", "float"), _wider("list of empty", "list of int"), _wider("int", "text")
    ('float', 'list of int', None)
    """
    lists = old.startswith("list") + new.startswith("list")
    a, b = old.removeprefix("list of "), new.removeprefix("list of ")
    both = a if b in (a, "empty") else b if a == "empty" else WIDER.get((a, b))
    if lists == 1 or both is None:
        return None
    return f"list of {both}" if lists else both


def _index(path: Path, names: list[str] | None) -> Index:
    lines, kinds = [0], dict[str, str]()
    lengths: dict[str, list[int]] = {}
    for number, (end, line) in enumerate(_lines(path)):
        if not line.strip():  # white space is not JSON: it is read with a neighbouring line
            lines[-1] = end if len(lines) > 1 else 0
            continue
        found = _parsed(line, path, number)
        if len(lines) == 1:
            names = names or list(found)
            if not names:
                raise SourceError(f"line 1 of {path} has no keys, so there are no fields")
            lengths = {name: [0] for name in names}
        for name in names or ():
            value = _value(found, name, path, number)
            kind = _kind(value)
            wider = kind and _wider(kinds.get(name, kind), kind)
            if wider is None:
                raise SourceError(
                    f"{name!r} in line {number + 1} of {path} is {shown(value)}"
                    f"{f', but was {kinds[name]} before' if name in kinds else ''}: a field has "
                    "numbers, strings or lists of numbers; choose others with fields=[...]"
                )
            kinds[name] = wider
            if isinstance(value, str | list):
                lengths[name].append(len(_items(value)))
        lines.append(end)
    if not kinds:
        raise SourceError(f"{path} has no lines")
    index: Index = {"lines": np.array(lines, np.int64)}
    index |= {"fields": np.array(list(kinds)), "kinds": np.array(list(kinds.values()))}
    ragged = [name for name, kind in kinds.items() if _field(kind).ragged]
    return index | {f"offsets/{n}": np.cumsum(lengths[n], dtype=np.int64) for n in ragged}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the bytes of each line."""
    end = 0
    with reading(path), path.open("rb") as file:
        while line := file.readline(MOST_LINE_BYTES):
            if len(line) == MOST_LINE_BYTES:
                raise SourceError(f"{path} has a line of more than {len(line):,} bytes")
            end += len(line)
            yield end, line


def _parsed(line: bytes, path: Path, number: int | None = None) -> dict[str, Any]:
    where = "a line" if number is None else f"line {number + 1}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{where} of {path} is not JSON ({str(error)[:100]}): write or copy the file again"
        ) from error
    if not isinstance(found, dict):
        raise SourceError(f"{where} of {path} is not a JSON object, but {shown(found)}")
    return found


def _value(found: dict[str, Any], name: str, path: Path, number: int | None = None) -> Any:
    if name not in found:
        where = "a line" if number is None else f"line {number + 1}"
        raise SourceError(
            f"{where} of {path} has no {name!r}{did_you_mean(name, found)}: every object needs "
            "the same keys; choose some with fields=[...]"
        )
    return found[name]
