"""Why a run could not begin, or ended: in one sentence that says where it is kept."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConfigError, PenstockError
from penstock.extras import optional
from penstock.training.run.restoring import came_from_restoring, first_mismatch, misfit
from penstock.training.run.wording import in_a_line

exceptions = optional("lightning.pytorch.utilities.exceptions", extra="train")


class RunFailedError(PenstockError, RuntimeError):
    """Training that had begun, and failed; its run directory can be resumed."""


def failure(error: Exception, run_dir: Path, *, began: bool) -> Exception:
    """What to raise instead of what Lightning's Trainer raised.

    Before the first step a refusal stays what it is, and Lightning's become ours.
    """
    if began:
        return RunFailedError(
            f"{in_a_line(error)} (training stopped; the run is kept in {str(run_dir)!r}: fix "
            "the cause and continue with --resume)"
        )
    if isinstance(error, exceptions.MisconfigurationException):
        return ConfigError(f"Lightning refuses the configuration: {in_a_line(error)}")
    if not isinstance(error, PenstockError) and came_from_restoring(error):
        return misfit(first_mismatch(error))
    return error
