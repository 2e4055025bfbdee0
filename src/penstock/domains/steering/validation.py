"""Looks at a whole dataset directory once, in blocks, and names what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.arguments import a_path, whole_number
from penstock.checks import Finding, InvalidDataError, Report
from penstock.domains.steering.config import COUNTS, SteeringConfig, read_config
from penstock.domains.steering.integrity import outside, shape_faults
from penstock.domains.steering.layout import (
    BY_NAME,
    CONFIG,
    KEYWORDS,
    REFERENCES,
    SPLIT_TABLES,
    SPLITS,
    TABLES,
    Reference,
    Table,
)
from penstock.domains.steering.reading import Reader, read_rows, reading, resolve_format
from penstock.domains.steering.splits import SplitsCheck
from penstock.domains.steering.tables import dimensions_of

BLOCK_BYTES = 32 << 20  # of a table looked at in one go; a few times as much is in memory

Columns = dict[str, Any]


def validate_dataset(
    dataset_dir: str | PathLike[str],
    storage_format: str = "auto",
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Report:
    """What is wrong with a directory, as a report whose ``findings`` name file, row and value.

    Looks at every value: files and shapes, references (below zero too), ranges, NaN and
    infinity, tiers, splits that are disjoint, complete and share no question, and negatives that
    are a pair's own source. Tables are read in blocks of ``block_bytes``: memory does not
    grow with the vectors, only by a few bytes a pair.

    Args:
        dataset_dir: The directory.
        storage_format: "pt", "hdf5", or "auto": HDF5 where there is one.
        block_bytes: Of a table that is looked at in one go.
    """
    directory = a_path("dataset_dir", dataset_dir)
    whole_number("block_bytes", block_bytes, minimum=1, unit="byte")
    try:
        config = read_config(directory)
        resolved = resolve_format(directory, storage_format)
        with reading(directory, resolved) as reader:
            return _Validation(directory, config, reader, block_bytes).report()
    except InvalidDataError as error:  # nothing further can be looked at
        file = CONFIG if CONFIG in str(error) else directory.name
        return Report(str(directory), (Finding(file, str(error)),))


class _Validation:
    """One look at a directory; what a check needs must have passed the check before."""

    def __init__(
        self, directory: Path, config: SteeringConfig, reader: Reader, block_bytes: int
    ) -> None:
        self.directory, self.config, self.reader = directory, config, reader
        self.block_bytes = max(1, block_bytes)

    def report(self) -> Report:
        columns, findings = self._open()
        faults = list(shape_faults(columns, dimensions_of(self.config), self.reader.place))
        bad = {finding.file for finding in faults}
        sound = {n: c for n, c in columns.items() if self.reader.place(BY_NAME[n]) not in bad}
        findings += faults
        findings += self._counts(sound)
        findings += [f for name, column in sound.items() for f in self._values(name, column)]
        findings += self._keywords(sound)
        findings += self._own_sources(sound)
        findings += self._splits(sound)
        facts = {
            dimension: len_of(sound[table.name])
            for dimension, table in _SIZES.items()
            if table.name in sound
        }
        return Report(str(self.directory), tuple(findings), facts)

    def _open(self) -> tuple[Columns, list[Finding]]:
        columns, findings = {}, []
        for table in (*TABLES, *SPLIT_TABLES.values()):
            try:
                columns[table.name] = self.reader.column(table)
            except InvalidDataError as error:
                findings.append(Finding(self.reader.place(table), str(error)))
        return columns, findings

    def _counts(self, sound: Columns) -> Iterator[Finding]:
        keys = {dimension: key for key, dimension in COUNTS.items()}
        for dimension, said in self.config.counts.items():
            table = _SIZES[dimension]
            found = len_of(sound[table.name]) if table.name in sound else said
            if found != said:
                problem = f"{keys[dimension]} is {said}, but {table.file} has {found} rows"
                yield Finding(CONFIG, problem, value=said)

    def _blocks(self, name: str, column: Any) -> Iterator[tuple[int, torch.Tensor]]:
        shape = tuple(column.shape)
        row_bytes = max(1, int(np.prod(shape[1:], dtype=np.int64)) * column.dtype.itemsize)
        rows, place = max(1, self.block_bytes // row_bytes), self.reader.place(BY_NAME[name])
        for start in range(0, shape[0], rows):
            yield start, read_rows(column, slice(start, start + rows), place)

    def _values(self, name: str, column: Any) -> Iterable[Finding]:
        """Values of one table: finite, in range, and rows of what they refer to."""
        table = BY_NAME[name]
        found: dict[str, Finding] = {}
        targets = [
            (r, len_of(self._target(r))) for r in REFERENCES if r.name == name and self._known(r)
        ]
        try:
            for start, block in self._blocks(name, column):
                faults = [*_range_faults(table, block, start)]
                for reference, count in targets:
                    faults += outside(reference, block, count, start)
                for kind, finding in ((_kind(f), f) for f in faults):
                    found[kind] = _joined(found.get(kind), finding)
        except InvalidDataError as error:
            return [Finding(self.reader.place(table), str(error))]
        return [_placed(finding, self.reader.place(table)) for finding in found.values()]

    def _known(self, reference: Reference) -> bool:
        try:
            return len(self._target(reference).shape) == 2
        except InvalidDataError:
            return False

    def _target(self, reference: Reference) -> Any:
        return self.reader.column(BY_NAME[reference.target])

    def _keywords(self, sound: Columns) -> Iterator[Finding]:
        place = self.reader.place(KEYWORDS)
        try:
            offsets, values = self.reader.keywords()
        except InvalidDataError as error:
            yield Finding(place, str(error))
            return
        lists = len(offsets) - 1
        if "pair_index" in sound and lists != len_of(sound["pair_index"]):
            wanted = len_of(sound["pair_index"])
            yield Finding(place, f"{place} must have {wanted} lists, one a pair, found {lists}")
        if "keyword_embs" in sound:
            count = len_of(sound["keyword_embs"])
            bad = np.flatnonzero((values < 0) | (values >= count))
            if bad.size:
                rows = np.searchsorted(offsets, bad, side="right") - 1
                value = int(values[bad[0]])
                problem = f"{KEYWORDS.name} references keyword {value}, but only {count} keywords"
                rows_bad = len(np.unique(rows))
                yield Finding(place, f"{problem} exist", int(rows[0]), value, rows_bad)

    def _own_sources(self, sound: Columns) -> Iterator[Finding]:
        if not {"pair_index", "hard_negatives"} <= sound.keys():
            return
        place, found = self.reader.place(BY_NAME["hard_negatives"]), None
        for start, block in self._blocks("hard_negatives", sound["hard_negatives"]):
            rows = slice(start, start + len(block))
            own = read_rows(sound["pair_index"], rows, place)[:, 1]
            bad = (block == own[:, None]).any(1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                value = int(own[row])
                problem = f"hard_negatives has the pair's own source {value} among its negatives"
                found = _joined(found, Finding(place, problem, start + row, value, int(bad.sum())))
        if found is not None:
            yield found

    def _splits(self, sound: Columns) -> Iterator[Finding]:
        tables = [SPLIT_TABLES[split] for split in SPLITS if SPLIT_TABLES[split].name in sound]
        if "pair_index" not in sound:
            return
        index = read_rows(sound["pair_index"], slice(None), "pair_index").numpy()
        splits = SplitsCheck(index[:, 0], self.reader.place)
        for table in tables:
            rows = read_rows(sound[table.name], slice(None), table.file).numpy()
            yield from splits.add(table, rows)
        if len(tables) == len(SPLITS):
            yield from splits.uncovered()


_SIZES: Mapping[str, Table] = {
    "pairs": BY_NAME["pair_index"],
    "questions": BY_NAME["question_embs"],
    "sources": BY_NAME["source_embs"],
    "keywords": BY_NAME["keyword_embs"],
    "clusters": BY_NAME["centroid_embs"],
}


def _range_faults(table: Table, block: torch.Tensor, start: int) -> Iterator[Finding]:
    if not block.numel():
        return
    low, high = (float(edge) for edge in torch.aminmax(block))
    finite = not block.is_floating_point() or abs(low) + abs(high) < float("inf")
    if not finite:
        for what, bad in (("NaN", torch.isnan(block)), ("Inf", torch.isinf(block))):
            if bool(bad.any()):
                yield _first(table, block, bad, start, f"{what} detected in {table.name}")
    small, large = table.low, table.high
    if small is None or large is None or (finite and small <= low and high <= large):
        return
    bad = (block < small) | (block > large)
    if bool(bad.any()):
        span = f"[{round(small)}, {round(large)}]"
        yield _first(table, block, bad, start, f"{table.name} out of range {span}")


def _first(
    table: Table, block: torch.Tensor, bad: torch.Tensor, start: int, problem: str
) -> Finding:
    rows = bad if bad.ndim == 1 else bad.any(1)
    row = int(rows.nonzero()[0])
    value = block[row][bad[row]][0].item() if bad.ndim > 1 else block[row].item()
    return Finding(table.file, f"{problem}: {value}", start + row, value, int(rows.sum()))


def _kind(finding: Finding) -> str:
    """What makes two findings of one table the same fault: all but the value."""
    return finding.problem.replace(str(finding.value), "")


def _joined(earlier: Finding | None, later: Finding) -> Finding:
    if earlier is None:
        return later
    rows = earlier.rows + later.rows
    return Finding(earlier.file, earlier.problem, earlier.row, earlier.value, rows)


def _placed(finding: Finding, place: str) -> Finding:
    return Finding(place, finding.problem, finding.row, finding.value, finding.rows)


def len_of(column: Any) -> int:
    """Rows of a column."""
    return int(column.shape[0])
