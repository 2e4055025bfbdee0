"""`penstock train` and `penstock plan`: from a YAML file to a trained model, or to its plan."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.output import print_result
from penstock.errors import ConfigError
from penstock.training.config import Settings, read_settings
from penstock.training.run import plan as plans
from penstock.training.run.train import is_first_rank, train

log = logging.getLogger("penstock")


def run_train(
    config: Path, overrides: list[str], *, resume: bool, chunk: int | None, dry_run: bool
) -> None:
    """Train, or estimate what it would take; exit with the code of the outcome."""
    first_rank = is_first_rank(os.environ)
    if not first_rank:
        log.setLevel(logging.WARNING)  # one process of a run reports
    settings = given_settings(config, overrides)
    if dry_run:
        print_result(plans.forecast(settings))
        return
    outcome = train(settings, resume=resume, chunk=chunk)
    if first_rank:
        print_result(outcome.text())
    # launchers treat the exit code of the others as a failure
    raise SystemExit(outcome.exit_code if first_rank else 0)


def run_plan(
    config: Path,
    overrides: list[str],
    *,
    step: int | None,
    sample: int | None,
    skip_steps: str | None,
) -> None:
    """Print the plan; or the samples of one step, when a sample comes, or positions to skip."""
    texts: dict[Callable[[Settings, Any], str], Any] = {
        plans.step_text: step,
        plans.sample_text: sample,
        plans.skip_text: skip_steps,
    }
    asked = [(text, value) for text, value in texts.items() if value is not None]
    if len(asked) > 1:
        raise ConfigError("give only one of --step, --sample and --skip-steps")
    settings = given_settings(config, overrides)
    for text, value in asked:
        print_result(text(settings, value))
    if not asked:
        print_result(plans.plan_text(settings))


def given_settings(config: Path, overrides: list[str]) -> Settings:
    """Return the settings, and log their notes."""
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigError(f"invalid override {override!r}: expected key=value")
    settings = read_settings(config, overrides)
    for note in settings.notes:
        log.info("%s", note)
    return settings
