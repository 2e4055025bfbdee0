"""Results are read as a table, a dict, JSON, a plot and one page."""

import json
import re
import sys

import pytest
import torch

from penstock.errors import ConfigError, MissingExtraError
from penstock.report import BenchmarkReport
from penstock.tuning import DataLoaderPerformanceMonitor

RESULTS = {
    "config_1": {"num_workers": 0, "samples_per_second": 900.0, "p50": 0.01, "p95": 0.02},
    "config_2": {"num_workers": 2, "samples_per_second": 1800.5, "p50": 0.005, "p95": 0.05},
}


@pytest.fixture
def report():
    return BenchmarkReport(RESULTS)


def test_the_fastest_is_marked_and_every_figure_has_its_unit(report):
    lines = report.to_table().splitlines()
    assert report.best == "config_2"
    assert lines[0].split() == ["configuration", "samples/s", "p50", "p95"]
    assert lines[1].startswith("   config_1: num_workers=0")
    assert lines[2].split()[3:] == ["1,800", "0.005", "s", "0.05", "s"]
    assert lines[2].startswith("*  config_2: num_workers=2")
    assert len({len(line) for line in lines}) == 1  # columns are straight


def test_json_and_dict_hold_the_results(report, tmp_path):
    assert report.to_dict() == RESULTS
    assert json.loads(report.to_json(tmp_path / "r.json")) == RESULTS
    assert json.loads((tmp_path / "r.json").read_text()) == RESULTS
    named = BenchmarkReport({"a": {"collate_fn": torch.stack, "samples_per_second": 1.0}})
    assert "collate_fn" in json.loads(named.to_json())["a"]


def test_the_plot_shows_what_was_measured(report):
    bars, points = report.figure().data
    assert list(bars.y) == [900.0, 1800.5]
    assert list(points.y) == [0.01, 0.005]
    assert list(points.error_y.array) == pytest.approx([0.01, 0.045])


def test_the_page_needs_nothing_else(report, tmp_path):
    page = report.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    assert "config_2: num_workers=2" in page and "Plotly.newPlot" in page
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", page) == []


def test_measurements_of_the_monitor_are_reported(capsys):
    configs = [{"num_workers": 0}, {"executor": "threads"}]
    monitor = DataLoaderPerformanceMonitor()
    results = monitor.benchmark_configurations(torch.zeros(64, 3), 4, configs)
    table = BenchmarkReport(results).to_table()
    assert "config_2: executor='threads'" in table
    assert "CPU/sample" in table and ("MB" in table or "GB" in table)


def test_no_results_are_an_empty_table():
    assert BenchmarkReport({}).to_table().split() == ["configuration"]
    assert BenchmarkReport({}).best == ""


def test_a_table_needs_no_plotting_library_and_a_plot_says_which(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert report.to_table()
    with pytest.raises(MissingExtraError, match=r"penstock\[report\]"):
        report.figure()


@pytest.mark.parametrize(
    "results",
    [
        None, [], "config", 3, {"a": 1}, {"a": None}, {1: {}}, {"a": [("p50", 1)]},
        *({"a": {"samples_per_second": v}} for v in ("9", None, True, -1.0, float("nan"))),
        *({"a": {"memory_bytes": v}} for v in ("9", None, float("inf"))),
    ],
)  # fmt: skip
def test_results_that_are_none_are_refused(results):
    with pytest.raises(ConfigError, match=r"results must|must be (a number|finite|at least)"):
        BenchmarkReport(results)


def test_what_was_not_measured_is_not_called_the_best():
    assert BenchmarkReport({"a": {"num_workers": 0}}).best == ""
    assert BenchmarkReport({"a": {"p50": 1.0}, "b": {"samples_per_second": 0.0}}).best == "b"
