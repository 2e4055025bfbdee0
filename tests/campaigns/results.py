"""What trials found: one outcome a trial, summed up in a table of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

COUNTS = ("lost", "repeated", "hangs", "leftovers", "errors")


@dataclass(slots=True)
class Outcome:
    """What a trial did and found."""

    loader: str
    storage: str
    ranks: str
    event: str
    trial: str  # what repeats it
    count: int = 0  # events: kills, interrupts, schedules, cycles
    lost: int = 0
    repeated: int = 0
    hangs: int = 0
    leftovers: int = 0
    errors: int = 0
    slowest_seconds: float = 0.0  # from an event to the end of the process that continued
    notes: list[str] = field(default_factory=list)

    def compare(self, got: Iterable[list[Any]], want: Iterable[list[Any]]) -> None:
        """Count what the joined steps lack, and what they have too often."""
        got, want = list(got), list(want)
        found, wanted = (
            Counter(number for step in each for number in step) for each in (got, want)
        )
        self.lost += (wanted - found).total()
        self.repeated += (found - wanted).total()
        if self.lost or self.repeated:
            lacks, extra = list((wanted - found).elements()), list((found - wanted).elements())
            self.notes.append(f"lost {lacks[:9]}, repeated {extra[:9]}")
        elif got != want:
            self.fail("the steps differ in order from an uninterrupted run")

    def fail(self, note: str) -> None:
        """Count an error."""
        self.errors += 1
        self.notes.append(note)

    @property
    def bad(self) -> bool:
        """Was anything wrong?"""
        return any(getattr(self, name) for name in COUNTS)

    def __str__(self) -> str:
        """One paragraph for a person who wants to repeat the trial."""
        what = ", ".join(f"{name} {getattr(self, name)}" for name in COUNTS if getattr(self, name))
        head = f"{self.event}: {self.loader}, {self.storage}, {self.ranks} rank(s): {what or 'ok'}"
        return "\n".join(
            [f"{head}\n  --only {self.trial!r}", *(f"  {note}" for note in self.notes)]
        )


def table(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Rows by event, loader, storage and ranks, with the sums of their outcomes."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for outcome in outcomes:
        key = (outcome.event, outcome.loader, outcome.storage, outcome.ranks)
        row = rows.setdefault(
            key,
            dict(zip(("event", "loader", "storage", "ranks"), key, strict=True))
            | {"trials": 0, "count": 0, **dict.fromkeys(COUNTS, 0), "slowest_seconds": 0.0},
        )
        row["trials"] += 1
        for name in ("count", *COUNTS):
            row[name] += getattr(outcome, name)
        row["slowest_seconds"] = round(max(row["slowest_seconds"], outcome.slowest_seconds), 2)
    return [rows[key] for key in sorted(rows)]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON."""
    return asdict(outcome)
