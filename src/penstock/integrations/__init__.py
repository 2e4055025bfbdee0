"""One package or module per trainer; nothing else in Penstock imports a trainer.

This module refuses a resume with a trainer that is used without its adapter, unless it is exact.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

from penstock.errors import StateError

log = logging.getLogger("penstock")

# trainers that need an adapter to restore a position, and the module whose `check_loader` refuses a
# resume without it; Lightning has two names, and its adapter imports the first one
TRAINERS: Final = {
    "lightning.pytorch.trainer.trainer.Trainer": "penstock.integrations",
    "pytorch_lightning.trainer.trainer.Trainer": "penstock.integrations",
    "transformers.trainer.Trainer": "penstock.integrations.huggingface",
}
_WARNED: Final = WeakSet[Any]()  # Trainers of Lightning


def running_trainer(*names: str) -> tuple[Any, str] | None:
    """Return the trainer of one of these names in the call stack, and its name; None without one.

    Trainers do not identify themselves to a loader. A loader that is used without an adapter can
    only find its trainer in the call stack.

    Args:
        names: Keys of `TRAINERS`.
    """
    if not {name.rpartition(".")[0] for name in names} & sys.modules.keys():
        return None
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        for kind in type(caller).__mro__:
            name = f"{kind.__module__}.{kind.__qualname__}"
            if name in names:
                return caller, name
        frame = frame.f_back
    return None


def check_running_trainer(loader: Any) -> bool:
    """Refuse a resume that the running trainer makes inexact; return whether there is a trainer."""
    found = running_trainer(*TRAINERS)
    if found is None:
        return False
    trainer, name = found
    import_module(TRAINERS[name]).check_loader(trainer, loader)
    return True


# -- Lightning


def check_loader(trainer: Any, loader: Any) -> None:
    """Refuse a resume without `ChunkedTraining`, before its first batch, unless it is exact.

    A new run that writes checkpoints gets one warning. This is called when Lightning sets the epoch
    of a training loader, before every epoch; whatever Lightning restores is restored by then.

    Args:
        trainer: Lightning's Trainer, which calls the loader.
        loader: The loader, as it was given to the Trainer.
    """
    ours = any(hasattr(each, "chunked_training_enabled") for each in trainer.callbacks)
    if ours or not trainer.training:
        return
    name = type(loader).__name__
    advice = "add callbacks=[ChunkedTraining()] to the Trainer of lightning.pytorch"
    if not hasattr(loader, "remaining"):
        advice = (
            "use a dataset with an index (Parquet, Zarr, a map-style dataset) and ChunkedTraining, "
            "or loader.load_state_dict in a loop of your own"
        )
    if trainer.fit_loop.is_resuming:
        if why := _why_not_exact(trainer, loader):
            raise StateError(f"cannot resume this {name} exactly: {why}; {advice}")
    elif loader.is_new and trainer.current_epoch:
        log.warning(
            "epoch %d begins with a new %s at its start: to continue with the samples that are "
            "left, return the same loader every time",
            *(trainer.current_epoch, name),
        )
    elif trainer.checkpoint_callbacks and trainer not in _WARNED:
        _WARNED.add(trainer)
        if trainer.is_global_zero:
            log.warning(
                "Lightning alone does not restore the position of a %s from every checkpoint, and "
                "such a resume is refused: %s",
                *(name, advice),
            )


def _why_not_exact(trainer: Any, loader: Any) -> str | None:
    """Return why Lightning's resume is not exact; None if it is, as far as is known."""
    fit, model = trainer.fit_loop, trainer.lightning_module
    trained = fit.epoch_loop.batch_progress
    scored = fit.epoch_loop.val_loop.batch_progress.current
    batches, total, ended = trained.current.ready, trained.total.ready, trained.is_last_batch
    epochs, steps = fit.epoch_progress.current, trainer.global_step
    if not total and loader.is_new:
        return None
    if not hasattr(loader, "remaining"):  # it has no length
        return "Lightning reads it one batch ahead, and counts that batch as trained"
    if steps != total or not model.automatic_optimization:
        return f"{steps} steps used {total} batches, and those after the last step may be lost"
    length, chunk = len(loader), loader.chunk_size
    restored = not loader.is_new
    if not fit.restarting:  # an epoch's end: Lightning loads no state of a loader
        start, each = loader.position.start, loader.plan.steps  # a data module may have loaded it
        delivered = start.epoch * each.count + -(-start.position // each.whole)
        restored = each.is_constant and delivered == total
    if not restored or length - loader.remaining != (0 if ended else batches):
        return f"Lightning did not restore its position, after {total} batches"
    if not ended and epochs.started == epochs.processed:
        return "Lightning was stopped inside an epoch, and counts it as a whole one"
    again = trainer.reload_dataloaders_every_n_epochs == 1
    inside = ended and fit.restarting  # of an epoch whose batches are all done
    if (inside and length != batches) or (chunk not in (None, length) and not again):
        return f"the chunk has {length} batches, and Lightning expects every chunk to be as long"
    if trainer.enable_validation and fit.restarting:  # else the epoch ended, with its validations
        every = trainer.val_check_batch
        before = trained.total.completed != trained.total.processed  # any validation after it
        missed = ended or every is None or not batches % every
        if missed if before else not scored.ready == scored.completed > 0:
            return "Lightning would leave out a validation that is due"
    if trainer.enable_validation:
        moving = (x for x in _flat(trainer.val_dataloaders) if getattr(x, "chunk_size", None))
        if any(not x.position.evaluation for x in moving):
            return "Lightning does not restore the position of the validation loader"
    return None


def _flat(loaders: Any) -> list[Any]:
    """Return the loaders in a collection of Lightning's."""
    if isinstance(loaders, Mapping):
        loaders = [*loaders.values()]
    return [*chain(*map(_flat, loaders))] if isinstance(loaders, list | tuple) else [loaders]
