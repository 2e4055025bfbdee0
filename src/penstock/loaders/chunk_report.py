"""Reports on training in chunks: what it will do, where it is, and what it has covered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from penstock.order import Cursor, Order, Plan, Steps
from penstock.order.mixture import MixtureOrder
from penstock.order.orders import samples_of

MOST_SAMPLES = 1 << 21  # looked up at once; bounds memory
MOST_LOOKUPS = 1 << 24  # in all; takes a second or two
LOOKUPS_OF_A_CALL = 10_000  # the fixed cost of a call, in lookups
MOST_EPOCHS = 60  # of a picture
MOST_PICTURED = 100_000  # samples looked up for a picture

Stretch = tuple[Cursor, Cursor]  # from a position to a later one


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """What was trained on, over all sessions of a run.

    Args:
        samples: Samples that the model was trained on, over all ranks.
        passes: Passes over the dataset; 2.5 is two and a half.
        coverage: Fraction of the samples that were used at least once.
        chunks: Completed chunks.
        waiting_seconds: Time that training waited for batches, on this rank in this session.
        chunk_start_seconds: Mean wait for the first batch of a chunk, without the first chunk of
            the session, which starts workers.
        batch_seconds: Mean wait for any other batch.
    """

    samples: int
    passes: float
    coverage: float
    chunks: int
    waiting_seconds: float
    chunk_start_seconds: float
    batch_seconds: float

    def __str__(self) -> str:
        return (
            f"seen: {counted(self.samples, 'sample')} in {counted(self.chunks, 'chunk')} = "
            f"{counted_passes(self.passes)}, {self.coverage:.2%} of the dataset; waited "
            f"{self.waiting_seconds:.2f} s for batches"
        )


def samples_of_pass(steps: Steps, batches: int | None = None) -> int:
    """Return the samples of a pass, without those that ``drop_last`` or a limit leaves out.

    Args:
        steps: The steps of a pass.
        batches: The most batches that a trainer uses of each pass; None for all.
    """
    taken = steps.count if batches is None else min(batches, steps.count)
    return steps.stop(steps.start(taken - 1)) if taken else 0


def passes_after(steps: Steps, chunks: float) -> float:
    """Return the passes that ``chunks`` chunks make; the last chunk of a pass may be shorter.

    >>> passes_after(Steps(size=510, batch=10, chunk=10), 5)
    0.9803921568627451
    """
    passes, rest = divmod(chunks, steps.total_chunks)
    batches = int(rest * (steps.chunk or steps.count))
    return passes + samples_of_pass(steps, batches) / samples_of_pass(steps)


def samples_between(plan: Plan, begin: Cursor, end: Cursor, batches: int | None = None) -> int:
    """Return the samples delivered from one position to a later one, over all ranks.

    As in states, positions are those of the order.
    """
    return sum(len(span.epochs) * span.width for span in _spans(plan, begin, end, batches))


def coverage_of(plan: Plan, stretches: Iterable[Stretch], batches: int | None = None) -> float:
    """Return the fraction of samples delivered at least once in any of the stretches.

    Samples that one pass left out are looked up in the others until all are found. Work and memory
    are bounded for any number of passes: of more than `MOST_SAMPLES` samples, a part is looked up;
    and after `MOST_LOOKUPS` lookups the rest is estimated as for independent shuffles.

    Args:
        plan: The plan of the loader.
        stretches: Positions in the order, from the first to the last.
        batches: The most batches that a trainer uses of each pass; None for all.
    """
    order = plan.order
    spans = [span for begin, end in stretches for span in _spans(plan, begin, end, batches)]
    if hasattr(order, "positions_of"):  # a sample may occur more than once per epoch
        return _share_found(order, spans)
    if order.kind == "sequential":  # every pass delivers the same samples at the same positions
        return _joined_width(spans) / order.size
    if not spans:
        return 0.0
    spans.sort(key=lambda span: span.width, reverse=True)
    longest = spans[0]
    left_out = order.size - longest.width
    if not left_out:
        return 1.0
    others = [replace(longest, epochs=longest.epochs[1:]), *spans[1:]]
    unseen = _unseen(order, longest, left_out, others)
    return (order.size - unseen) / order.size


def coverage_map(
    plan: Plan, stretches: Iterable[Stretch], batches: int | None = None, *, parts: int = 120
) -> dict[str, Any]:
    """Return what was seen, as plain numbers for a picture.

    If there are very many positions, every n-th is looked up: time and memory are bounded.

    Args:
        plan: The plan of the loader.
        stretches: Positions in the order, from the first to the last.
        batches: The most batches that a trainer uses of each pass; None for all.
        parts: Parts of the dataset; how often the samples of each were seen is counted.

    Returns:
        ``size`` (positions of an epoch), ``samples``, ``chunk`` (positions of a chunk), ``epochs``
        (seen and skipped ranges of the last `MOST_EPOCHS`), ``parts``, and for a mixture
        ``members`` (samples, and shares of what was seen and of what was asked for).
    """
    order, steps = plan.order, plan.steps
    spans = [span for begin, end in stretches for span in _spans(plan, begin, end, batches)]
    epochs: dict[int, dict[str, Any]] = {}
    for span in spans:
        for epoch in span.epochs[-MOST_EPOCHS:]:
            epochs.setdefault(epoch, {"seen": [], "skipped": []})["seen"].append(
                [span.first, span.last]
            )
    for epoch, start, stop in plan.skips.ranges:
        if epoch in epochs:
            epochs[epoch]["skipped"].append([start, min(stop, order.size)])
    total, samples = sum(len(span.epochs) * span.width for span in spans), samples_of(order)
    apart = 1 + total // MOST_PICTURED
    found = [
        order.at(epoch, np.arange(span.first, span.last, apart))
        for span in spans
        for epoch in span.epochs[:: 1 + len(span.epochs) // MOST_EPOCHS]
    ]
    seen = np.concatenate(found) if found else np.zeros(0, np.int64)
    scale = total / max(1, len(seen))  # samples that each one looked up stands for
    parts = min(parts, samples)
    edges = np.arange(parts + 1) * samples // parts
    counts = np.histogram(seen, edges)[0] * scale / np.diff(edges)
    mixture: Any = getattr(order, "mixture", order)
    members = []
    if isinstance(mixture, MixtureOrder):
        drawn = np.histogram(seen, mixture.first)[0] / max(1, len(seen))
        asked = np.array(mixture.stages[-1][1]) / sum(mixture.stages[-1][1])
        sizes = np.diff(mixture.first)
        rows = zip(sizes.tolist(), drawn.tolist(), asked.tolist(), strict=True)
        members = [{"samples": n, "seen": one, "asked": two} for n, one, two in rows]
    last = sorted(epochs)[-MOST_EPOCHS:]
    return {
        "size": order.size,
        "samples": samples,
        "chunk": None if steps.chunk is None else steps.chunk * steps.whole,
        "epochs": [{"epoch": epoch, **epochs[epoch]} for epoch in last],
        "parts": [round(float(count), 4) for count in counts],
        "members": members,
        "share": coverage_of(plan, stretches, batches),
    }


@dataclass(frozen=True, slots=True)
class _Span:
    """Positions ``first:last``, delivered in each of ``epochs``."""

    epochs: range
    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first


def _spans(plan: Plan, begin: Cursor, end: Cursor, batches: int | None) -> list[_Span]:
    """Return the positions of the order that are delivered between two others."""
    full = samples_of_pass(plan.steps, batches)
    if plan.steps.sizes is not None:  # epochs differ
        spans = []
        for epoch in range(begin.epoch, end.epoch + 1):
            kept = partial(plan.skips.size, epoch)
            first = kept(begin.position) if epoch == begin.epoch else 0
            full = samples_of_pass(plan.steps.of(epoch), batches)
            last = kept(end.position) if epoch == end.epoch else full
            runs = plan.skips.runs(epoch, first, last)
            spans += [_Span(range(epoch, epoch + 1), *run) for run in runs]
    elif begin.epoch == end.epoch:
        spans = [_Span(range(begin.epoch, begin.epoch + 1), begin.position, end.position)]
    else:
        spans = [
            _Span(range(begin.epoch, begin.epoch + 1), begin.position, full),
            _Span(range(begin.epoch + 1, end.epoch), 0, full),
            _Span(range(end.epoch, end.epoch + 1), 0, end.position),
        ]
    return [span for span in spans if span.epochs and span.width > 0]


def _share_found(order: Order, spans: Iterable[_Span]) -> float:
    """Return the share of samples that are at these positions, by a bounded number of lookups."""
    apart = 1 + samples_of(order) // (MOST_SAMPLES << 3)  # of very many samples, only every n-th
    found = np.zeros(-(-samples_of(order) // apart), np.bool_)
    lookups = 0
    for span in spans:
        for epoch in span.epochs:
            for first in range(span.first, span.last, MOST_SAMPLES):
                if lookups > MOST_LOOKUPS:
                    return float(found.mean())
                last = min(first + MOST_SAMPLES, span.last)
                samples = order.at(epoch, np.arange(first, last))
                lookups += last - first + LOOKUPS_OF_A_CALL
                found[samples[samples % apart == 0] // apart] = True
    return float(found.mean())


def _joined_width(spans: Iterable[_Span]) -> int:
    """Return the number of positions in any of the spans."""
    total = reached = 0
    for span in sorted(spans, key=lambda span: span.first):
        total += max(0, span.last - max(span.first, reached))
        reached = max(reached, span.last)
    return total


def _unseen(order: Order, longest: _Span, left_out: int, others: list[_Span]) -> float:
    """Return how many of the samples left out by the longest span are in none of the others."""
    positions = np.arange(0, left_out, -(-left_out // MOST_SAMPLES))
    positions[positions >= longest.first] += longest.width
    samples = order.at(longest.epochs[0], positions)
    lookups, unseen_later = 0, 1.0
    for span in others:
        looked_at = 0
        for epoch in span.epochs:
            if not len(samples) or lookups > MOST_LOOKUPS:
                break
            at = order.position_of(epoch, samples)
            lookups, looked_at = lookups + len(samples) + LOOKUPS_OF_A_CALL, looked_at + 1
            samples = samples[(at < span.first) | (at >= span.last)]
        unseen_later *= (1 - span.width / order.size) ** (len(span.epochs) - looked_at)
    return left_out * len(samples) / len(positions) * unseen_later


# -- where training is


def chunk_of_last_batch(steps: Steps, after: Cursor) -> tuple[int, int]:
    """Return the epoch and the chunk (from 0) of the last batch, by the cursor after it."""
    if after.position == 0 and after.epoch:
        epoch = after.epoch - 1
        while epoch and not steps.of(epoch).count:  # all of it was skipped
            epoch -= 1
        return epoch, max(0, steps.of(epoch).total_chunks - 1)
    step = max(0, steps.step_of(after.position) - 1)
    return after.epoch, 0 if steps.chunk is None else step // steps.chunk


def describe_position(steps: Steps, after: Cursor) -> str:
    """Return ``epoch 3, chunk 7/16``: epochs are counted from 0, chunks from 1.

    >>> describe_position(Steps(size=100, batch=10, chunk=3), Cursor(3, 70))
    'epoch 3, chunk 3/4'
    """
    epoch, chunk = chunk_of_last_batch(steps, after)
    return f"epoch {epoch}, chunk {chunk + 1}/{steps.of(epoch).total_chunks}"


# -- what it will do


def describe_chunks(steps: Steps, ignored: str | None) -> str:
    """Return a line on the chunks of training.

    >>> steps = Steps(size=1_088_000, batch=32, chunk=2000, drop_last=False)
    >>> print(describe_chunks(steps, "limit_train_batches=2000"))
    chunked: 2,000 batches of 32 = 64,000 samples a chunk, 17 chunks an epoch;
    limit_train_batches=2000 is ignored
    """
    batches = steps.chunk_length(0)
    ranks = f" on each of {steps.world} ranks" if steps.world > 1 else ""
    samples = min(batches * steps.whole, steps.size)
    chunks = counted(steps.total_chunks, "chunk")
    return (
        f"chunked: {counted(batches, 'batch')} of {steps.batch:,}{ranks} = {samples:,} samples a "
        f"chunk, {chunks} an epoch{_and_ignored(ignored)}"
    )


def describe_validation(size: int | None, whole: int | None, how: str, ignored: str | None) -> str:
    """Return a line on the size of a validation.

    >>> describe_validation(200, 313, "the same ones each time", None)
    'validation: 200 of 313 batches, the same ones each time'
    """
    if size is None or whole is None or size >= whole:
        batches = size if whole is None else whole
        what = "the whole partition" + (f", {counted(batches, 'batch')}" if batches else "")
    else:
        what = f"{size:,} of {counted(whole, 'batch')}, {how}"
    return f"validation: {what}{_and_ignored(ignored)}"


def describe_length(epochs: int | None, passes: int | None, steps: Steps | None) -> str | None:
    """Return a line on the length of training; None if nothing here ends it.

    Args:
        epochs: Chunks after which it ends; None or negative for no end.
        passes: Passes after which it ends; None for no end.
        steps: The steps of a pass; None if the loader is not of Penstock.

    >>> describe_length(200, None, Steps(size=1600, batch=10, chunk=10))
    'max_epochs=200: 200 chunks = 12.5 passes'
    """
    lines = []
    if epochs is not None and epochs >= 0:
        total = float(epochs) if steps is None else passes_after(steps, epochs)
        lines.append(f"max_epochs={epochs}: {counted(epochs, 'chunk')} = {counted_passes(total)}")
    if passes is not None:
        chunks = counted(passes * (1 if steps is None else steps.total_chunks), "chunk")
        lines.append(f"max_passes={passes}: {chunks}, training ends then")
    return "; ".join(lines) or None


def counted(number: float, word: str) -> str:
    """Return a number and its unit, in the plural if needed.

    >>> counted(1, "batch"), counted(2000, "batch"), counted(2.5, "chunk")
    ('1 batch', '2,000 batches', '2.5 chunks')
    """
    ending = "" if number == 1 else "es" if word.endswith(("tch", "ss")) else "s"
    text = f"{int(number):,}" if number == int(number) else f"{number:,.6g}"
    return f"{text} {word}{ending}"


def counted_passes(passes: float) -> str:
    """Return a number of passes with four digits."""
    number = f"{passes:,.4g}"
    return f"{number} pass" + ("" if number == "1" else "es")


def _and_ignored(what: str | None) -> str:
    """Return the end of a line that names a setting without effect."""
    return f"; {what} is ignored" if what else ""
