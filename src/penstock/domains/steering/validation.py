"""Validation of a whole dataset directory, table by table, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.arguments import a_path, whole_number
from penstock.checks import Finding, InvalidDataError, Report
from penstock.domains.steering import layout
from penstock.domains.steering.curriculum import SteeringConfig, read_config
from penstock.domains.steering.files import Reader, open_reader, read_rows, resolve_format
from penstock.order import Indices

BLOCK_BYTES = 32 << 20  # of a table that is checked at once; a few times as much is in memory


def validate_dataset(
    dataset_dir: str | PathLike[str],
    storage_format: str = "auto",
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Report:
    """Return a report whose ``findings`` name the file, row and value of every kind of fault.

    Checks every value: files and shapes, references, ranges, NaN and infinity, tiers, negatives
    that are a pair's own source, and splits (disjoint, complete, no question in two of them).
    Memory grows by a few bytes per pair, not with the vectors.

    Args:
        dataset_dir: The directory.
        storage_format: "pt", "hdf5", or "auto": HDF5 if dataset.h5 exists.
        block_bytes: Size of the blocks in which tables are read.
    """
    directory = a_path("dataset_dir", dataset_dir)
    whole_number("block_bytes", block_bytes, minimum=1, unit="byte")
    try:
        config = read_config(directory)
        with open_reader(directory, resolve_format(directory, storage_format)) as reader:
            return _Validation(directory, config, reader, block_bytes).report()
    except InvalidDataError as error:  # nothing else can be checked
        file = layout.CONFIG if layout.CONFIG in str(error) else directory.name
        return Report(str(directory), (Finding(file, str(error)),))


class _Validation:
    """One validation of a directory; a check uses only tables that passed the checks before."""

    def __init__(
        self, directory: Path, config: SteeringConfig, reader: Reader, block_bytes: int
    ) -> None:
        self.directory, self.config, self.reader = directory, config, reader
        self.block_bytes = block_bytes
        self.opened: dict[str, Any] = {}  # tables that can be read, by name
        self.columns: dict[str, Any] = {}  # those of the right shape

    def report(self) -> Report:
        findings = [*self._open_tables(), *self._counts()]
        for name in self.columns:
            findings += self._values(name)
        findings += [*self._keywords(), *self._own_sources(), *self._splits()]
        facts = {
            what: self._rows(table.name)
            for what, table in layout.COUNTS.values()
            if table.name in self.columns
        }
        return Report(str(self.directory), tuple(findings), facts)

    def _rows(self, name: str) -> int:
        return int(self.columns[name].shape[0])

    def _open_tables(self) -> list[Finding]:
        """Open all tables; those that cannot be read or have a wrong shape are left out."""
        findings = []
        for table in (*layout.TABLES, *layout.SPLIT_TABLES.values()):
            try:
                self.opened[table.name] = self.reader.column(table)
            except InvalidDataError as error:
                findings.append(Finding(self.reader.locate(table), str(error)))
        faults = list(layout.shape_faults(self.opened, self.config.sizes, self.reader.locate))
        bad = {finding.file for finding in faults}
        for name, column in self.opened.items():
            if self.reader.locate(layout.BY_NAME[name]) not in bad:
                self.columns[name] = column
        return findings + faults

    def _counts(self) -> Iterator[Finding]:
        for key, stated in self.config.counts.items():
            table = layout.COUNTS[key][1]
            if table.name in self.columns and (found := self._rows(table.name)) != stated:
                problem = f"{key} is {stated}, but {table.file} has {found} rows"
                yield Finding(layout.CONFIG, problem, value=stated)

    def _blocks(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        column, place = self.columns[name], self.reader.locate(layout.BY_NAME[name])
        row_bytes = int(np.prod(column.shape[1:], dtype=np.int64)) * column.dtype.itemsize
        rows = max(1, self.block_bytes // max(1, row_bytes))
        for start in range(0, column.shape[0], rows):
            yield start, read_rows(column, slice(start, start + rows), place)

    def _values(self, name: str) -> list[Finding]:
        """Return what is wrong with the values of one table."""
        place = self.reader.locate(layout.BY_NAME[name])
        targets = [
            (reference, self.opened[reference.target].shape[0])
            for reference in layout.REFERENCES
            if reference.name == name and reference.target in self.opened
            if len(self.opened[reference.target].shape) == 2
        ]
        found: dict[str, Finding] = {}
        try:
            for start, block in self._blocks(name):
                faults = [*_range_faults(layout.BY_NAME[name], block, start)]
                for reference, count in targets:
                    faults += layout.outside(reference, block, count, start)
                for fault in faults:
                    # findings that differ only in the value are one kind of fault
                    kind = fault.problem.replace(str(fault.value), "")
                    found[kind] = _add(found.get(kind), replace(fault, file=place))
        except InvalidDataError as error:
            return [Finding(place, str(error))]
        return list(found.values())

    def _keywords(self) -> Iterator[Finding]:
        place = self.reader.locate(layout.KEYWORDS)
        try:
            offsets, values = self.reader.keywords()
        except InvalidDataError as error:
            yield Finding(place, str(error))
            return
        lists = len(offsets) - 1
        if "pair_index" in self.columns and lists != (wanted := self._rows("pair_index")):
            found = f"{wanted} lists, one for each pair, found {lists}"
            yield Finding(place, f"{place} must have {found}")
        if "keyword_embs" in self.columns:
            count = self._rows("keyword_embs")
            bad = np.flatnonzero((values < 0) | (values >= count))
            if bad.size:
                rows = np.searchsorted(offsets, bad, side="right") - 1
                value, only = int(values[bad[0]]), f"but only {count} keywords exist"
                problem = f"{layout.KEYWORDS.name} references keyword {value}, {only}"
                yield Finding(place, problem, int(rows[0]), value, len(np.unique(rows)))

    def _own_sources(self) -> Iterator[Finding]:
        if not {"pair_index", "hard_negatives"} <= self.columns.keys():
            return
        place, found = self.reader.locate(layout.BY_NAME["hard_negatives"]), None
        problem = "hard_negatives has the pair's own source {} among its negatives"
        for start, block in self._blocks("hard_negatives"):
            rows = slice(start, start + len(block))
            own = read_rows(self.columns["pair_index"], rows, place)[:, 1]
            for fault in layout.first_fault(place, block, block == own[:, None], problem, start):
                found = _add(found, fault)
        if found is not None:
            yield found

    def _splits(self) -> Iterator[Finding]:
        """Yield what is wrong with each split, alone and compared with the ones before."""
        if "pair_index" not in self.columns:
            return
        questions = read_rows(self.columns["pair_index"], slice(None), "pair_index").numpy()[:, 0]
        names, named = np.unique(questions, return_inverse=True)
        of_pair, of_question = (np.zeros(len(each), np.int8) for each in (questions, names))
        files = [""]  # by the number of the split, from 1
        for table in layout.SPLIT_TABLES.values():
            if table.name not in self.columns:
                continue
            files.append(table.file)
            place = self.reader.locate(table)
            rows = read_rows(self.columns[table.name], slice(None), table.file).numpy()
            if not rows.size:
                yield Finding(place, f"{table.name} has no pairs: a split needs at least one")
                continue
            numbers, exists = np.arange(len(rows)), (rows >= 0) & (rows < len(questions))
            only = f"but only {len(questions)} pairs exist"
            problem = f"Split indices reference pair {{}}, {only}"
            yield from _split_fault(place, rows, ~exists, problem, numbers)
            numbers, rows = numbers[exists], rows[exists]
            again = np.ones(len(rows), np.bool_)
            again[np.unique(rows, return_index=True)[1]] = False
            twice = f"{table.name} has pair {{}} twice"
            yield from _split_fault(place, rows, again, twice, numbers)
            other, asked = of_pair[rows], of_question[named[rows]]
            problem = f"pair {{}} is in {files[next(iter(other[other > 0]), 0)]} too"
            yield from _split_fault(place, rows, other > 0, problem, numbers)
            shared = (asked > 0) & (other == 0) & (questions[rows] >= 0)
            problem = f"question {{}} has pairs in {files[next(iter(asked[shared]), 0)]} too"
            problem += ": what is trained on is tested on"
            yield from _split_fault(place, questions[rows], shared, problem, numbers)
            of_question[named[rows]] = np.where(asked == 0, len(files) - 1, asked)
            of_pair[rows] = len(files) - 1
        missing = np.flatnonzero(of_pair == 0)
        if missing.size and len(files) > len(layout.SPLITS):
            place, row = self.reader.locate(layout.BY_NAME["pair_index"]), int(missing[0])
            yield Finding(place, f"pair {row} is in no split", row, row, len(missing))


def _split_fault(
    place: str, values: Indices, bad: npt.NDArray[np.bool_], problem: str, numbers: Indices
) -> Iterator[Finding]:
    found = layout.first_fault(place, torch.from_numpy(values), torch.from_numpy(bad), problem)
    for fault in found:
        assert fault.row is not None
        yield replace(fault, row=int(numbers[fault.row]))


def _range_faults(table: layout.Table, block: torch.Tensor, start: int) -> Iterator[Finding]:
    if not block.numel():
        return
    low, high = (float(edge) for edge in torch.aminmax(block))
    finite = not block.is_floating_point() or abs(low) + abs(high) < float("inf")
    if not finite:
        for what, bad in (("NaN", torch.isnan(block)), ("Inf", torch.isinf(block))):
            problem = f"{what} detected in {table.name}: {{}}"
            yield from layout.first_fault(table.file, block, bad, problem, start)
    small, large = table.low, table.high
    if small is None or large is None or (finite and small <= low and high <= large):
        return
    problem = f"{table.name} out of range [{round(small)}, {round(large)}]: {{}}"
    bad = (block < small) | (block > large)
    yield from layout.first_fault(table.file, block, bad, problem, start)


def _add(earlier: Finding | None, later: Finding) -> Finding:
    """Return the earlier finding with the rows of both."""
    return later if earlier is None else replace(earlier, rows=earlier.rows + later.rows)
