"""The place in the dataset, the loss and the waiting in Lightning's progress bars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.extras import optional

callbacks = optional("lightning.pytorch.callbacks", extra="lightning")


class Bar:
    """Lightning's progress bar of a training, with more to say.

    Args:
        bar: A ``TQDMProgressBar``, a ``RichProgressBar`` or another one that shows ``get_metrics``;
            None: nothing is shown.
        items: Asked for what to show, whenever the bar is drawn anew.
    """

    def __init__(self, bar: Any, items: Callable[[], dict[str, str]]) -> None:
        shown = isinstance(bar, callbacks.ProgressBar) and not getattr(bar, "is_disabled", False)
        self._bar, self._items = bar if shown else None, items
        if self._bar is not None:
            self._bar.get_metrics = self._get_metrics  # Lightning's own seam, on this bar alone

    def _get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        bar: Any = self._bar
        metrics: dict[str, Any] = type(bar).get_metrics(bar, trainer, pl_module)
        if isinstance(metrics.get("v_num"), str):
            del metrics["v_num"]  # a version that is a name, cut to its last letters
        items = self._items()
        if any("loss" in name.lower() for name in metrics):
            items.pop("loss", None)
        return items | metrics

    def title(self, words: str) -> None:
        """Name the chunk, where Lightning says which epoch of its own this is."""
        if isinstance(self._bar, callbacks.TQDMProgressBar):
            shown = self._bar.train_progress_bar
            if shown.total is None:  # the chunk began in another process
                shown.total = self._bar.total_train_batches
            shown.set_description(words)
        elif isinstance(self._bar, callbacks.RichProgressBar):
            if self._bar.train_progress_bar_id is None:  # as above
                self._bar._initialize_train_progress_bar_id()
            self._bar.train_progress_bar.description = words

    def let_go(self) -> None:
        """Leave the bar as it was."""
        if self._bar is not None:
            vars(self._bar).pop("get_metrics", None)
        self._bar = None
