"""Reports of measurements: tables, JSON, plots and self-contained pages."""

from penstock.report.benchmark import BenchmarkReport as BenchmarkReport
