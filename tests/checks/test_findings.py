"""Reports read well for people, and parse for machines."""

from __future__ import annotations

import json

import pytest

from penstock.checks import Finding, InvalidDataError, Report
from penstock.errors import PenstockError


def test_a_report_without_findings_is_ok_and_raises_nothing():
    report = Report("data", (), {"pairs": 1000})
    report.raise_if_any()
    assert report.ok and str(report) == "data is valid: 1,000 pairs"


def test_findings_raise_as_a_value_error_that_names_them():
    report = Report("data", (Finding("a.pt", "NaN detected in a", 3, float("nan"), 2),))
    with pytest.raises(InvalidDataError, match=r"a.pt row 3 \(and 1 more\): NaN detected in a"):
        report.raise_if_any()
    assert issubclass(InvalidDataError, ValueError | OSError | PenstockError)


def test_many_findings_are_counted_not_all_shown():
    report = Report("data", tuple(Finding(f"{i}.pt", "bad") for i in range(30)))
    assert "has 30 faults" in str(report) and "and 20 more findings" in str(report)


def test_json_has_every_finding_and_no_nan():
    found = (Finding("a.pt", "NaN", 3, float("nan")), Finding("b.pt", "high", 1, 2.5))
    said = json.loads(Report("data", found, {"pairs": 3}).to_json())
    assert said["ok"] is False and said["facts"] == {"pairs": 3}
    assert [f["value"] for f in said["findings"]] == ["nan", 2.5]
