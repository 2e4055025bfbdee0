"""The events that every trainer goes through, and the comparison with an uninterrupted run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from penstock.testing.conformance.launches import (
    CHUNK,
    GLOBAL_BATCH,
    SCORED,
    Engine,
    Launch,
    forever,
    make_loader,
)

TAIL_WORDS: Final = 60  # of a failed launch's log, in a result


def script(task: Launch) -> dict[str, list[list[Launch]]]:
    """Return the launches of every event, in groups: each launch of a group resumes the one before.

    The first run saves around a chunk's end, and is killed after that. Launches that are equal are
    run once.

    Args:
        task: An uninterrupted launch.
    """
    end = 2 * task.chunk_size if task.chunk_size else 10  # batches
    saved = (6, end - 1, end, end + 1)
    begin = replace(task, folder=task.folder / "begin", save_at=saved, killed_at=end + 2)
    two = replace(task, folder=task.folder / "two", accumulate=2, save_at=(6, 8), killed_at=9)

    def resumed(before: Launch, at: int, name: str = "", **changes: Any) -> list[Launch]:
        place = {"resume_from": before.checkpoint(at), "first": at}
        plain: dict[str, Any] = {"save_at": (), "killed_at": None, **place, **changes}
        return [before, replace(before, folder=before.folder / f"from-{at}{name}", **plain)]

    again = resumed(begin, 6, "-again", save_at=(13,), killed_at=14)
    others = [world for world in (1, 2, 3) if world != task.world]
    return {
        "uninterrupted": [[task]],
        "accumulated": [resumed(two, 6)],
        "mid-chunk": [resumed(begin, 6)],
        "end - 1": [resumed(begin, end - 1)],
        "end": [resumed(begin, end)],
        "end + 1": [resumed(begin, end + 1)],
        "resumed twice": [[*again, resumed(again[1], 13)[1]]],
        "other ranks": [
            resumed(begin, 6, f"-on-{world}", world=world, batch_size=GLOBAL_BATCH // world)
            for world in others
        ],
        "other batch": [resumed(begin, end - 1, "-half", batch_size=task.batch_size // 2)],
    }


EVENTS: Final = tuple(script(Launch(Path(), "chunked", 1, GLOBAL_BATCH)))


@dataclass(frozen=True)
class Record:
    """What the ranks of a launch recorded."""

    task: Launch
    failed: bool
    steps: list[list[int]]  # the samples of every batch that all ranks recorded
    scores: Counter[int]
    refusal: str | None
    error: str = ""  # the end of the logs of a launch that failed

    @classmethod
    def read(cls, task: Launch) -> Record:
        """Return what is in the folder of a launch."""
        files = [task.record(rank) for rank in range(task.world)]
        lines = [
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            for file in files
        ]
        ranks = [[ids for event, ids, _ in rank if event == "train"] for rank in lines]
        scored = [ids for event, ids, _ in chain(*lines) if event == "score"]
        refusals = [text for event, _, text in chain(*lines) if event == "refuse"]
        steps = [[*chain(*parts)] for parts in zip(*ranks, strict=False)]
        failed = not all(rank and rank[-1][0] == "end" for rank in lines)
        logs = [file.read_text(errors="replace") for file in sorted(task.folder.glob("*.log"))]
        ends = [" ".join(log.split()[-TAIL_WORDS:]) for log in logs if log.strip()]
        refusal, error = next(iter(refusals), None), " / ".join(ends) if failed else ""
        return cls(task, failed, steps, Counter(chain(*scored)), refusal, error)


def judge(records: Sequence[Record], reference: Sequence[int]) -> str:
    """Return ``exact``, or what was refused or went wrong, for launches that continue one another.

    Args:
        records: The launches; of each, the batches up to the checkpoint of the next one count.
        reference: The samples that an uninterrupted process delivers, in their order.
    """
    position = 0
    for number, record in enumerate(records):
        task = record.task
        if record.refusal is not None:
            return f"refused: {record.refusal}"
        if record.failed != (task.killed_at is not None):
            how = f"failed: {record.error or 'no log'}" if record.failed else "survived"
            return f"wrong: launch {number} {how}"
        last = records[number + 1].task.first if number + 1 < len(records) else task.until
        steps = record.steps[: last - task.first]
        if len(steps) != last - task.first:
            return f"wrong: launch {number} trained {len(steps)} batches of {last - task.first}"
        for batch, ids in enumerate(steps, start=task.first + 1):
            expected = reference[position : position + len(ids)]
            if sorted(ids) != sorted(expected):
                return f"wrong: batch {batch} is {sorted(ids)}, expected {sorted(expected)}"
            position += len(ids)
        counts = [record.scores[number] for number in SCORED]
        if len(set(counts)) != 1 or record.scores.total() != sum(counts):
            return f"wrong: launch {number} validated samples {counts} times"
    return "exact"


def check(
    engine: Engine, loader: str, world: int, folder: Path, events: Sequence[str] = EVENTS
) -> dict[str, str]:
    """Run events with an engine; return the result of each by its name.

    A result is ``exact``, ``refused: <reason>`` or ``wrong: <what>``. Call it in a process without
    threads, or use the command.

    Args:
        engine: The trainer.
        loader: One of `LOADERS`.
        world: Number of ranks: 1, 2 or 3.
        folder: An empty directory for checkpoints and records.
        events: Names of `EVENTS`.
    """
    chunk = CHUNK if engine.chunks and loader != "replay" else None
    task = Launch(folder, loader, world, GLOBAL_BATCH // world, chunk_size=chunk)
    with closing(make_loader(loader, GLOBAL_BATCH // 2, None)) as whole:  # one from every lane
        batches = islice(forever(whole), 60)
        reference = [int(number) for batch in batches for number in batch["ids"]]
    groups = script(task)
    tasks = dict.fromkeys(chain(*(chain(*groups[event]) for event in events)))
    for ranks in (world, *sorted({task.world for task in tasks} - {world})):
        engine.run([task for task in tasks if task.world == ranks])
    records = {task: Record.read(task) for task in tasks}
    results = {}
    for event in events:
        found = [judge([records[each] for each in group], reference) for group in groups[event]]
        results[event] = max(found, key=lambda text: (text != "exact", text))
    return results
