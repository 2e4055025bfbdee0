"""`penstock report`: a run as one HTML page that needs no network, and as a trace for Perfetto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.atomic_files import replace_text
from penstock.errors import ConfigError
from penstock.metrics import STAGES, Snapshot, verdict_of
from penstock.metrics.snapshot import COLUMNS
from penstock.metrics.verdict import causes_of, percent
from penstock.report.run_files import Run, Session, thinned

PAGE: Final = Path(__file__).with_name("run_page.html")
HERE: Final = "__DATA__"  # where the page has its figures
MAX_SPANS: Final = 12_000  # of all ranks, in the page
CALLER: Final = "training loop"
QUIET_SECONDS: Final = 60.0  # without an update, a run may have ended


def write_report(run_dir: Path, output: Path | None = None, trace: Path | None = None) -> str:
    """Write the page of a run, and return a few lines for the user.

    Args:
        run_dir: The directory of a run of `penstock train`: done, in progress or crashed.
        output: The file; None for ``report.html`` in the directory.
        trace: A file for a trace in Chrome's format; None for none.
    """
    run = Run.read(run_dir)
    output = run_dir / "report.html" if output is None else output
    for path in (output, trace):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"there is no directory {str(path.parent)!r}: create it first")
    replace_text(output, page_of(run))
    lines = [str(verdict_of(run.snapshot())), f"  report {output}"]
    if trace is not None:
        replace_text(trace, json.dumps({"traceEvents": list(trace_of(run))}))
        lines.append(f"  trace  {trace}: open it in ui.perfetto.dev or chrome://tracing")
    return "\n".join(lines)


def page_of(run: Run) -> str:
    """Return the page of a run.

    All figures and texts are in one JSON object, from which the page's script makes text nodes:
    nothing that a user wrote becomes markup.

    Args:
        run: The run.
    """
    figures = json.dumps(figures_of(run), separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":  # so that no text ends the script
        figures = figures.replace(sign, f"\\u{ord(sign):04x}")
    return PAGE.read_text(encoding="utf-8").replace(HERE, figures)


def figures_of(run: Run) -> dict[str, Any]:
    """Return everything that the page shows, as plain values.

    Args:
        run: The run.
    """
    snapshot, last = run.snapshot(), run.last
    verdict = verdict_of(snapshot)
    chunks = [
        {**chunk, "session": each.number}
        for each in run.sessions
        for chunk in each.chunks
        if each.snapshot.rank == snapshot.rank
    ]
    return {
        "title": run.root.absolute().name,
        "state": state_of(last),
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last.written)),
        "verdict": str(verdict),
        "stalls": list(verdict.stalls),
        "causes": causes_of(snapshot),
        "cards": cards_of(run, snapshot, last),
        "columns": list(COLUMNS),
        "width": snapshot.width,
        "slots": without_end(snapshot.slots),
        "stages": stages_of(snapshot),
        "spans": spans_of(snapshot),
        "ranks": snapshot.of_ranks(),
        "workers": [[name, *figures] for name, figures in sorted(snapshot.workers.items())],
        "coverage": last.coverage,
        "chunks": thinned(chunks),
        "config": run.config,
        "settings": snapshot.settings,
        "environment": last.environment,
        "reproduce": reproduce(run),
        "sessions": len({session.number for session in run.sessions}),
    }


def state_of(session: Session) -> str:
    """Return how a run ended, or that it has not."""
    if session.state != "running":
        known = {"done": "finished", "stopped": "stopped by a signal"}
        return known.get(session.state, f"failed: {session.state}")
    quiet = time.time() - session.written
    if quiet < QUIET_SECONDS:
        return "in progress"
    return f"no update for {quiet / 60:,.0f} min: the run hangs, waits, or was killed"


def cards_of(run: Run, snapshot: Snapshot, last: Session) -> list[list[str]]:
    """Return the figures at the top of the page: name and value."""
    wait, step = snapshot.of("wait").total, snapshot.of("step").total
    ranks = max(1, len(snapshot.of_ranks()))
    busy = (wait + step) / ranks
    memory = max((row[-1] for row in snapshot.slots), default=0.0)
    cards = [
        ["waiting", percent(snapshot.waiting)],
        ["samples/s", f"{snapshot.samples / busy:,.0f}" if busy else "-"],
        ["without waiting", f"{snapshot.samples / (step / ranks):,.0f}/s" if step else "-"],
        ["first batch", f"{max(rank['first'] for rank in snapshot.of_ranks()):.2f} s"],
        ["batches", f"{snapshot.batches:,}"],
        ["ranks", f"{ranks}"],
    ]
    if memory:
        cards.append(["memory", f"{memory / 1e6:,.0f} MB"])
    if last.coverage:
        cards.append(["dataset seen", f"{last.coverage['share']:.1%}"])
    return cards


def stages_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return number, mean, quantiles and buckets of each stage."""
    return [
        {"stage": name, "count": each.count, "total": each.total, "mean": each.mean}
        | {f"p{q}": each.quantile(q / 100) for q in (50, 95, 99)}
        | {"longest": each.longest, "buckets": each.to_dict()["buckets"]}
        for name, each in snapshot.stages.items()
        if each.count
    ]


def spans_of(snapshot: Snapshot) -> list[list[Any]]:
    """Return the stages one by one for the timeline: stage, begin, seconds, row."""
    several = snapshot.world > 1
    spans = snapshot.spans[:: 1 + len(snapshot.spans) // MAX_SPANS]
    return [
        [
            *(STAGES.index(stage), round(begin, 6), round(seconds, 6)),
            f"rank {rank}: {who or CALLER}" if several else who or CALLER,
        ]
        for stage, begin, seconds, who, rank in spans
    ]


def without_end(slots: list[list[float]]) -> list[list[float]]:
    """Return the slots up to the last one with a batch."""
    rows = [number for number, row in enumerate(slots) if any(row)]
    return slots[: rows[-1] + 1] if rows else []


def reproduce(run: Run) -> list[str]:
    """Return the commands that repeat the run, with the versions it had."""
    versions = run.last.environment
    names = [f"{name}=={versions[name]}" for name in ("torch", "numpy") if name in versions]
    lines = [f"# penstock {versions.get('penstock', '')}, python {versions.get('python', '')}"]
    lines += [f"pip install {' '.join(names)}"] if names else []
    ranks = max(session.snapshot.world for session in run.sessions)
    launch = f"torchrun --nproc-per-node {ranks} -m penstock" if ranks > 1 else "penstock"
    return [*lines, f"{launch} train config.yaml run_dir=again   # the configuration below"]


def trace_of(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in Chrome's format: a process for each rank, a row a thread.

    Args:
        run: The run.
    """
    rows: dict[tuple[int, str], int] = {}
    for stage, begin, seconds, who, rank in run.snapshot().spans:
        row = rows.get((rank, who))
        if row is None:
            row = rows[rank, who] = len(rows)
            named = {"ph": "M", "pid": rank, "tid": row}
            yield {**named, "name": "process_name", "args": {"name": f"rank {rank}"}}
            yield {**named, "name": "thread_name", "args": {"name": who or CALLER}}
        named = {"ph": "X", "name": stage, "cat": "penstock", "pid": rank, "tid": row}
        yield {**named, "ts": begin * 1e6, "dur": seconds * 1e6}
