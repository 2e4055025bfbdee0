"""Output of commands: results, log lines and errors, and the exit code."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import MissingExtraError, PenstockError, RunFailedError, one_line

log = logging.getLogger("penstock")

REFUSED: Final = 2
FAILED: Final = 1
INTERRUPTED: Final = 130

LIGHTNING_NOTES: Final = (  # warnings about what Penstock decides for the user
    ".*does not have many workers",
    ".*LeafSpec",
    ".*smaller than the logging interval",
    ".*exists and is not empty",
    ".*callbacks used to create the checkpoint",
    ".*sync_dist=True",
    ".*across ranks is zero",
)
LIGHTNING_LOGS: Final = (  # not their packages: these set their own level when they are imported
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
)


@contextmanager
def command_output(*, debug: bool) -> Iterator[None]:
    """Show log lines of a block, and turn its errors into a sentence and an exit code.

    Args:
        debug: Show tracebacks, and all messages of Lightning.
    """
    handler = logging.StreamHandler(sys.stderr)
    levels = {"penstock": logging.INFO}
    log.addHandler(handler)
    if not debug:
        levels |= dict.fromkeys(LIGHTNING_LOGS, logging.WARNING)
    before = {name: logging.getLogger(name).level for name in levels}
    with warnings.catch_warnings():
        for pattern in () if debug else LIGHTNING_NOTES:
            warnings.filterwarnings("ignore", message=pattern)
        try:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            with exit_codes(debug=debug):
                yield
        finally:
            log.removeHandler(handler)
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


def print_result(text: str) -> None:
    """Print text; a closed pipe, as in ``penstock plan x.yaml | head -1``, is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # Python flushes stdout once more at exit


@contextmanager
def exit_codes(*, debug: bool) -> Iterator[None]:
    """Exit with 2 for an invalid request and 1 for a failed run, if the block raises."""
    try:
        yield
    except Exception as error:
        if debug:
            log.exception("where it happened:")
        refused = isinstance(error, PenstockError)
        failed = isinstance(error, RunFailedError | MissingExtraError)
        print(f"penstock: {error if refused else one_line(error)}", file=sys.stderr)
        raise SystemExit(REFUSED if refused and not failed else FAILED) from None
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
