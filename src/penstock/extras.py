"""Optional parts: libraries that extras install, and entry points of installed packages.

Penstock's own domains are found by entry points too, so that the core imports none of them:

- ``penstock.sources``: source classes with a static method ``accepts(path) -> bool``
- ``penstock.datasets``: modules that register sequence datasets when they are imported
- ``penstock.commands``: functions that are added to the command line
- ``penstock.converters``: objects with ``accepts(path)`` and ``convert(source, target)``, for
  `penstock convert`
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from time import monotonic
from typing import Any, Final

from penstock.errors import MissingExtraError

DRAW_SECONDS: Final = 0.1  # between two updates of a progress bar


def optional(module: str, extra: str) -> Any:
    """Import and return ``module``; if it is missing, raise an error that names the extra.

    Args:
        module: Name of the module.
        extra: The extra of Penstock that installs it.

    >>> optional("json", extra="cli").dumps(1)
    '1'
    >>> optional("no_such_library", extra="zarr")
    Traceback (most recent call last):
    ...
    penstock.errors.MissingExtraError: no_such_library is not installed: pip install ...
    """
    try:
        # the package first: if two threads import two of its modules, which it also imports itself,
        # each would wait for the other, and Python would give one of them an unfinished module
        import_module(module.partition(".")[0])
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'penstock[{extra}]'"
        ) from error


def load_extensions(group: str) -> dict[str, Any]:
    """Return the objects of a group by name; those whose module was removed are left out."""
    found = {entry.name: entry for entry in entry_points(group=group)}
    return {name: entry.load() for name, entry in sorted(found.items()) if _exists(entry.module)}


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


@contextmanager
def progress_bar(title: str, total: int, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """Yield a function that advances a progress bar: ``advance(steps=1, note="")``.

    Args:
        title: The text before the bar.
        total: Steps until it is complete.
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
    # drawn when it advances: a drawing thread would outlive the block
    with rich.Progress(*columns, *times, auto_refresh=False, **shown) as bar:
        task, drawn = bar.add_task(title, total=total, note=""), 0.0

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal drawn
            due = monotonic() - drawn > DRAW_SECONDS
            bar.update(task, advance=steps, note=note, refresh=due)
            drawn = monotonic() if due else drawn

        yield advance
        bar.refresh()
