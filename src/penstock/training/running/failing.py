"""Why a run could not begin, or ended: in one sentence that says where it is kept."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConfigError, PenstockError
from penstock.extras import optional

exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")


class RunFailedError(PenstockError, RuntimeError):
    """Training that had begun, and failed; its run directory can be resumed."""


def in_a_line(error: BaseException) -> str:
    """The kind of an error and what it says, without what a worker's traceback adds.

    >>> in_a_line(ValueError("no such pitch: 440"))
    'ValueError: no such pitch: 440'
    >>> in_a_line(KeyError("x"))
    "KeyError: 'x'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "Traceback" in str(error):
        return lines[-1]  # torch puts a worker's error at the end of its traceback
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def failure(error: Exception, run_dir: Path, *, began: bool) -> Exception:
    """What to raise instead of what Lightning's Trainer raised.

    Before the first step a refusal stays what it is, and Lightning's become ours.
    """
    if began:
        return RunFailedError(
            f"{in_a_line(error)} (training stopped; the run is kept in {str(run_dir)!r}: mend it "
            "and go on with --resume)"
        )
    if isinstance(error, exceptions.MisconfigurationException):
        return ConfigError(f"Lightning refuses the configuration: {in_a_line(error)}")
    return error
