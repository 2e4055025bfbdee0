"""Mixtures of orders: several members in fixed shares, each read in full before it repeats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.fingerprints import short_digest
from penstock.order.orders import (
    Order,
    Repeating,
    at_epochs,
    check_positions,
    check_seed,
    passes_of,
    positions_of,
    samples_of,
)
from penstock.order.permutation import (
    LARGEST,
    SMALLEST_DOMAIN,
    Indices,
    Keys,
    all_values,
    derive_key,
)

Stage: TypeAlias = tuple[int, tuple[int, ...]]  # first place, and rows of each member in a cycle

AT_ONCE: Final = 1 << 20  # slots of cycles that are computed together
LONGEST_CYCLE: Final = 10_000
NEVER: Final = LARGEST + 1
TOLERANCE: Final = 0.01  # of a member's share: a shorter cycle mixes better than an exact one


def _largest_remainder(shares: Sequence[int], cycle: int) -> tuple[int, ...]:
    total = sum(shares)
    counts, rests = map(list, zip(*(divmod(share * cycle, total) for share in shares), strict=True))
    for i in sorted(range(len(shares)), key=lambda i: (-rests[i], i))[: cycle - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


def shortest_counts(
    weights: Sequence[Any], tolerance: float = TOLERANCE, most: int = LONGEST_CYCLE
) -> tuple[int, ...]:
    """Return the counts of the shortest cycle that gives each member its share, within tolerance.

    Short cycles mix best: 7, 2 and 1 of 10 are in every batch; 700, 200 and 100 of 1000 need not
    be.

    Args:
        weights: One number per member; only their ratios matter.
        tolerance: The largest accepted error of a member's share, relative to the share.
        most: The longest accepted cycle.

    >>> shortest_counts([700, 200, 100])
    (7, 2, 1)
    """
    shares, allowed = _whole(weights), Fraction(tolerance)
    total, least = sum(shares), min(share for share in shares if share)
    over, under = allowed.numerator, allowed.denominator
    # in a shorter cycle, the smallest share would get no row
    for cycle in range(max(1, int(total / (2 * least * (1 + allowed)))), most + 1):
        counts = _largest_remainder(shares, cycle)
        pairs = zip(counts, shares, strict=True)
        if all(under * abs(c * total - s * cycle) <= over * s * cycle for c, s in pairs):
            return counts
    raise PlanError(
        f"no cycle of at most {most:,} rows gives the weights {list(weights)!r} within "
        f"{tolerance:.0%}: use weights that differ less"
    )


def _whole(weights: Sequence[Any]) -> list[int]:
    """Return weights as integers in exactly the same ratios."""
    exact = (int, Fraction)
    shares = [Fraction(w) if isinstance(w, exact) else Fraction(float(w)) for w in weights]
    if not shares or min(shares) < 0 or not sum(shares):
        raise PlanError(f"weights must not be negative, nor all zero, got {list(weights)!r}")
    unit = lcm(*(share.denominator for share in shares))
    return [int(share * unit) for share in shares]


def flat_stages(stages: Sequence[Stage], inner: Sequence[Sequence[Stage] | None]) -> list[Stage]:
    """Return the stages of a mixture of mixtures as those of one mixture, in the same shares.

    Args:
        stages: The stages of the outer mixture.
        inner: For each member, its stages if it is a mixture itself, counted in its own places.

    >>> flat_stages([(0, (2, 1))], [[(0, (1, 1)), (40, (1, 0))], None])
    [(0, (1, 1, 1)), (60, (2, 0, 1))]
    """
    moved: list[list[Stage]] = []
    for i, each in enumerate(inner):
        own = [(0, (1,))] if each is None else each
        moved.append([(_place_of_draws(stages, i, at), counts) for at, counts in own])
    found = []
    for place in sorted({at for each in (stages, *moved) for at, _ in each} - {NEVER}):
        counts, *parts = ([c for at, c in each if at <= place][-1] for each in (stages, *moved))
        unit, pairs = lcm(*map(sum, parts)), zip(counts, parts, strict=True)
        flat = [count * each * unit // sum(part) for count, part in pairs for each in part]
        found.append((place, tuple(each // gcd(*flat) for each in flat)))
    return found


def _place_of_draws(stages: Sequence[Stage], member: int, draws: int) -> int:
    """Return the place at which a member has had ``draws`` rows, by its shares."""
    ends = [*(place for place, _ in stages[1:]), NEVER]
    if not draws:
        return 0
    for (begin, counts), end in zip(stages, ends, strict=True):
        cycle, own = sum(counts), counts[member]
        place = begin - (-draws * cycle // own) if own else NEVER
        if place < end:
            return place
        draws -= (end - begin) * own // cycle
    return NEVER


class MixtureOrder(Repeating):
    """Member orders in fixed shares: one endless sequence of places, cut into epochs.

    Place g is row ``g // lanes`` of lane ``g % lanes``. The rows of a lane come in cycles; in
    every cycle member i has ``counts[i]`` rows, which a keyed permutation chooses. Row number n of
    member i in lane l is *draw* ``n * lanes + l`` of that member: position ``draw % size`` of its
    epoch ``draw // size``.

    Therefore a member is read in full before it repeats, however long an epoch of the mixture is;
    the draws of a lane are consecutive, so that one window per member and lane is enough;
    within an epoch of a member, a lane of the mixture is one lane of the member; and at the end of
    each cycle the shares are exact.

    Args:
        members: Orders; a sample of the mixture is ``first[i]`` plus a sample of member i.
        stages: ``(first place, counts)``, the first one at place 0. A stage begins with the first
            whole cycle at or after its place; the attribute `stages` has that place.
        seed: Seed of the cycles.
        lanes: Independent readers.
        until: Places per epoch: a number; or ``"first"`` or ``"all"``, as many whole cycles as
            pass no member more than once, or each at least once (with one stage only).

    >>> from penstock.order.orders import ShuffledOrder
    >>> members = [ShuffledOrder(100, seed=1), ShuffledOrder(30, seed=2)]
    >>> order = MixtureOrder(members, [(0, [7, 3])], seed=42)
    >>> order.size, np.bincount(order.draws(np.arange(10))[0])
    (100, array([7, 3]))
    """

    kind = "mixture"

    def __init__(
        self,
        members: Sequence[Order],
        stages: Iterable[tuple[int, Sequence[int]]],
        seed: int,
        lanes: int = 1,
        until: str | int = "first",
    ) -> None:
        self.members, self.seed = list(members), check_seed(seed)
        self.lanes = whole_number("lanes", lanes, minimum=1)
        for member in self.members:
            if member.lanes != 1 and member.lanes % lanes:
                raise PlanError(
                    f"a member has {member.lanes} lanes and the mixture {lanes}: a lane would read "
                    f"several shares of it; use {lanes} lanes for the member, or a multiple"
                )
        self.sizes = np.array([member.size for member in self.members])
        self.first = np.cumsum([0, *(samples_of(member) for member in self.members)])
        self.samples = int(self.first[-1])
        self._lay_out(list(stages))
        self.size = self._epoch_places(until)

    def _lay_out(self, stages: Sequence[tuple[int, Sequence[int]]]) -> None:
        counts = np.array([c for _, c in stages], np.int64)
        fits = counts.shape[1:] == (len(self.members),) and counts.min() >= 0
        if not fits or not counts.sum(1).all():
            raise PlanError("every stage needs one count per member, and at least one row")
        rows, drawn = [0], [np.zeros(len(self.members), np.int64)]
        for (place, _), before in zip(stages[1:], counts[:-1], strict=True):
            cycle = int(before.sum())
            cycles = max(0, -(-(-(-int(place) // self.lanes) - rows[-1]) // cycle))
            rows.append(rows[-1] + cycles * cycle)
            drawn.append(drawn[-1] + cycles * before)
        self._counts, self._rows, self._drawn = counts, np.array(rows), np.array(drawn)
        small = np.uint8 if len(self.members) <= 256 else np.int64  # sorts by radix
        self._owner = [np.repeat(np.arange(len(c), dtype=small), c) for c in counts]
        self._starts = np.cumsum(counts, axis=1) - counts

    def _epoch_places(self, until: str | int) -> int:
        if isinstance(until, str):
            if len(self._rows) > 1:
                raise PlanError(f"with several stages, until must be a number, got {until!r}")
            drawn = (self._counts[0] * self.lanes).tolist()
            pairs = [(n, d) for n, d in zip(self.sizes.tolist(), drawn, strict=True) if d]
            whole = {
                "first": min(n // d for n, d in pairs),
                "all": max(-(-n // d) for n, d in pairs),
            }
            if until not in whole:
                raise PlanError(f"until must be 'first', 'all' or a number, got {until!r}")
            until = max(1, whole[until]) * sum(drawn)
        return whole_number("until", until, minimum=1, maximum=LARGEST, unit="place")

    @property
    def stages(self) -> list[list[Any]]:
        """Where each stage begins, in places, and its counts."""
        pairs = zip(self._rows.tolist(), self._counts.tolist(), strict=True)
        return [[row * self.lanes, counts] for row, counts in pairs]

    def identity(self) -> dict[str, Any]:
        """Return kind, sizes, seed, lanes, stages, and a digest of the members' identities."""
        members = [member.identity() for member in self.members]
        return {
            "order": self.kind,
            "samples": self.samples,
            "seed": self.seed,
            "lanes": self.lanes,
            "places": self.size,
            "stages": self.stages,
            "members": short_digest([json.dumps(members).encode()]),
        }

    def identity_for(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity that a state must have; stages that begin after it may be added."""
        ours, theirs = self.identity(), state.get("stages")
        here = state.get("epoch", 0) * self.size + state.get("position", 0)
        known = len(theirs) if isinstance(theirs, list) else 0
        new = [begin for begin, _ in self.stages[known:]]
        if known and ours["stages"][:known] == theirs and all(begin >= here for begin in new):
            ours["stages"] = theirs
        return ours

    # -- from a place to a sample

    def places_at(self, epoch: int, positions: Indices) -> Indices:
        """Return positions of an epoch as places, counted from the beginning of training."""
        positions = check_positions(positions, self.size)
        if (epoch + 1) * self.size > LARGEST:
            raise IndexError(f"epoch {epoch} ends past place 2**62")
        return positions + epoch * self.size

    def draws(self, places: Indices) -> tuple[Indices, Indices]:
        """Return the member and the draw of each place."""
        row, lane = np.divmod(np.asarray(places, np.int64), self.lanes)
        stage = np.searchsorted(self._rows, row, side="right") - 1
        member, draw = np.empty_like(row), np.empty_like(row)
        for j in np.unique(stage).tolist():
            here = stage == j
            cycle, slot = np.divmod(row[here] - self._rows[j], len(self._owner[j]))
            m, nth = self._deal(j, cycle, lane[here], slot)
            nth += self._drawn[j, m] + cycle * self._counts[j, m]
            member[here], draw[here] = m, nth * self.lanes + lane[here]
        return member, draw

    def at_with_passes(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return the samples at these positions, and how often each occurred before."""
        member, draw = self.draws(self.places_at(epoch, positions))
        by_member = np.argsort(member, kind="stable")
        borders = np.searchsorted(member[by_member], np.arange(len(self.members) + 1)).tolist()
        passes, inner = np.divmod(draw, self.sizes[member])
        samples = self.first[member]
        for i, (begin, end) in enumerate(pairwise(borders)):
            here, order = by_member[begin:end], self.members[i]
            if begin == end:
                continue
            samples[here] += at_epochs(order, passes[here], inner[here])
            if hasattr(order, "passes"):  # a member that repeats samples itself
                epochs = passes[here]
                for e in np.unique(epochs).tolist():
                    own = passes_of(order, e, inner[here[epochs == e]])
                    passes[here[epochs == e]] = e if own is None else own
        return samples, passes

    def drawn(self, row: int, lane: int, stages: int | None = None) -> Indices:
        """Return the draws of each member in the rows of a lane before ``row``.

        Args:
            row: A row of the lane, counted from the beginning of training.
            lane: The lane.
            stages: Number of stages to count; None for all of them.
        """
        j = int(np.searchsorted(self._rows[:stages], row, side="right")) - 1
        cycle, slot = divmod(row - int(self._rows[j]), len(self._owner[j]))
        done: Indices = self._drawn[j] + cycle * self._counts[j]
        if slot:
            whole = self._whole_cycles(j, np.array([cycle]), np.array([lane]))[0]
            done = done + np.bincount(whole[:slot], minlength=len(self.members))
        return done

    # -- from a sample to its places

    def positions_of(self, epoch: int, sample: int) -> Indices:
        """Return all positions of a sample in an epoch, ascending."""
        return self.positions_of_draws(epoch, *self.draws_of(epoch, sample))

    def draws_of(self, epoch: int, sample: int) -> tuple[int, Indices]:
        """Return the member of a sample, and its draws in the passes of that member in an epoch."""
        i = int(np.searchsorted(self.first, sample, side="right")) - 1
        size, begin, end = int(self.sizes[i]), epoch * self.size, (epoch + 1) * self.size
        lanes = range(self.lanes)  # passes follow each other: the first and the last one are enough
        low = min(int(self.drawn(begin // self.lanes, lane)[i]) for lane in lanes)
        high = max(int(self.drawn(end // self.lanes + 1, lane)[i]) for lane in lanes) + 1
        passes = range(low * self.lanes // size, high * self.lanes // size + 1)
        inner = sample - int(self.first[i])
        draws = [p * size + q for p in passes for q in positions_of(self.members[i], p, inner)]
        return i, np.array(draws, np.int64)

    def positions_of_draws(self, epoch: int, member: int, draws: Indices) -> Indices:
        """Return the positions of those draws of a member that come in an epoch, ascending."""
        places, begin = np.sort(self.place_of_draw(member, draws)), epoch * self.size
        found: Indices = places[(places >= begin) & (places < begin + self.size)] - begin
        return found

    def place_of_draw(self, i: int, draw: Indices) -> Indices:
        """Return the place of each draw of a member; -1 for never."""
        nth, lane = np.divmod(draw, self.lanes)
        # of stages that begin with the same draw, all but the last have no row for this member
        stage = np.searchsorted(self._drawn[:, i], nth, side="right") - 1
        place = np.full_like(draw, -1)
        for j in np.unique(stage).tolist():
            count, length = int(self._counts[j, i]), len(self._owner[j])
            if not count:
                continue  # the last stage leaves this member out
            here = stage == j
            cycle, offset = np.divmod(nth[here] - self._drawn[j, i], count)
            owners = self._whole_cycles(j, cycle, lane[here])
            slots = np.nonzero(owners == i)[1].reshape(len(cycle), count)
            slot = slots[np.arange(len(cycle)), offset]
            place[here] = (self._rows[j] + cycle * length + slot) * self.lanes + lane[here]
        return place

    # -- cycles

    def _cycle_keys(self, j: int, cycle: Indices, lane: Indices) -> Keys:
        """Return a key for the first row of each cycle: cutting a stage in two changes nothing."""
        begin = self._rows[j] + cycle * len(self._owner[j])
        return np.asarray(derive_key(derive_key(self.seed, "cycle"), begin, lane))

    def _deal(
        self, j: int, cycle: Indices, lane: Indices, slot: Indices
    ) -> tuple[Indices, Indices]:
        """Return the member at a slot of a lane's cycle, and how many slots it has before that."""
        length = len(self._owner[j])
        cycles, which = np.unique(cycle * self.lanes + lane, return_inverse=True)
        member, nth = np.empty_like(slot), np.empty_like(slot)
        rank = np.arange(length) - self._starts[j][self._owner[j]]
        many = max(1, AT_ONCE // max(length, SMALLEST_DOMAIN))
        for begin in range(0, len(cycles), many):
            owner = self._whole_cycles(j, *np.divmod(cycles[begin : begin + many], self.lanes))
            ordered = np.argsort(owner, axis=1, kind="stable")
            before = np.empty(owner.shape, np.int64)
            np.put_along_axis(before, ordered, np.broadcast_to(rank, owner.shape), axis=1)
            here = (which >= begin) & (which < begin + many)
            at = which[here] - begin, slot[here]
            member[here], nth[here] = owner[at], before[at]
        return member, nth

    def _whole_cycles(self, j: int, cycle: Indices, lane: Indices) -> npt.NDArray[Any]:
        """Return the member at every slot of these cycles."""
        keys = self._cycle_keys(j, cycle, lane)
        return self._owner[j][all_values(len(self._owner[j]), keys)]
