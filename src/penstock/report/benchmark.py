"""`BenchmarkReport`: measured configurations as a table, a dict, JSON, a plot or a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from penstock.arguments import format_bytes, real_number
from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.extras import optional

SETTINGS = ("executor", "num_workers", "threads", "prefetch_factor", "pin_memory")
COLUMNS = {
    "samples/s": ("samples_per_second", "{:,.0f}"),
    "mean": ("mean_batch_time", "{:.3g} s"),
    "p50": ("p50", "{:.3g} s"),
    "p95": ("p95", "{:.3g} s"),
    "first batch": ("first_batch_time", "{:.3g} s"),
    "CPU/sample": ("cpu_seconds_per_sample", "{:.2g} s"),
    "memory": ("memory_bytes", ""),
}
FIGURES = {key for key, _ in COLUMNS.values()}


@dataclass(frozen=True)
class BenchmarkReport:
    """The results of `DataLoaderPerformanceMonitor.benchmark_configurations` in readable forms.

    Args:
        results: The figures and settings of each configuration, by its name. Figures are finite
            numbers.

    Raises:
        ConfigError: The results are not a dict of dicts, or a figure is invalid.

    >>> report = BenchmarkReport({"config_1": {"num_workers": 0, "samples_per_second": 1200.0}})
    >>> print(report.to_table())
       configuration             samples/s
    *  config_1: num_workers=0       1,200
    """

    results: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.results, Mapping):
            raise ConfigError(f"results must be a dict of dicts, got {type(self.results).__name__}")
        for name, found in self.results.items():
            if not isinstance(name, str) or not isinstance(found, Mapping):
                raise ConfigError(f"results must have figures by name, got {name!r}: {found!r}")
            for figure in FIGURES & found.keys():
                label = f"{figure} of {name}"
                real_number(label, found[figure], minimum=0, error=ConfigError)

    @property
    def best(self) -> str:
        """The name of the fastest configuration; empty if no speed was measured."""
        key = "samples_per_second"
        rates = {name: found[key] for name, found in self.results.items() if key in found}
        return max(rates, key=rates.__getitem__, default="")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the results as plain dicts."""
        return {name: dict(each) for name, each in self.results.items()}

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the results as JSON. Functions and other objects are written as their names.

        Args:
            path: A file to write the text to as well.
        """
        text = json.dumps(self.to_dict(), indent=2, default=_named)
        if path is not None:
            replace_text(Path(path), text + "\n")
        return text

    def to_table(self) -> str:
        """Return a table with a line for each configuration; a star marks the fastest."""
        rows = [["", "configuration", *self._columns()]]
        for name in self.results:
            rows.append(["*" if name == self.best else "", self.label(name), *self._cells(name)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(_line(row, widths) for row in rows)

    def figure(self) -> Any:
        """Return a Plotly figure with the throughput and the time per batch."""
        graph = optional("plotly.graph_objects", extra="report")
        subplots = optional("plotly.subplots", extra="report")
        titles = ("samples/s", "seconds per batch: median to 95th percentile")
        figure = subplots.make_subplots(1, 2, subplot_titles=titles)
        names = [self.label(name) for name in self.results]
        rates = [each.get("samples_per_second") for each in self.results.values()]
        figure.add_trace(graph.Bar(x=names, y=rates, showlegend=False), 1, 1)
        middle = [each.get("p50", 0.0) for each in self.results.values()]
        spread = [each.get("p95", 0.0) - each.get("p50", 0.0) for each in self.results.values()]
        error = {"type": "data", "array": spread, "arrayminus": [0.0] * len(spread)}
        bars = graph.Scatter(x=names, y=middle, error_y=error, mode="markers", showlegend=False)
        return figure.add_trace(bars, 1, 2).update_layout(title="Loading, by configuration")

    def to_html(self, path: str | Path | None = None) -> str:
        """Return an HTML page with the plot and the table, which needs no network.

        Args:
            path: A file to write the page to as well.
        """
        plot = self.figure().to_html(full_html=False, include_plotlyjs=True)
        page = PAGE.format(plot=plot, table=escape(self.to_table()))
        if path is not None:
            replace_text(Path(path), page)
        return page

    def label(self, name: str) -> str:
        """Return the name of a configuration with its settings."""
        found = self.results[name]
        settings = [f"{key}={found[key]!r}" for key in SETTINGS if found.get(key) is not None]
        return f"{name}: {', '.join(settings)}" if settings else name

    def _columns(self) -> list[str]:
        measured = {key for each in self.results.values() for key in each}
        return [title for title, (key, _) in COLUMNS.items() if key in measured]

    def _cells(self, name: str) -> list[str]:
        values = {title: self.results[name].get(COLUMNS[title][0]) for title in self._columns()}
        return [
            "" if value is None else COLUMNS[title][1].format(value) or format_bytes(int(value))
            for title, value in values.items()
        ]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Loading, by configuration</title>
<style>body {{ font-family: sans-serif; margin: 2em }} pre {{ overflow-x: auto }}</style></head>
<body>{plot}<pre>{table}</pre></body></html>
"""


def _line(row: list[str], widths: list[int]) -> str:
    mark, name, *figures = (
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((mark, name, *figures)).rstrip()


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or value)
