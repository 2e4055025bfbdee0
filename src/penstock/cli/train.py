"""`penstock train`: a YAML file in, a trained model out."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.cli.reporting import say, speaking
from penstock.cli.settings import given_settings
from penstock.training.run import is_first_rank, train


def run_train(
    config: Path,
    overrides: list[str],
    *,
    resume: bool,
    chunk: int | None,
    dry_run: bool,
    debug: bool,
) -> None:
    """Train, or only say what it would take; leaves with the exit code of what happened."""
    first_rank = is_first_rank(os.environ)
    with speaking(debug=debug, aloud=first_rank):
        settings = given_settings(config, overrides)
        outcome = train(settings, resume=resume, chunk=chunk, dry_run=dry_run)
        if first_rank:
            say(outcome.text())
    # of several processes one speaks: who started the others takes their codes for failures
    raise SystemExit(outcome.exit_code if first_rank else 0)
