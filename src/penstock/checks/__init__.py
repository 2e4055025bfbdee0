"""Checks of batches against a schema, and reports of what is wrong with a dataset."""

from penstock.checks.findings import Finding, InvalidDataError, Report
from penstock.checks.schema import BatchSchema, Checked, TensorSpec, checked

__all__ = [
    "BatchSchema",
    "Checked",
    "Finding",
    "InvalidDataError",
    "Report",
    "TensorSpec",
    "checked",
]
