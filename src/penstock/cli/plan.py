"""`penstock plan`: what a configuration will read, and when."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.cli.reporting import speaking
from penstock.training.running import plan_text, step_text
from penstock.training.settings import read_settings

log = logging.getLogger("penstock")


def run_plan(config: Path, overrides: list[str], *, step: int | None, debug: bool) -> None:
    """Print the plan, or the samples of one step."""
    with speaking(debug=debug):
        settings = read_settings(config, overrides)
        for note in settings.notes:
            log.info("%s", note)
        print(plan_text(settings) if step is None else step_text(settings, step))
