"""Measured configurations, to be read: a table, a dict, JSON, a plot, one page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from penstock.arguments import real_number
from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.sizes import format_bytes

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
    """What `DataLoaderPerformanceMonitor.benchmark_configurations` found, made readable.

    Args:
        results: The figures and settings of each configuration, by its name. Figures are finite
            numbers.

    >>> report = BenchmarkReport({"config_1": {"num_workers": 0, "samples_per_second": 1200.0}})
    >>> print(report.to_table())
       configuration             samples/s
    *  config_1: num_workers=0       1,200
    """

    results: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.results, Mapping):
            raise ConfigError(
                f"results must be a dict of dicts, as benchmark_configurations() returns it, got "
                f"{type(self.results).__name__}"
            )
        for name, found in self.results.items():
            if not isinstance(name, str) or not isinstance(found, Mapping):
                raise ConfigError(
                    f"results must have a dict of figures for each name, got {name!r}: {found!r}"
                )
            for figure in FIGURES & found.keys():
                label = f"{figure} of {name}"
                real_number(label, found[figure], minimum=0, error=ConfigError)

    @property
    def best(self) -> str:
        """The name of the fastest configuration; empty where no speed was measured."""
        measured = (name for name in self.results if "samples_per_second" in self.results[name])
        rates = {name: self.results[name]["samples_per_second"] for name in measured}
        return max(rates, key=rates.__getitem__, default="")

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The results as plain dicts."""
        return {name: dict(each) for name, each in self.results.items()}

    def to_json(self, path: str | Path | None = None) -> str:
        """The results as JSON; written to ``path`` too, where one is given.

        What JSON has no word for (a collate function, say) is named.
        """
        text = json.dumps(self.to_dict(), indent=2, default=_named)
        if path is not None:
            replace_text(Path(path), text + "\n")
        return text

    def to_table(self) -> str:
        """A line for each configuration, the fastest marked."""
        rows = [["", "configuration", *self._columns()]]
        for name in self.results:
            rows.append(["*" if name == self.best else "", self.label(name), *self._cells(name)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(_line(row, widths) for row in rows)

    def figure(self) -> Any:
        """A plot: samples a second, and how long batches take to come, with their spread."""
        graph = optional("plotly.graph_objects", extra="report")
        subplots = optional("plotly.subplots", extra="report")
        titles = ("samples/s", "seconds a batch: median, and up to the 95th percentile")
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
        """One page that needs nothing else, not even a network; written to ``path`` if given."""
        plot = self.figure().to_html(full_html=False, include_plotlyjs=True)
        page = PAGE.format(plot=plot, table=escape(self.to_table()))
        if path is not None:
            replace_text(Path(path), page)
        return page

    def label(self, name: str) -> str:
        """A configuration's name with its settings."""
        found = self.results[name]
        settings = [f"{key}={found[key]!r}" for key in SETTINGS if found.get(key) is not None]
        return f"{name}: {', '.join(settings)}" if settings else name

    def _columns(self) -> list[str]:
        measured = {key for each in self.results.values() for key in each}
        return [title for title, (key, _) in COLUMNS.items() if key in measured]

    def _cells(self, name: str) -> list[str]:
        found, cells = self.results[name], []
        for key, form in (COLUMNS[title] for title in self._columns()):
            value = found.get(key)
            shown = "" if value is None else form.format(value) or format_bytes(int(value))
            cells.append(shown)
        return cells


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Loading, by configuration</title>
<style>body {{ font-family: sans-serif; margin: 2em }} pre {{ overflow-x: auto }}</style></head>
<body>{plot}<pre>{table}</pre></body></html>
"""


def _line(row: list[str], widths: list[int]) -> str:
    mark, name, *figures = (
        cell.ljust(width) if place < 2 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((mark, name, *figures)).rstrip()


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or value)
