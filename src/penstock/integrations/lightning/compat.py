"""Lightning's private names. No other file of Penstock uses them.

Tested with the versions in `TESTED_VERSIONS`. If a new Lightning fails, look here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.extras import optional

TESTED_VERSIONS: Final = ("2.6.0", "2.6.6")

callbacks = optional("lightning.pytorch.callbacks", extra="lightning")
_connector = optional("lightning.pytorch.trainer.connectors.data_connector", extra="lightning")

CombinedLoader: Final = optional(
    "lightning.pytorch.utilities.combined_loader", extra="lightning"
).CombinedLoader
sized_len: Final = optional("lightning.fabric.utilities.data", extra="lightning").sized_len
DataLoaderSource: Final = _connector._DataLoaderSource

_LOGGED_STEPS: Final = "_batches_that_stepped"

# -- loaders


def data_sources(trainer: Any) -> tuple[Any, Any]:
    """Return the sources that Lightning gets its training and validation loaders from."""
    fit = trainer.fit_loop
    return fit._data_source, fit.epoch_loop.val_loop._data_source


def set_data_sources(trainer: Any, training: Any, validation: Any) -> None:
    """Have Lightning get its loaders from these sources."""
    fit = trainer.fit_loop
    fit._data_source, fit.epoch_loop.val_loop._data_source = training, validation


def request_loaders(source: Any) -> None:
    """Ask a source for its loaders as Lightning does, with barriers and warnings."""
    _connector._request_dataloader(source)


def forget_combined_loaders(trainer: Any) -> None:
    """Have Lightning set up its loaders again; strategies that restore late did it too early."""
    for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop):
        loop._combined_loader = None


def read_validation_lengths_again(trainer: Any) -> None:
    """Have Lightning read the length of validation loaders before the next validation.

    It reads them once an epoch. If the next validation of the same epoch uses a chunk of
    a different length, samples would be skipped.
    """
    trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = float("-inf")


# -- counters


def logged_steps(trainer: Any) -> int:
    """Return the step that Lightning passes to loggers."""
    return int(getattr(trainer.fit_loop.epoch_loop, _LOGGED_STEPS))


def set_logged_steps(trainer: Any, steps: int) -> None:
    """Set the step that Lightning passes to loggers."""
    setattr(trainer.fit_loop.epoch_loop, _LOGGED_STEPS, steps)


def logged_steps_of(checkpoint: Mapping[str, Any]) -> int:
    """Return the step that Lightning passed to loggers when it wrote a checkpoint."""
    return int(checkpoint["loops"]["fit_loop"]["epoch_loop.state_dict"][_LOGGED_STEPS])


def end_restart(trainer: Any) -> None:
    """Tell Lightning that this epoch is no longer a restarted one.

    At the end of a restarted epoch it does not step schedulers that reduce on a plateau.
    """
    trainer.fit_loop._restarting = False


def step_plateau_schedulers(trainer: Any) -> None:
    """Step the schedulers for the epoch that just ended.

    A checkpoint that is written in the last hook of an epoch does not contain this step.
    """
    epochs = trainer.fit_loop.epoch_progress.current
    epochs.completed -= 1  # schedulers compare with it
    trainer.fit_loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    epochs.completed += 1


def epoch_metrics(trainer: Any) -> dict[str, Any]:
    """Return the metrics of the current loop, over its whole epoch."""
    found: dict[str, Any] = trainer._results.metrics(on_step=False)["callback"]
    return found


# -- checkpoints


def remove_loader_states(checkpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Remove and return the loader states that Lightning itself saved in a checkpoint."""
    fit: dict[str, Any] = checkpoint["loops"]["fit_loop"]["state_dict"]
    found: list[dict[str, Any]] = fit.pop("combined_loader", [])
    return found


def set_fit_counters(checkpoint: Mapping[str, Any], progress: Any, *, validated: bool) -> None:
    """Replace the counters in a checkpoint so that Lightning resumes at a given batch.

    Lightning can be interrupted at many points. Here they are reduced to two: between chunks (an
    epoch starts), or inside a chunk (the epoch has started, and all batch counters agree).

    Args:
        checkpoint: Lightning's checkpoint.
        progress: The `Progress` to resume at.
        validated: Whether these weights were validated. If not, the validation is run when due.
    """
    chunks = progress.chunks
    epochs, validation = _equal_counters(chunks), _equal_counters(0)
    if progress.done:
        epochs |= {"ready": chunks + 1, "started": chunks + 1}
        if not validated:
            validation |= {"ready": 1, "started": 1}
    checkpoint["loops"]["fit_loop"].update(
        {
            "epoch_progress": {"total": epochs, "current": dict(epochs)},
            "epoch_loop.batch_progress": {
                "total": _equal_counters(progress.batches),
                "current": _equal_counters(progress.done),
                "is_last_batch": progress.ended,
            },
            "epoch_loop.val_loop.batch_progress": {
                "total": validation,
                "current": _equal_counters(0),
                "is_last_batch": False,
            },
            "epoch_loop.state_dict": {_LOGGED_STEPS: progress.logged},
        }
    )


def _equal_counters(count: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), count)


# -- progress bars


def show_title(bar: Any, title: str) -> None:
    """Set the text in front of the training progress bar."""
    if isinstance(bar, callbacks.TQDMProgressBar):
        shown = bar.train_progress_bar
        if shown.total is None:  # resumed inside a chunk: Lightning did not start the bar
            shown.total = bar.total_train_batches
        shown.set_description(title)
    elif isinstance(bar, callbacks.RichProgressBar):
        if bar.train_progress_bar_id is None:  # as above
            bar._initialize_train_progress_bar_id()
        bar.train_progress_bar.description = title
