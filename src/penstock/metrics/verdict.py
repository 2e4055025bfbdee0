"""What the figures of a loader mean, in one line: the cause of waiting and what to change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

from penstock.arguments import format_bytes
from penstock.metrics.snapshot import COLUMNS, Snapshot, share_of

WAITING: Final = 0.05  # less waiting than this is not worth a change
APART: Final = 3.0  # times that one rank or worker differs from the others to be named

DOING: Final = {
    "plan": "planning",
    "read": "reading",
    "decode": "decompressing",
    "place": "copying samples to their batches",
    "transform": "transforming",
    "collate": "collating",
    "transfer": "copying to the device",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a verdict is based on.

    Args:
        bound: ``"data"``, ``"compute"``, ``"start-up"``, or ``"unknown"``.
        waiting: Share of the time spent waiting, without first batches.
        cause: The stage that most of the waiting is for; empty if it was not measured.
        cause_share: Its share of the waiting.
        causes: The share of each stage.
        first_seconds: How long the first batch took; the longest of all ranks.
        stalls: The longest waits, each with its moment, its rank and what was read.
    """

    bound: str
    waiting: float = 0.0
    cause: str = ""
    cause_share: float = 0.0
    causes: Mapping[str, float] | None = None
    first_seconds: float = 0.0
    stalls: tuple[str, ...] = ()


class Verdict(str):
    """One line about a run, and the figures it is based on.

    Args:
        text: The line.
        figures: What it is based on.

    >>> verdict = verdict_of(Snapshot())
    >>> print(verdict)
    unknown: no batch was measured; iterate over the loader first, or set loader.metrics.on = True
    >>> verdict.figures.bound
    'unknown'
    """

    figures: Figures

    def __new__(cls, text: str, figures: Figures) -> Verdict:
        """Return a verdict."""
        made = super().__new__(cls, text)
        made.figures = figures
        return made

    @property
    def stalls(self) -> tuple[str, ...]:
        """The longest waits, one line each."""
        return self.figures.stalls

    def json(self) -> str:
        """Return the line and its figures as a JSON object."""
        return json.dumps({"verdict": str(self), **asdict(self.figures)})


def verdict_of(snapshot: Snapshot) -> Verdict:
    """Return what the figures of a loader mean.

    Args:
        snapshot: Of one rank, or merged over ranks.
    """
    if not snapshot.batches:
        todo = "iterate over the loader first, or set loader.metrics.on = True"
        return Verdict(f"unknown: no batch was measured; {todo}", Figures("unknown"))
    ranks = snapshot.of_ranks()
    shares = {  # of the time that each rank waited, without its first batch
        rank["rank"]: share_of(max(0.0, rank["wait"] - rank["first"]), rank["step"])
        for rank in ranks
    }
    worst = max(shares, key=shares.__getitem__)
    others = [share for rank, share in shares.items() if rank != worst]
    slow_rank = others and shares[worst] > max(WAITING, APART * max(others))
    waiting = shares[worst] if slow_rank else snapshot.waiting
    causes = causes_of(snapshot)
    cause = max(causes, key=causes.__getitem__, default="")
    first = max(rank["first"] for rank in ranks)
    figures = Figures(
        "data" if waiting >= WAITING else "compute",
        waiting=waiting,
        cause=cause,
        cause_share=causes.get(cause, 0.0),
        causes=causes,
        first_seconds=first,
        stalls=tuple(stall_text(stall) for stall in stalls_of(snapshot)),
    )
    if waiting < WAITING:
        return _not_data_bound(snapshot, figures)
    when = times_of(snapshot)
    text = f"data-bound{' at times' if when else ''}: "
    if slow_rank:
        text += f"rank {worst} waited {percent(waiting)} of the time, the others at most "
        text += percent(max(others))
    else:
        text += f"{percent(waiting)} of the time was spent waiting{when}"
    if cause:
        text += f", {percent(figures.cause_share)} of it {DOING[cause]}"
    return Verdict(f"{text}; {advice(snapshot, cause)}", figures)


def _not_data_bound(snapshot: Snapshot, figures: Figures) -> Verdict:
    total = snapshot.of("wait").total + snapshot.of("step").total
    if snapshot.first > WAITING * total:
        share = percent(share_of(snapshot.first, snapshot.of("wait").total - snapshot.first))
        text = (
            f"start-up: the first batch took {figures.first_seconds:.3g} s, {share} of waiting; "
            f"after it, training waited {percent(figures.waiting)}; use one loader for all epochs"
        )
        return Verdict(text, replace(figures, bound="start-up"))
    text = f"compute-bound: waited {percent(figures.waiting)}; a faster loader would change nothing"
    return Verdict(text, figures)


def causes_of(snapshot: Snapshot) -> dict[str, float]:
    """Return the share of the waiting that each stage is the cause of.

    What ran in the caller's own thread is measured. The rest of the time, the caller waited for
    threads or workers, and their stages count in proportion to the time they took.
    """
    busy = {name: snapshot.of(name).total for name in DOING if snapshot.of(name).count}
    inside = {name: snapshot.inside.get(name, 0.0) for name in busy}
    behind = {name: max(0.0, busy[name] - inside[name]) for name in busy}
    probed, working = max(snapshot.probed, sum(inside.values())), sum(behind.values())
    if not probed:
        return {}
    blocked = 1 - sum(inside.values()) / probed if working else 0.0
    return {
        name: inside[name] / probed + (blocked * behind[name] / working if working else 0.0)
        for name in busy
    }


def times_of(snapshot: Snapshot) -> str:
    """Return in how many intervals training waited, if it waited in some and not in others."""
    wait, step = COLUMNS.index("wait"), COLUMNS.index("step")
    rows = [row for row in snapshot.slots if row[wait] + row[step] > 0.2 * snapshot.width]
    shares = [share_of(row[wait], row[step]) for row in rows[1:]]  # not the first batch
    starved = sum(share > 0.5 for share in shares)
    fed = sum(share < WAITING for share in shares)
    if len(shares) < 4 or min(starved, fed) < len(shares) / 5:
        return ""
    return f" ({starved} of {len(shares)} intervals of {snapshot.width:g} s)"


def stalls_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the waits that were much longer than a usual batch, the longest first."""
    usual = snapshot.of("wait").quantile(0.5) + snapshot.of("step").quantile(0.5)
    return [stall for stall in snapshot.stalls if stall["seconds"] > 5 * usual]


def stall_text(stall: Mapping[str, Any]) -> str:
    """Return one line: the moment, the rank, how long, and what was read."""
    place = f"epoch {stall['epoch']}, position {stall['position']:,}"
    samples = stall.get("samples")
    read = f", reading samples {samples[0]:,} to {samples[1]:,}" if samples else ""
    moment, seconds = stall["at"], stall["seconds"]
    return f"after {moment:.1f} s, rank {stall['rank']} waited {seconds:.2f} s at {place}{read}"


def slow_worker(snapshot: Snapshot) -> str:
    """Return one worker that takes much longer than the others, as text; empty if none does.

    Torch's workers deliver in turn, so all wait for the slowest. Threads do not.
    """
    means = {
        name: seconds / count
        for name, (count, seconds) in snapshot.workers.items()
        if count and "worker" in name
    }
    if len(means) < 2:
        return ""
    slowest = max(means, key=means.__getitem__)
    usual = median(mean for name, mean in means.items() if name != slowest)
    if means[slowest] < APART * usual:
        return ""
    times = means[slowest] / max(usual, 1e-9)
    return f"{slowest} takes {times:.2g} times as long as the others: look at what it reads"


def advice(snapshot: Snapshot, cause: str) -> str:
    """Return the setting to change.

    Args:
        snapshot: The figures and the settings.
        cause: The stage that most of the waiting is for; empty if unknown.
    """
    settings = snapshot.settings
    worker = slow_worker(snapshot)
    if worker:
        return worker
    if cause == "transfer":
        return "send less: a smaller dtype, or the decoding of values on the device"
    if "memory_budget" in settings:
        return _advice_for_streams(settings, cause)
    workers, executor = settings.get("num_workers", 0), settings.get("executor", "inline")
    if workers:
        return f"raise num_workers from {workers} to {2 * workers}"
    if executor == "threads":
        now = settings.get("threads")
        more = "raise threads" if now is None else f"raise threads from {now} to {2 * now}"
        return f"{more}, or use worker processes (num_workers=4) if Python is what takes the time"
    return "read in the background: executor='threads' for storage, num_workers=4 for Python code"


def _advice_for_streams(settings: Mapping[str, Any], cause: str) -> str:
    if cause in ("transform", "collate"):
        argument = "transform" if cause == "transform" else "collate_fn"
        return f"make {argument} work on whole batches, or do its work on the device"
    now = settings.get("threads", 1)
    more_threads = f"raise threads from {now} to {2 * now}"
    if cause == "decode":
        return f"{more_threads}, or store with a faster codec: penstock convert"
    budget = settings["memory_budget"]
    larger = f"raise memory_budget from {format_bytes(budget)} to {format_bytes(4 * budget)}"
    block, chunk = settings.get("block_samples", 0), settings.get("chunk_rows", 0)
    if chunk and block > chunk:
        spans = -(-block // chunk)
        return f"{larger}, or rechunk (each block spans {spans} storage chunks)"
    if chunk and block and block % chunk:
        return f"{larger}, or rechunk (a chunk of {chunk:,} rows is read for {block:,} of them)"
    if cause == "place":
        return f"{larger}, which makes blocks larger"
    return f"{more_threads}, or {larger}"


def percent(share: float) -> str:
    """Return a share as a percentage with about two digits.

    >>> percent(0.412), percent(0.004), percent(0)
    ('41 %', '0.4 %', '0 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 or not share else f"{100 * share:.1g} %"
