"""What measurements mean: tables, JSON and plots in one self-contained page."""

from penstock.report.benchmark import BenchmarkReport

__all__ = ["BenchmarkReport"]
