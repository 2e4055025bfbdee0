"""The command: runs the events with trainers, and prints the results as a table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain, product
from pathlib import Path
from platform import python_version
from typing import Any, Final

import penstock
from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.fingerprints import digest
from penstock.testing.conformance.engines import ENGINES
from penstock.testing.conformance.launches import LOADERS, Engine, read_launches, run_process
from penstock.testing.conformance.script import EVENTS, check

BEGIN: Final = "<!-- written by python -m penstock.testing.conformance -->"
END: Final = "<!-- end -->"

Row = tuple[str, str, int]  # engine, loader, number of ranks


def table(results: dict[Row, dict[str, str]], versions: Sequence[str]) -> str:
    """Return the results as Markdown, with the reasons of refusals, the date and versions below.

    Args:
        results: The results by engine, loader and number of ranks.
        versions: Names and versions of the packages that were used.
    """
    reasons: list[str] = []

    def cell(text: str) -> str:
        if text == "exact":
            return text
        kind, reason = text.split(": ", 1)
        if reason not in reasons:
            reasons.append(reason)
        return f"{kind} ({reasons.index(reason) + 1})"

    rows: dict[tuple[str, ...], list[int]] = {}  # numbers of ranks with equal results
    for (engine, loader, world), found in results.items():
        row = (engine, loader, *(cell(found[event]) for event in EVENTS if event in found))
        rows.setdefault(row, []).append(world)
    names = [event for event in EVENTS if any(event in found for found in results.values())]
    lines = [["trainer", "loader", "ranks", *names], ["---"] * (3 + len(names))]
    for row, worlds in rows.items():
        lines.append([row[0], row[1], ", ".join(map(str, worlds)), *row[2:]])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text += "\n" * bool(reasons) + "".join(f"\n{n}. {why}" for n, why in enumerate(reasons, 1))
    texts = [text for found in results.values() for text in found.values()]
    kinds = [sum(text.startswith(kind) for text in texts) for kind in ("exact", "refused", "wrong")]
    return (
        f"{text}\n\n{len(texts)} results: {kinds[0]} exact, {kinds[1]} refused, {kinds[2]} wrong. "
        f"Run on {datetime.now(UTC):%Y-%m-%d} with {', '.join(versions)}.\n"
    )


def around_table(page: Path) -> tuple[str, str]:
    """Return a page up to the comment `BEGIN`, and from the comment `END` on."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{page} has no place for the table: add two lines, {BEGIN} and {END}")
    return before + BEGIN, END + after


def find_engine(name: str) -> Engine:
    """Return a built-in engine, or the one that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute) if attribute else ENGINES.get(name)
    if not isinstance(found, Engine):
        known = ", ".join(ENGINES)
        raise ConfigError(f"no engine is called {name!r}: use {known}, or module:engine")
    return found


def versions_of(engines: Sequence[Engine]) -> list[str]:
    """Return what the results depend on: Penstock's code, and versions of what engines use."""
    roots = dict.fromkeys(name.partition(".")[0] for each in engines for name in each.packages)
    code = Path(penstock.__file__).parent
    programs = [getattr(engine.program, "__code__", None) for engine in engines]
    theirs = {Path(program.co_filename) for program in programs if program is not None}
    files = sorted(theirs.union(code.rglob("*.py")))
    found = digest([file.name for file in files], [file.read_bytes() for file in files])
    ours = f"Penstock {version('penstock')} (code {found[:8]})"
    names = [f"{name} {version(name)}" for name in dict.fromkeys(("torch", *roots))]
    return [ours, f"Python {python_version()}", *names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a result is wrong.

    Args:
        arguments: Those of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(
        "python -m penstock.testing.conformance",
        description="Run the same events with every trainer, and print the results as a table.",
    )
    parser.add_argument("engines", nargs="*", default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3], choices=[1, 2, 3])
    parser.add_argument("--loaders", nargs="+", default=LOADERS, choices=LOADERS)
    parser.add_argument("--events", nargs="+", default=EVENTS, choices=EVENTS)
    parser.add_argument(
        "--json", type=Path, help="keep the results here; those of the same code are not run again"
    )
    parser.add_argument("--write", type=Path, help=f"replace the table in this page, after {BEGIN}")
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)  # one rank of it
    options = parser.parse_args(arguments)
    engines = [find_engine(name) for name in options.engines]
    if options.launch:
        run_process(engines[0], read_launches(options.launch), int(os.environ["RANK"]))
    for name in chain(("torch",), *(engine.packages for engine in engines)):
        importlib.import_module(name)  # once, before the ranks are forked
    if options.write:
        around_table(options.write)  # a page without a place for the table is refused at once
    kept: dict[str, Any] = {}
    if options.json and options.json.exists():
        kept = json.loads(options.json.read_text())
    results: dict[Row, dict[str, str]] = {}
    # engines that fork go first: others leave threads in this process
    for engine in sorted(engines, key=lambda engine: engine.start is not None):
        versions = versions_of([engine])
        for loader, world in product(options.loaders, options.ranks):
            row = f"{engine.name}, {loader}, {world}"
            ran_with, found = kept.get(row, (versions, {}))
            if ran_with != versions:
                _say(f"{row} was run with {', '.join(ran_with)} and is run again")
                found = {}
            events = [event for event in options.events if event not in found]
            if events:
                with tempfile.TemporaryDirectory() as folder:
                    found |= check(engine, loader, world, Path(folder) / "run", events)
                _say(row, json.dumps(found))
                kept[row] = versions, found
                if options.json:
                    replace_text(options.json, json.dumps(kept, indent=1))
            results[engine.name, loader, world] = {event: found[event] for event in options.events}
    order = [engine.name for engine in engines]
    rows = dict(sorted(results.items(), key=lambda row: order.index(row[0][0])))
    text = table(rows, versions_of(engines))
    print(text)
    if options.write:
        replace_text(options.write, f"\n\n{text}\n".join(around_table(options.write)))
    return int(any("wrong" in {each[:5] for each in row.values()} for row in rows.values()))


def _say(*what: object) -> None:
    print(*what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
