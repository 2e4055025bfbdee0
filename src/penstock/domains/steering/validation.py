"""Validation of a whole dataset directory, table by table."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import numpy as np
import torch

from penstock.arguments import a_path
from penstock.checks import Finding, InvalidDataError, Report
from penstock.domains.steering import layout
from penstock.domains.steering.layout import SteeringConfig, read_config
from penstock.domains.steering.tables import Files


def validate_dataset(dataset_dir: str | PathLike[str], storage_format: str = "auto") -> Report:
    """Return a report whose ``findings`` name the file, row and value of every kind of fault.

    Checks every value: files and shapes, references, ranges, NaN and infinity, tiers, negatives
    that are a pair's own source, and splits (disjoint, complete, no question in two of them).
    Tables are mapped into memory; those of a compressed HDF5 file are read.

    Args:
        dataset_dir: The directory.
        storage_format: "pt", "hdf5", or "auto": HDF5 if dataset.h5 exists.
    """
    directory = a_path("dataset_dir", dataset_dir)
    try:
        config = read_config(directory)
        reader = Files.of(directory, storage_format)
    except InvalidDataError as error:  # nothing else can be checked
        file = layout.CONFIG if layout.CONFIG in str(error) else directory.name
        return Report(str(directory), (Finding(file, str(error)),))
    tables, findings = _readable_tables(reader, config)
    findings += [*_count_faults(tables, config), *_value_faults(tables, reader)]
    findings += layout.reference_faults(tables, reader.locate)
    findings += [*_keyword_faults(tables, reader), *_own_sources(tables, reader)]
    findings += _split_faults(tables, reader)
    counts = layout.COUNTS.values()
    facts = {what: len(tables[t.name]) for what, t in counts if t.name in tables}
    return Report(str(directory), tuple(findings), facts)


def _readable_tables(
    reader: Files, config: SteeringConfig
) -> tuple[dict[str, torch.Tensor], list[Finding]]:
    """Return the tables that can be read and have the right shape, and findings about the others.

    Later checks use only these, so that one fault is reported once.
    """
    tables, findings = {}, []
    for table in (*layout.TABLES, *layout.SPLIT_TABLES.values()):
        try:
            tables[table.name] = reader.tensor(table, mapped=True)
        except InvalidDataError as error:
            findings.append(Finding(reader.locate(table), str(error)))
    faults = list(layout.shape_faults(tables, config.sizes, reader.locate))
    bad = {finding.file for finding in faults}
    right = {n: t for n, t in tables.items() if reader.locate(layout.BY_NAME[n]) not in bad}
    return right, findings + faults


def _count_faults(tables: layout.Tensors, config: SteeringConfig) -> layout.Faults:
    for key, stated in config.counts.items():
        table = layout.COUNTS[key][1]
        if table.name in tables and (found := len(tables[table.name])) != stated:
            problem = f"{key} is {stated}, but {table.file} has {found} rows"
            yield Finding(layout.CONFIG, problem, value=stated)


def _value_faults(tables: layout.Tensors, reader: Files) -> layout.Faults:
    for name, values in tables.items():
        table, place = layout.BY_NAME[name], reader.locate(layout.BY_NAME[name])
        low, high = torch.aminmax(values) if values.numel() else (torch.zeros(()),) * 2
        if not (low.isfinite() and high.isfinite()):
            for what, is_bad in (("NaN", torch.isnan), ("Inf", torch.isinf)):
                problem = f"{what} detected in {name}: {{}}"
                yield from layout.first_fault(place, values, is_bad(values), problem)
        if table.low is not None and table.high is not None:
            problem = f"{name} out of range [{round(table.low)}, {round(table.high)}]: {{}}"
            yield from layout.outside(place, values, table.low, table.high, problem)


def _keyword_faults(tables: layout.Tensors, reader: Files) -> layout.Faults:
    place = reader.locate(layout.KEYWORDS)
    try:
        offsets, values = reader.keywords()
    except InvalidDataError as error:
        yield Finding(place, str(error))
        return
    lists = len(offsets) - 1
    if "pair_index" in tables and lists != (pairs := len(tables["pair_index"])):
        yield Finding(place, f"{place} must have {pairs} lists, one for each pair, found {lists}")
    if "keyword_embs" in tables:
        count = len(tables["keyword_embs"])
        bad = np.flatnonzero((values < 0) | (values >= count))
        if bad.size:
            rows = np.searchsorted(offsets, bad, side="right") - 1
            value, only = int(values[bad[0]]), f"but only {count} keywords exist"
            problem = f"{layout.KEYWORDS.name} references keyword {value}, {only}"
            yield Finding(place, problem, int(rows[0]), value, len(np.unique(rows)))


def _own_sources(tables: layout.Tensors, reader: Files) -> layout.Faults:
    if {"pair_index", "hard_negatives"} <= tables.keys():
        negatives, own = tables["hard_negatives"], tables["pair_index"][:, 1:]
        place = reader.locate(layout.BY_NAME["hard_negatives"])
        problem = "hard_negatives has the pair's own source {} among its negatives"
        yield from layout.first_fault(place, negatives, negatives == own, problem)


def _split_faults(tables: layout.Tensors, reader: Files) -> Iterator[Finding]:
    """Yield what is wrong with each split, alone and compared with the ones before."""
    if "pair_index" not in tables:
        return
    questions = tables["pair_index"][:, 0]
    pairs, named = len(questions), torch.unique(questions, return_inverse=True)[1]
    of_pair = torch.zeros(pairs, dtype=torch.int8)  # the number of its split, from 1
    of_question = torch.zeros(pairs, dtype=torch.int8)
    known = True
    for number, table in enumerate(layout.SPLIT_TABLES.values(), start=1):
        place, rows = reader.locate(table), tables.get(table.name)
        wrong = [] if rows is None else [*layout.split_faults(place, rows, pairs)]
        yield from wrong
        if rows is None or wrong:
            known = known and rows is not None and not len(rows)  # else its pairs are unknown
            continue
        again = torch.ones(len(rows), dtype=torch.bool)
        again[np.unique(rows.numpy(), return_index=True)[1]] = False
        yield from layout.first_fault(place, rows, again, f"{table.name} has pair {{}} twice")
        other, asked = of_pair[rows], of_question[named[rows]]
        yield from layout.first_fault(place, rows, other > 0, f"pair {{}} is in {_file(other)} too")
        shared = (asked > 0) & (other == 0)
        problem = f"question {{}} has pairs in {_file(asked[shared])} too: "
        problem += "a question must be in one split only"
        yield from layout.first_fault(place, questions[rows], shared, problem)
        of_question[named[rows]] = torch.where(asked == 0, number, asked)
        of_pair[rows] = number
    missing = (of_pair == 0).nonzero()
    if known and len(missing):
        place, row = reader.locate(layout.BY_NAME["pair_index"]), int(missing[0])
        yield Finding(place, f"pair {row} is in no split", row, row, len(missing))


def _file(numbers: torch.Tensor) -> str:
    """Return the file of the first split among these numbers."""
    found = numbers[numbers > 0]
    return layout.SPLIT_TABLES[layout.SPLITS[int(found[0]) - 1]].file if len(found) else ""
