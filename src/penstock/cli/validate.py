"""`penstock validate`: is a dataset directory what it should be?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from penstock.datasets import validate_dataset

NOT_VALID, REFUSED = 1, 2


def run_validate(directory: Path, *, as_json: bool) -> NoReturn:
    """Print every finding, or one JSON object; leaves with 0, 1 where there are findings, or 2."""
    if not directory.is_dir():
        print(f"penstock: there is no directory {directory}", file=sys.stderr)
        raise SystemExit(REFUSED)
    report = validate_dataset(directory)
    if as_json:
        print(report.to_json())
    elif report.ok:
        print(report)
    else:
        print(f"{report.subject} has {len(report.findings)} faults:")
        print("\n".join(f"  {finding}" for finding in report.findings))
    raise SystemExit(0 if report.ok else NOT_VALID)
