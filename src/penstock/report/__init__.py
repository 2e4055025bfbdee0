"""Reports of measurements: tables, JSON, plots and self-contained pages."""

from penstock.report.benchmark import BenchmarkReport
from penstock.report.run_files import Run, Session
from penstock.report.run_page import page_of, trace_of, write_report

__all__ = ["BenchmarkReport", "Run", "Session", "page_of", "trace_of", "write_report"]
