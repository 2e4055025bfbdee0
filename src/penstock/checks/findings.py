"""The result of a validation: file, row and value of each fault, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from penstock.errors import SourceError

Value: TypeAlias = int | float | str | None

SHOWN = 10  # findings in an error message; the report has all of them


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
        return json.dumps(
            {"subject": self.subject, "ok": self.ok, "facts": dict(self.facts), "findings": found}
        )

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
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return value
    return str(value) if isinstance(value, float) else value
