"""Splits: made by question, and checked to be disjoint, complete and without a shared question."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from penstock.checks import Finding
from penstock.domains.steering.layout import BY_NAME, SPLITS, Table
from penstock.errors import PlanError
from penstock.order import Indices, Permutation, derive_key


def split_by_question(
    questions: Indices, shares: tuple[float, float, float], seed: int
) -> dict[str, torch.Tensor]:
    """The pair rows of each split, no question in two of them, none without a question.

    >>> split_by_question(np.array([0, 0, 1, 2]), (0.8, 0.1, 0.1), seed=1)
    {'train_idx': tensor([3]), 'val_idx': tensor([2]), 'test_idx': tensor([0, 1])}
    """
    names, of_pair = np.unique(questions, return_inverse=True)
    count = len(names)
    if count < len(SPLITS):
        raise PlanError(f"{len(SPLITS)} splits need as many questions at least, got {count}")
    val = min(max(1, int(count * shares[1])), count - 2)
    test = min(max(1, int(count * shares[2])), count - 1 - val)
    place = Permutation(count, derive_key(seed, "splits"))(np.arange(count))[of_pair]
    ends = {"train": count - val - test, "val": count - test, "test": count}
    tables, begin = {}, 0
    for split, end in ends.items():
        rows = np.flatnonzero((begin <= place) & (place < end))
        tables[f"{split}_idx"], begin = torch.from_numpy(rows), end
    return tables


class SplitsCheck:
    """Pairs and questions that the splits seen so far have taken."""

    def __init__(self, questions: Indices, place: Callable[[Table], str]) -> None:
        self._questions, self._place = questions, place
        self._taken = np.zeros(len(questions), np.int8)  # by the first, second, third split
        known = questions[questions >= 0]
        self._asked = np.zeros(int(known.max()) + 1 if known.size else 0, np.int8)
        self._names: list[str] = [""]

    def add(self, table: Table, rows: Indices) -> Iterator[Finding]:
        """A further split: what is wrong with it, alone and beside the earlier ones."""
        self._names.append(table.file)
        place, pairs = self._place(table), len(self._taken)
        if not rows.size:
            yield Finding(place, f"{table.name} has no pairs: a split needs at least one")
            return
        outside = (rows < 0) | (rows >= pairs)
        yield from _at(
            place, rows, outside, f"Split indices reference pair {{}}, but only {pairs} pairs exist"
        )
        places, rows = np.flatnonzero(~outside), rows[~outside]
        _, first = np.unique(rows, return_index=True)
        again = np.ones(len(rows), np.bool_)
        again[first] = False
        yield from _at(place, rows, again, f"{table.name} has pair {{}} twice", places)
        yield from self._shared(place, rows, places)
        self._taken[rows] = len(self._names) - 1

    def _shared(self, place: str, rows: Indices, places: Indices) -> Iterator[Finding]:
        taken = self._taken[rows]
        if taken.any():
            other = self._names[int(taken[taken > 0][0])]
            yield from _at(place, rows, taken > 0, f"pair {{}} is in {other} too", places)
        questions = self._questions[rows]
        asked = np.where(questions >= 0, self._asked[np.maximum(questions, 0)], 0)
        if asked.any():
            other = self._names[int(asked[asked > 0][0])]
            problem = f"question {{}} has pairs in {other} too: what is trained on is tested on"
            yield from _at(place, questions, (asked > 0) & (taken == 0), problem, places)
        fresh = questions[(questions >= 0)]
        self._asked[fresh] = np.where(
            self._asked[fresh] > 0, self._asked[fresh], len(self._names) - 1
        )

    def uncovered(self) -> Iterator[Finding]:
        """Pairs that no split has."""
        free = self._taken == 0
        if free.any():
            row = int(np.flatnonzero(free)[0])
            place = self._place(BY_NAME["pair_index"])
            yield Finding(place, f"pair {row} is in no split", row, row, int(free.sum()))


def _at(
    place: str,
    values: Indices,
    bad: npt.NDArray[np.bool_],
    problem: str,
    places: Indices | None = None,
) -> Iterator[Finding]:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        value, row = int(values[at]), at if places is None else int(places[at])
        yield Finding(place, problem.format(value), row, value, int(bad.sum()))
