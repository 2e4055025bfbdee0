"""Checks: what a batch or a dataset should be, said once, and what was found instead."""

from penstock.checks.findings import Finding, InvalidDataError, Report
from penstock.checks.sampling import Checked, checked
from penstock.checks.schema import BatchSchema, TensorSpec

__all__ = [
    "BatchSchema",
    "Checked",
    "Finding",
    "InvalidDataError",
    "Report",
    "TensorSpec",
    "checked",
]
