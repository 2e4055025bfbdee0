"""`penstock validate`: is a dataset directory what it should be?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from penstock.cli.reporting import say
from penstock.datasets import validate_dataset

NOT_VALID, REFUSED = 1, 2


def run_validate(directory: Path, *, as_json: bool) -> NoReturn:
    """Print every finding, or one JSON object; leaves with 0, 1 where there are findings, or 2."""
    if not directory.is_dir():
        print(f"penstock: there is no directory {directory}", file=sys.stderr)
        raise SystemExit(REFUSED)
    if not any((directory / name).exists() for name in ("config.json", "pair_index.pt")):
        print(
            f"penstock: {directory} is no steering dataset, the only kind that is checked here: it "
            "has no config.json",
            file=sys.stderr,
        )
        raise SystemExit(REFUSED)
    report = validate_dataset(directory)
    if as_json:
        say(report.to_json())
    elif report.ok:
        say(str(report))
    else:
        faults = "1 fault" if len(report.findings) == 1 else f"{len(report.findings)} faults"
        say(f"{report.subject} has {faults}:")
        say("\n".join(f"  {finding}" for finding in report.findings))
    raise SystemExit(0 if report.ok else NOT_VALID)
