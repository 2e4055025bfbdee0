"""The command: runs the events with trainers, and prints the results as a table."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from penstock.errors import ConfigError
from penstock.testing.conformance.engines import ENGINES
from penstock.testing.conformance.launches import LOADERS, Engine, read_launch, run_rank
from penstock.testing.conformance.script import EVENTS, check


def table(results: dict[tuple[str, str, int], dict[str, str]], versions: Sequence[str]) -> str:
    """Return the results as Markdown, with the reasons of refusals below.

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
    text += "\n" + "".join(f"\n{n}. {why}" for n, why in enumerate(reasons, start=1))
    return f"{text}\n\nRun with {', '.join(versions)}.\n"


def find_engine(name: str) -> Engine:
    """Return a built-in engine, or the one that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute) if attribute else ENGINES.get(name)
    if not isinstance(found, Engine):
        known = ", ".join(ENGINES)
        raise ConfigError(f"no engine is called {name!r}: use {known}, or module:engine")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(
        "python -m penstock.testing.conformance",
        description="Run the same events with every trainer, and print the results as a table.",
    )
    parser.add_argument("engines", nargs="*", default=list(ENGINES), metavar="ENGINE")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3], choices=[1, 2, 3])
    parser.add_argument("--loaders", nargs="+", default=LOADERS, choices=LOADERS)
    parser.add_argument("--events", nargs="+", default=EVENTS, choices=EVENTS)
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)  # one rank of it
    options = parser.parse_args(arguments)
    engines = [find_engine(name) for name in options.engines]
    if options.launch:
        return run_rank(engines[0], read_launch(options.launch))
    packages = dict.fromkeys(chain(("torch",), *(engine.packages for engine in engines)))
    for name in packages:
        importlib.import_module(name)  # once, before the ranks are forked
    results: dict[tuple[str, str, int], dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            for loader in [each for each in options.loaders if each in engine.loaders]:
                for world in options.ranks:
                    key = (engine.name, loader, world)
                    place = Path(folder) / "-".join(map(str, key)).replace(" ", "-")
                    results[key] = check(engine, loader, world, place, options.events)
                    print(*key, json.dumps(results[key]), file=sys.stderr, flush=True)
                    if options.json:
                        rows = [[*key, found] for key, found in results.items()]
                        options.json.write_text(json.dumps(rows, indent=1))
    versions = [f"{name.split('.')[0]} {version(name.split('.')[0])}" for name in packages]
    print(table(results, versions))
    texts = [text for found in results.values() for text in found.values()]
    return int(any(text.startswith("wrong") for text in texts))


if __name__ == "__main__":
    sys.exit(main())
