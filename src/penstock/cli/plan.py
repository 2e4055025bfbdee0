"""`penstock plan`: what a configuration will read, and when."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.reporting import say, speaking
from penstock.cli.settings import given_settings
from penstock.training.run import plan_text, step_text


def run_plan(config: Path, overrides: list[str], *, step: int | None, debug: bool) -> None:
    """Print the plan, or the samples of one step."""
    with speaking(debug=debug):
        settings = given_settings(config, overrides)
        say(plan_text(settings) if step is None else step_text(settings, step))
