"""How a split assigns samples: whole cells at random, in order of time, or whole groups."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import choice, real_number, shown, whole_number
from penstock.errors import PlanError
from penstock.order import Permutation, derive_key
from penstock.order.subset import Kept, kept_ranges
from penstock.registry import did_you_mean
from penstock.sources.boxes import Borders
from penstock.sources.contract import Indices, Source
from penstock.sources.ragged_rows import new_buffers, offsets_of
from penstock.sources.verbs import Layout

log = logging.getLogger("penstock")

SMALLEST_PART_PIECES = 16  # of a random split: fewer would hardly be a shuffle


def part_sizes(parts: Mapping[str, float], samples: int) -> dict[str, int]:
    """Return the number of samples of each part: at least one each, together all of them.

    >>> part_sizes({"train": 0.8, "val": 0.2}, 101)
    {'train': 81, 'val': 20}
    >>> part_sizes({"train": 90, "val": 11}, 101)
    {'train': 90, 'val': 11}
    """
    if not isinstance(parts, Mapping) or not parts:
        raise PlanError(f"parts must be a dict of shares by name, got {parts!r}")
    whole = all(isinstance(share, int | np.integer) for share in parts.values())
    if whole and sum(parts.values()) != 1:
        sizes = {name: whole_number(f"parts[{name!r}]", n, minimum=1) for name, n in parts.items()}
        if sum(sizes.values()) != samples:
            raise PlanError(f"parts {dict(parts)} must add up to {samples} samples")
        return sizes
    shares = [real_number(f"parts[{name!r}]", share, minimum=0) for name, share in parts.items()]
    if abs(sum(shares) - 1) > 1e-9 or min(shares) <= 0:
        raise PlanError(f"parts must be positive shares that add up to 1, got {dict(parts)}")
    if samples < len(shares):
        raise PlanError(f"cannot split {samples} samples into {len(shares)} parts of 1 or more")
    ends = np.rint(np.cumsum(shares) * samples).astype(np.int64)
    least = np.arange(1, len(shares) + 1)
    ends = np.minimum(np.maximum.accumulate(np.maximum(ends - least, 0)) + least, samples)
    ends = np.minimum(ends, samples - least[::-1] + 1)  # one sample for each part that follows
    return dict(zip(parts, np.diff(ends, prepend=0).tolist(), strict=True))


def split_samples(
    source: Source, layout: Layout, parts: Mapping[str, float], by: str, groups: Any, seed: int
) -> dict[str, Kept]:
    """Return the samples of each part.

    Args:
        source: What is split.
        layout: Where its samples are.
        parts: Shares or numbers of samples, by name.
        by: "random", "time" or "group".
        groups: The group of each sample, or the field that has it; only for "group".
        seed: Seed of the shuffle.
    """
    sizes, cells = part_sizes(parts, len(source)), layout.cells
    key = derive_key(whole_number("seed", seed, minimum=0, maximum=2**64 - 1), "split")
    labels = _group_labels(source, by, groups, layout.runs)
    if choice("by", by, ("random", "time", "group")) == "group":
        found = _by_group(np.asarray(labels), sizes, key)
        return {name: kept_ranges(a, b, len(source)) for name, (a, b) in found.items()}
    if layout.shared:
        log.warning(
            "splitting samples that overlap: rows of one part are also in another; call split "
            "first, then windows or patches of each part"
        )
    if by == "time":
        if layout.tiled:
            raise PlanError(
                "by='time' cannot split patches, which are not in the order of time: split first, "
                "then make patches of each part"
            )
        borders = np.array([0, cells.size])
        order = np.zeros(1, np.int64)
    else:
        # a cell is cut where a part would have only a few of them
        most = max(1, min(sizes.values()) // SMALLEST_PART_PIECES)
        borders = Borders(cells.firsts, np.minimum(cells.steps, most), cells.size).array()
        count = len(borders) - 1
        order = Permutation(count, key)(np.arange(count))
    dealt = _dealt(borders[:-1][order], borders[1:][order], sizes)
    return {name: kept_ranges(a, b, len(source)) for name, (a, b) in dealt.items()}


def _dealt(starts: Indices, stops: Indices, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the pieces in their order, cut so that each part has its size."""
    parts, ends = {}, np.cumsum(stops - starts)
    begins, used = ends - (stops - starts), 0
    for name, size in sizes.items():
        first = int(np.searchsorted(ends, used, side="right"))
        last = int(np.searchsorted(ends, used + size, side="left")) + 1
        low, high = starts[first:last].copy(), stops[first:last].copy()
        low[0] += used - begins[first]
        high[-1] -= ends[last - 1] - (used + size)
        parts[name] = merged(low, high)
        used += size
    return parts


def _by_group(groups: npt.NDArray[Any], sizes: Mapping[str, int], key: int) -> dict[str, Any]:
    """Return whole groups, each assigned, in shuffled order, to the part that lacks the most."""
    names, member, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < len(sizes):
        raise PlanError(
            f"cannot split {len(names)} groups into {len(sizes)} parts of 1 or more: pass groups= "
            "with more of them, or another by="
        )
    left, parts = np.array(list(sizes.values()), np.int64), np.empty(len(names), np.int64)
    order = Permutation(len(names), key)(np.arange(len(names)))
    for position, group in enumerate(order.tolist()):
        without = np.setdiff1d(np.arange(len(left)), parts[order[:position]])
        must = len(without) == len(names) - position  # every group left is needed for a part
        part = int(without[0]) if must else int(np.argmax(left))
        parts[group], left[part] = part, left[part] - counts[group]
    found = {}
    for number, name in enumerate(sizes):
        indices = np.flatnonzero(parts[member.ravel()] == number)
        found[name] = merged(indices, indices + 1)
    return found


def merged(starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
    """Return ranges in ascending order; those that touch are merged."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    gaps = starts[1:] != stops[:-1]
    return starts[np.append(True, gaps)], stops[np.append(gaps, True)]


def _group_labels(source: Source, by: str, groups: Any, runs: Indices) -> Any:
    """Return the group of each sample: as given, from a field, or by default its run."""
    if by != "group":
        if groups is not None:
            raise PlanError(f"groups is for by='group', got by={by!r}")
        return None
    if groups is None:
        return np.repeat(np.arange(len(runs) - 1), np.diff(runs))
    if not isinstance(groups, str):
        try:
            labels = np.asarray(groups)
        except (TypeError, ValueError, RuntimeError) as error:  # ragged, or on a device
            raise PlanError(f"groups must be one label per sample, got {shown(groups)}") from error
    elif groups not in source.fields:
        near = did_you_mean(groups, source.fields)
        raise PlanError(f"groups: no field {groups!r} in this source{near}")
    else:
        read = new_buffers(source, [groups], 0, len(source))
        source.read(0, len(source), read)
        labels = read[groups]
        if source.fields[groups].ragged:  # text: rows with the same items are one group
            ends = offsets_of(source, groups).tolist()
            numbers: dict[bytes, int] = {}
            each = (labels[a:b].tobytes() for a, b in pairwise(ends))
            labels = np.array([numbers.setdefault(text, len(numbers)) for text in each])
    if labels.shape != (len(source),):
        raise PlanError(f"groups must have {len(source)} items, one per sample, got {labels.shape}")
    if labels.dtype.hasobject:  # such as text of pandas; only text or numbers can be sorted
        kinds = {type(label) for label in labels.tolist()}
        if not kinds <= {str} and not kinds <= {int, float, bool}:
            named = sorted(kind.__name__ for kind in kinds)
            raise PlanError(f"groups must all be numbers or all be text, got {named}")
        labels = np.array(labels.tolist())
    return labels
