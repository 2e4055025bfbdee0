"""A progress bar where somebody looks: on a terminal, with rich installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from time import monotonic
from typing import Final

from penstock.extras import optional

DRAW_SECONDS: Final = 0.1  # between two looks


@contextmanager
def progress_bar(title: str, total: int, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """A function that advances the bar: ``advance(steps=1, note="")``.

    Args:
        title: what is being done.
        total: steps until it is done.
        show: None shows the bar on a terminal, True always, False never.

    >>> with progress_bar("reading", 3, show=False) as advance:
    ...     advance(2, note="half way")
    """
    if show is None:
        show = sys.stderr.isatty() and find_spec("rich") is not None
    if not show:
        yield lambda steps=1, note="": None
        return
    console = optional("rich.console", extra="cli").Console(stderr=True)
    rich = optional("rich.progress", extra="cli")
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
    times = (rich.TimeRemainingColumn(), rich.TextColumn("{task.fields[note]}"))
    shown = {"console": console, "transient": console.is_terminal}
    # drawn where it advances: a thread that draws would outlive the block
    with rich.Progress(*columns, *times, auto_refresh=False, **shown) as bar:
        task, drawn = bar.add_task(title, total=total, note=""), 0.0

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal drawn
            due = monotonic() - drawn > DRAW_SECONDS
            bar.update(task, advance=steps, note=note, refresh=due)
            drawn = monotonic() if due else drawn

        yield advance
        bar.refresh()
