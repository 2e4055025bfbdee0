"""`penstock train` and `penstock plan`: from a YAML file to a trained model, or to its plan."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.cli.output import command_output, print_result
from penstock.errors import ConfigError
from penstock.training.config import Settings, read_settings
from penstock.training.run import is_first_rank, plan_text, sample_text, skip_text, step_text, train


def run_train(
    config: Path,
    overrides: list[str],
    *,
    resume: bool,
    chunk: int | None,
    dry_run: bool,
    debug: bool,
) -> None:
    """Train, or estimate what it would take; exit with the code of the outcome."""
    first_rank = is_first_rank(os.environ)
    with command_output(debug=debug, first_rank=first_rank):
        settings = given_settings(config, overrides)
        outcome = train(settings, resume=resume, chunk=chunk, dry_run=dry_run)
        if first_rank:
            print_result(outcome.text())
    # only one process reports: launchers treat the exit code of the others as a failure
    raise SystemExit(outcome.exit_code if first_rank else 0)


def run_plan(
    config: Path,
    overrides: list[str],
    *,
    step: int | None,
    sample: int | None,
    skip_steps: str | None,
    debug: bool,
) -> None:
    """Print the plan; or the samples of one step, when a sample comes, or positions to skip."""
    with command_output(debug=debug):
        if sum(asked is not None for asked in (step, sample, skip_steps)) > 1:
            raise ConfigError("give only one of --step, --sample and --skip-steps")
        settings = given_settings(config, overrides)
        if step is not None:
            print_result(step_text(settings, step))
        elif sample is not None:
            print_result(sample_text(settings, sample))
        elif skip_steps is not None:
            print_result(skip_text(settings, skip_steps))
        else:
            print_result(plan_text(settings))


log = logging.getLogger("penstock")


def given_settings(config: Path, overrides: list[str]) -> Settings:
    """Return the settings, and log their notes."""
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigError(f"invalid override {override!r}: expected key=value")
    settings = read_settings(config, overrides)
    for note in settings.notes:
        log.info("%s", note)
    return settings
