"""Writes the figures of the comparison from benchmark results: ``python -m docs.make.figures``.

A row is a claim of a file in ``benchmarks/results`` that compares Penstock with another loader.
Run it after a benchmark; a test compares the pages with the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "comparison.md")
BLOCK = re.compile(r"(<!-- figures: .*? -->\n).*?(<!-- end of figures -->)", re.S)
CLAIM = re.compile(r"(?:(?P<data>.+?)[:,] )?times (?:faster than|as fast as) (?P<other>.+)")


class Row(NamedTuple):
    """One comparison: the data, the other loader, and how many times faster Penstock is."""

    data: str
    other: str
    times: float

    def markdown(self) -> str:
        """Return the row of a table; a figure below 1 is bold."""
        figure = f"{self.times:.0f}" if self.times >= 10 else f"{self.times:.2g}"
        return f"| {self.data} | {self.other} | {figure if self.times >= 1 else f'**{figure}**'} |"


def rows_of(results: dict[str, Any]) -> list[Row]:
    """Return the comparisons of a file of results, in its order."""
    found = []
    for line in results["lines"]:
        claim = CLAIM.fullmatch(line.get("claim", ""))
        if claim is not None and "found" in line:
            data, other = claim["data"], claim["other"]
            if data is None:  # "times faster than patches, tensorstore": the data comes first
                data, _, other = other.partition(", ")
            found.append(Row(data, other, line["found"]))
    return found


def table() -> str:
    """Return the table of all comparisons, and when and where they were measured."""
    lines, places = ["| data | against | times its speed |", "|---|---|---|"], []
    for path in sorted(RESULTS.glob("*.json")):
        results = json.loads(path.read_text())
        if rows := rows_of(results):
            lines += [row.markdown() for row in rows]
            machine = results["machine"]
            what = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}"
            places.append(f"`{path.stem}` on {results['date'][:10]} ({what})")
    where = "; ".join(places)
    return "\n".join([*lines, "", f"**Bold**: Penstock is slower. Measured by {where}.", ""])


def with_figures(page: str) -> str:
    """Return the text of a page with the current table in its place."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{table()}\n{block[2]}", page)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_figures(each.read_text()))
