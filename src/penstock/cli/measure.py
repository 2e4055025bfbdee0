"""`penstock bench`: a stream against its storage. `penstock tune`: the fastest loader settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, default_collate

from penstock.atomic_files import replace_text
from penstock.cli.doctor import subjects_of_target
from penstock.cli.output import print_result
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.loaders.stream import StreamLoader
from penstock.report import BenchmarkReport
from penstock.sources import Source
from penstock.tuning.bench import measure_stream, tune_stream
from penstock.tuning.machine import this_machine
from penstock.tuning.trials import tune

MEMORY_SHARE = 4  # a stream is tuned within a quarter of the machine's memory


def run_bench(
    source: str, *, batch_size: int, seconds: float, memory_budget: str, as_json: bool
) -> None:
    """Measure a stream over a source, and print its speed and what to change."""
    with ExitStack() as opened:
        parts, _ = subjects_of_target(source, opened)
        data = parts[0].data if parts else None  # the training data, if it is a configuration
        if not isinstance(data, Source):
            raise ConfigError(
                f"{source} is a {type(data).__name__}, not a source, so there is no storage to "
                "compare with: use penstock doctor, or penstock tune with a configuration"
            )
        if not len(data):
            raise ConfigError(f"{source} has no samples: there is nothing to measure")
        options = {"seconds": seconds, "memory_budget": memory_budget}
        found = measure_stream(data, batch_size, **options)  # type: ignore[arg-type]
    if as_json:
        print_result(json.dumps({"source": source, **found.to_dict()}, indent=1))
    else:
        print_result(f"{source}: {found.text()}")


def run_tune(config: Path, overrides: list[str], *, seconds: float, write: bool) -> None:
    """Measure loader settings of a configuration, and print or write the fastest."""
    # imported here: bench works without the libraries of training
    from penstock.training.build import build
    from penstock.training.config import read_settings

    settings = read_settings(config, overrides)
    job = build(settings)
    loader = (job.module if job.data is None else job.data).train_dataloader()
    try:
        found = tuned(loader, seconds)
    finally:
        getattr(loader, "close", lambda: None)()
    before = config.read_text()
    text = with_section(before, "loader", for_section(found, settings.loader))
    print_result(f"loader: {found}".replace("'", ""))
    if write:
        replace_text(config, text)
        kept = read_settings(config, overrides).loader
        if any(kept.get(name) != value for name, value in found.items()):
            replace_text(config, before)
            raise ConfigError(
                f"{config} composes the section 'loader' from other files or overrides, which "
                f"take precedence: set {found} there"
            )
        print_result(f"written to {config}")


def tuned(loader: Any, seconds: float) -> dict[str, Any]:
    """Return the fastest settings for a training loader, as keys of the section ``loader``."""
    report = partial(print, file=sys.stderr)
    if isinstance(loader, StreamLoader):
        most = this_machine().memory_bytes // MEMORY_SHARE
        best, figures = tune_stream(loader, seconds=seconds, most_bytes=most, report=report)
        rows = {n: {k: v for k, v in e.items() if k != "settings"} for n, e in figures.items()}
        report(BenchmarkReport(rows).to_table())
        return best
    if not isinstance(loader, DataLoader):
        kind = type(loader).__name__
        raise ConfigError(f"{kind} is not a loader of Penstock or torch: there is nothing to tune")
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    size = loader.batch_size or 1
    limits = {"budget_seconds": seconds, "cached": False}
    config = tune(loader.dataset, size, collate_fn=collate, **limits)  # type: ignore[arg-type]
    if config.executor == "processes":
        own = {"num_workers": config.num_workers, "prefetch_factor": config.prefetch_factor}
    else:
        own = {"num_workers": 0}
        if config.executor == "threads" and config.threads is not None:
            own["threads"] = config.threads
    return {"executor": config.executor, **own}


def for_section(found: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings to write, with keys of workers reset where there are none.

    >>> for_section({"executor": "inline", "num_workers": 0}, {"persistent_workers": True})
    {'executor': 'inline', 'num_workers': 0, 'persistent_workers': False}
    """
    unused = {"prefetch_factor": None, "persistent_workers": False, "threads": None}
    reset = {n: v for n, v in unused.items() if n in section and n not in found}
    return {**found, **(reset if found.get("num_workers") == 0 else {})}


def with_section(text: str, section: str, values: Mapping[str, Any]) -> str:
    r"""Return the text of a YAML file with some keys of a section set; the rest stays as it is.

    Args:
        text: The file.
        section: The name of the section, which is added if it is missing.
        values: The keys and their new values.

    >>> print(with_section("a: 1\nloader: {batch_size: 4}  # small\n", "loader", {"threads": 2}))
    a: 1
    loader: {batch_size: 4, threads: 2}  # small
    <BLANKLINE>
    """
    yaml: Any = optional("yaml", extra="train")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    nodes = {key.value: value for key, value in root.value} if root is not None else {}
    lines = {name: f"{name}: {json.dumps(value)}" for name, value in values.items()}
    found = nodes.get(section)
    if found is None or not getattr(found, "value", None):
        if section in nodes:
            raise ConfigError(f"section {section!r} is empty: write {{}} after it, or leave it out")
        ending = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{ending}{section}: {{{', '.join(lines.values())}}}\n"
    if not isinstance(found, yaml.MappingNode):
        raise ConfigError(f"section {section!r} must be a mapping to change it")
    known = {key.value: value for key, value in found.value}
    edits = [
        (known[name].start_mark.index, known[name].end_mark.index, json.dumps(value))
        for name, value in values.items()
        if name in known
    ]
    new = [line for name, line in lines.items() if name not in known]
    if new and found.flow_style:
        last = found.value[-1][1].end_mark.index
        edits.append((last, last, "".join(f", {line}" for line in new)))
    elif new:
        first = found.value[0][0].start_mark
        edits.append((first.index, first.index, "".join(f"{e}\n{' ' * first.column}" for e in new)))
    for start, stop, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[stop:]
    return text
