"""`penstock doctor`: what is wrong with a dataset, and what to change.

`examine` measures once; every check here is a pure function of what was measured, and yields one
sentence for each finding.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from penstock.arguments import format_bytes
from penstock.tuning.examination import Examination, Subject, examine

SLOW_RATIO, SLOW_SECONDS = 20, 0.05  # of the slowest sample: times the median, and at least
LARGE_CHUNK = 64 << 20  # bytes: fewer than 16 of them fit into a gigabyte of windows
SMALL_CHUNK = 16 << 10  # bytes: a read costs more than what it brings
DECODED_AGAIN = 1.5  # bytes decoded for each byte that is used
POOR_MIXING = 0.5  # of a full shuffle
LONG_LIST = 100_000  # Python objects: each worker ends up with its own copy
MEMORY_SHARE = 0.5  # of the machine's memory that batches may take
BATCHES_AHEAD = 2  # of each worker, as torch reads them
FILL_VALUES: Final = (-9999.0, -999.0, -32768.0, 1e20, -1e20, 9.969209968386869e36)
FILL_DISTANCE = 5  # ranges of the other values that a fill value is away from them
IMBALANCE = 20  # samples of the most frequent class for each one of the rarest
LABEL_NAMES: Final = ("label", "labels", "y", "target", "class", "category", "1")
TIME_NAMES: Final = ("time", "timestamp", "t", "date", "frame")
ENOUGH = 100  # samples, for a statement about classes
DUPLICATES = 0.01  # share of samples that are copies of others


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, in a sentence that says what to change.

    Args:
        check: The name of the check.
        part: The part of the data: "train"; empty if there is only one.
        text: What was found, and what to change.
    """

    check: str
    part: str
    text: str

    def __str__(self) -> str:
        place = f"{self.part}: " if self.part else ""
        return f"{self.check:12} {place}{self.text}"

    def to_dict(self) -> dict[str, str]:
        """Return the finding for JSON."""
        return asdict(self)


def diagnose(
    subjects: Sequence[Subject], program: str = ""
) -> tuple[list[Finding], list[Examination]]:
    """Return the findings of all checks, and what they are based on.

    Args:
        subjects: The parts of the data.
        program: The text of the Python file that defines them; empty if there is none.

    >>> found, _ = diagnose([Subject("train", np.array([[1.0, 2.0], [np.nan, 3.0]]))])
    >>> print(found[0])  # doctest: +ELLIPSIS
    nan          train: 25% of the values are NaN: ...
    """
    examined = [examine(each) for each in subjects]
    found = [Finding("main guard", "", text) for text in unguarded(program)]
    for each in examined:
        for name, check in CHECKS.items():
            found += [Finding(name, each.subject.name, text) for text in check(each)]
    found += [Finding("splits", "", text) for text in shared_samples(examined)]
    return found, examined


# -- checks of one part


def unreadable(one: Examination) -> Iterator[str]:
    """Samples that cannot be read or put into a batch, and data without samples."""
    if not one.samples:
        yield "there are no samples: check the path, and what selects them"
    elif one.read.problem:
        yield one.read.problem
    if one.stream is not None and one.stream.refused:
        yield one.stream.refused


def picklable(one: Examination) -> Iterator[str]:
    """What cannot be sent to a worker process."""
    names = tuple(name for name, _ in one.hazards)  # these have a finding of their own
    if one.culprit is not None and not one.culprit.name.startswith(names or "\0"):
        yield f"{one.culprit} cannot be sent to a worker process: {one.culprit.fix}"


def forkable(one: Examination) -> Iterator[str]:
    """Attributes that are not safe to fork."""
    for name, what in one.hazards:
        yield f"{name} {what}: keep what describes it, and create it where a sample is first read"


def random_samples(one: Examination) -> Iterator[str]:
    """Randomness that depends on workers, on the order of reads, or on nothing at all."""
    found, fix = one.repeats, "use penstock.sample_generator(index)"
    if one.same_in_workers:
        yield (
            "two workers give the same samples, so that each comes twice: give every worker its "
            "share with torch.utils.data.get_worker_info()"
        )
    if found.same or found.changed:
        return
    if found.generators:
        names = " and ".join(found.generators)
        yield (
            f"samples depend on the global generator of {names}, so they change with the number of "
            f"workers and after a resume: {fix}"
        )
    elif found.same_in_copies:
        yield (
            "samples draw from a generator of the dataset itself, which every worker copies: all "
            f"workers, and all epochs, get the same numbers: {fix}"
        )
    else:
        yield (
            "a sample differs each time it is read, and no generator was seeded (a clock, or new "
            f"entropy): {fix}"
        )


def changed_data(one: Examination) -> Iterator[str]:
    """Reads that change the data of other reads."""
    if one.repeats.changed and not one.repeats.same:
        yield f"reading a sample changes {one.repeats.changed} in place: change a copy of it"
    elif one.repeats.reused_memory:
        yield (
            "reading a sample overwrites the one read before, because both are in the same memory: "
            "return a copy"
        )


def sample_cost(one: Examination) -> Iterator[str]:
    """Slow samples, and numbers of workers that do not fit the cost of a sample."""
    cost, workers, cores = one.cost, one.subject.workers, one.machine.cores
    if cost.is_costly and workers == 0:
        yield (
            f"a sample takes {cost.seconds * 1e3:,.1f} ms, and no worker reads ahead: set "
            f"num_workers={cores}, or run penstock tune"
        )
    if workers is not None and workers > 2 * cores and not cost.waits:
        yield (
            f"{workers} workers for {cores} cores take memory and wait for each other: set "
            f"num_workers={cores}"
        )
    if workers and cost.is_cheap and one.samples and cost.nbytes:
        yield (f"a sample is {cost}, less than sending it from a worker takes: set num_workers=0")


def cost_spread(one: Examination) -> Iterator[str]:
    """Samples that take much longer than the others."""
    index, longest, median = one.read.slowest
    if longest > SLOW_SECONDS and longest > SLOW_RATIO * median:
        yield (
            f"sample {index} takes {longest * 1e3:,.0f} ms, half of all samples take under "
            f"{median * 1e3:,.1f} ms: every batch waits for its slowest sample, so divide or "
            "prepare such samples"
        )


def storage_layout(one: Examination) -> Iterator[str]:
    """Storage chunks that do not fit the way they are read."""
    found = one.stream
    if found is None or not found.chunk_rows or one.samples < 2:
        return
    rechunk = "rewrite the data with penstock convert"
    small = found.chunk_bytes < SMALL_CHUNK and one.samples * one.read.sample_bytes > LARGE_CHUNK
    if found.tiny_chunks:
        yield f"every sample is a storage chunk of its own, and needs its own read: {rechunk}"
    elif small:
        yield f"storage chunks have only {format_bytes(found.chunk_bytes)} each: {rechunk}"
    if found.chunk_bytes > LARGE_CHUNK and found.chunk_rows > 1:
        yield (
            f"storage chunks have {format_bytes(found.chunk_bytes)} ({found.chunk_rows:,} samples) "
            f"each, so that few of them are mixed at a time: {rechunk}"
        )
    if found.decoded > DECODED_AGAIN:
        why = f"blocks are parts of storage chunks: raise memory_budget, or {rechunk}"
        if found.cut:
            why = "patches are parts of storage chunks: choose sizes that the chunks divide"
        yield f"{found.decoded:.1f} bytes are decoded for each byte that is used, because {why}"


def shuffling(one: Examination) -> Iterator[str]:
    """Orders that mix samples poorly."""
    found = one.stream
    if found is None:
        return
    quality = found.quality
    if found.shuffle and quality is not None and quality.mixing < POOR_MIXING:
        yield (
            f"the shuffle mixes {quality.mixing:.0%} as well as a full shuffle, because a batch is "
            f"drawn from {quality.blocks} blocks: raise memory_budget from "
            f"{format_bytes(found.budget)}, or pass mixing=0.9"
        )
    training = one.subject.loader is not None and one.subject.name in ("", "train")
    if training and not found.shuffle:
        for name, labels in _labels(one):
            changes = int((np.diff(labels) != 0).sum())
            if 1 <= changes <= 2 * len(np.unique(labels)):
                yield f"samples are in storage order, sorted by {name!r}: shuffle them"


def memory(one: Examination) -> Iterator[str]:
    """Memory that grows, is copied to each worker, or is not available."""
    for name, items in one.long_lists:
        if items >= LONG_LIST:
            yield (
                f"{name} has {items:,} Python objects, and every worker ends up with its own copy "
                "of them: keep it as a numpy array"
            )
    if one.repeats.grown:
        yield f"{one.repeats.grown} grows with every sample that is read: limit it"
    workers = one.subject.workers or 0
    batches = 1 + workers * BATCHES_AHEAD
    needed = batches * one.subject.batch_size * one.read.sample_bytes
    if one.stream is not None:
        needed = one.stream.needed
    if needed > MEMORY_SHARE * one.machine.memory_bytes:
        yield (
            f"batches take {format_bytes(needed)}, this machine has "
            f"{format_bytes(one.machine.memory_bytes)}: use smaller batches, or fewer workers"
        )


def seams(one: Examination) -> Iterator[str]:
    """Borders between recordings that are not known, or leave rows unused."""
    for name, values in one.read.values.items():
        number = name.rpartition("/")[2].rpartition(".")[2].lower()
        if number not in TIME_NAMES or values.ndim != 1 or values.dtype.kind not in "iufM":
            continue
        back = np.flatnonzero(values[1:] < values[:-1]) + 1
        back = np.array([i for i in back.tolist() if i not in one.read.seams], np.int64)
        if 0 < len(back) <= len(values) // 10:
            row = int(one.read.indices[back[0]])
            yield (
                f"{name!r} decreases at or before sample {row:,}, and there is no seam: windows "
                "would join two recordings; open them as a list of parts"
            )
    found = one.stream
    if found is not None and found.steps > 1:
        short = [rows for rows in found.pieces if rows < found.steps]
        if short:
            yield (
                f"{len(short)} of {len(found.pieces)} pieces have fewer than steps={found.steps} "
                f"rows, and are in no sample ({sum(short):,} rows): use fewer steps"
            )


def packed_values(one: Examination) -> Iterator[str]:
    """Stored values that are not the data: packed integers, and marks of missing values."""
    for name in one.packed:
        yield (
            f"{name} is stored packed (it has scale_factor) and is read as it is stored: leave out "
            "decode=False, or read it with open_source"
        )
    for name, values in _numbers(one):
        for mark in FILL_VALUES:
            at = np.isclose(values, mark, rtol=1e-6) if values.dtype.kind == "f" else values == mark
            others = values[~at & np.isfinite(values)]
            if not at.any() or not len(others):
                continue
            low, high = float(others.min()), float(others.max())
            away = max(low - mark, mark - high)
            if away > FILL_DISTANCE * (high - low):
                yield (
                    f"{_percent(at.mean())} of the values{_of(name)} are {mark:g}, far from all "
                    "others: where it marks missing values, set _FillValue, or mask them"
                )


def missing_values(one: Examination) -> Iterator[str]:
    """NaN and infinite values."""
    for name, values in _numbers(one):
        if values.dtype.kind not in "fc":
            continue
        for what, share in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
            if share.any():
                yield (
                    f"{_percent(share.mean())} of the values{_of(name)} are {what}: leave out "
                    "these samples, or replace the values in a transform"
                )


def constant_fields(one: Examination) -> Iterator[str]:
    """Fields whose values are all equal."""
    for name, values in _numbers(one):
        if len(one.read.indices) > 1 and values.size > 1 and bool((values == values.flat[0]).all()):
            yield (
                f"all values{_of(name)} are {values.flat[0]:g}: leave the field out, or check what "
                "wrote it"
            )


def class_balance(one: Examination) -> Iterator[str]:
    """Classes with very few samples."""
    for name, labels in _labels(one):
        classes, counts = np.unique(labels, return_counts=True)
        rare, common = int(counts.argmin()), int(counts.argmax())
        if counts[common] >= IMBALANCE * counts[rare]:
            yield (
                f"class {classes[rare]} of {name!r} has {_percent(counts[rare] / len(labels))} of "
                f"the samples, class {classes[common]} {_percent(counts[common] / len(labels))}: "
                "use penstock.balanced(data, labels), or weights"
            )


def copies(one: Examination) -> Iterator[str]:
    """Samples that occur more than once."""
    known = one.read.digests
    repeated = len(known) - len(set(known))
    if known and repeated > DUPLICATES * len(known):
        yield (
            f"{repeated:,} of {len(known):,} samples are copies of others: remove them, or give "
            "them weights"
        )


CHECKS: Final[dict[str, Callable[[Examination], Iterator[str]]]] = {
    "samples": unreadable,
    "workers": picklable,
    "fork": forkable,
    "randomness": random_samples,
    "changes": changed_data,
    "cost": sample_cost,
    "spread": cost_spread,
    "storage": storage_layout,
    "shuffle": shuffling,
    "memory": memory,
    "seams": seams,
    "packed": packed_values,
    "nan": missing_values,
    "constant": constant_fields,
    "classes": class_balance,
    "copies": copies,
}


# -- checks of all parts, and of the program


def shared_samples(examined: Sequence[Examination]) -> Iterator[str]:
    """Samples that are in two parts."""
    for number, one in enumerate(examined):
        for other in examined[number + 1 :]:
            known = set(one.read.digests)
            both = sum(each in known for each in other.read.digests)
            if both:
                yield (
                    f"{both:,} of {len(other.read.digests):,} samples of {other.subject.name!r} "
                    f"are in {one.subject.name!r} too: split by group, or remove the copies"
                )


def unguarded(program: str) -> Iterator[str]:
    """A program that starts workers when it is imported."""
    if not program:
        return
    tree = ast.parse(program)
    workers = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "num_workers"
        if not (isinstance(node.value, ast.Constant) and node.value.value in (0, None))
    ]
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body if workers else ():
        if _runs(node, own):
            yield (
                f"line {node.lineno} runs when a worker imports the file: put it "
                'under `if __name__ == "__main__":`'
            )
            return


def _runs(node: ast.stmt, own: set[str]) -> bool:
    """Return whether a statement of a module iterates, or calls a function of the module."""
    if isinstance(node, ast.For | ast.While | ast.With):
        return True
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = node.value.func
    return (isinstance(called, ast.Name) and called.id in own) or (
        isinstance(called, ast.Attribute) and called.attr in ("fit", "train", "run")
    )


# -- words and values


def _of(name: str) -> str:
    return f" of {name!r}" if name else ""


def _percent(share: float) -> str:
    """Return a share in percent.

    >>> _percent(0.25), _percent(0.00012)
    ('25%', '0.012%')
    """
    return f"{100 * float(share):.2g}%"


def _numbers(one: Examination) -> Iterator[tuple[str, Any]]:
    """Yield numeric fields with at least one value."""
    for name, values in one.read.values.items():
        if values.size and values.dtype.kind in "iuf":
            yield name, values


def _labels(one: Examination) -> Iterator[tuple[str, Any]]:
    """Yield fields of classes: one whole number for each sample, under the name of a label."""
    for name, values in one.read.values.items():
        number = name.rpartition("/")[2].rpartition(".")[2].lower()
        whole = values.ndim == 1 and values.dtype.kind in "iub" and len(values) >= ENOUGH
        if whole and number in LABEL_NAMES and 1 < len(np.unique(values)) <= len(values) // 10:
            yield name, values
