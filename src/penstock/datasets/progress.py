"""A progress bar where somebody looks: on a terminal, with rich installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from penstock.extras import optional


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
    with rich.Progress(*columns, *times, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda steps=1, note="": bar.update(task, advance=steps, note=note)
