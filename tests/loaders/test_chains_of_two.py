"""Every verb and every chain of two: what is delivered is what numpy enumerates.

Each chain is streamed, stopped and resumed in the middle, and read on other numbers of ranks with
other numbers of threads; some also in worker processes. `REFUSED` lists the chains that have no
meaning. `make test` reads every chain on one other number of ranks from the beginning and on one
from the middle, every verb on all of them; `make proof` reads every chain on all of them.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from penstock import (
    ChunkedDataLoader,
    PlanError,
    SourceError,
    StreamLoader,
    concatenate,
    zip_sources,
)
from penstock.sources.base import composed
from tests.loaders.test_stream_verbs import Chunked

ROWS = np.arange(40 * 6 * 7, dtype="i4").reshape(40, 6, 7)
SEAM = 17
FEW_ROWS, FEW_SEAM = ROWS[:22], 9  # for patches, which are several of each row
SIZE, STRIDE = (4, 5), (2, 1)
SEED = 5

# A model is a list of runs, a run a list of samples, a sample the arrays of its fields.


def row_runs(rows, seam):
    return [[{"": row} for row in rows[:seam]], [{"": row} for row in rows[seam:]]]


def flat(runs):
    return [sample for run in runs for sample in run]


def select(source, runs):
    keep = np.flatnonzero(np.arange(len(source)) % 7 != 3)
    chosen, found, number = set(keep.tolist()), [], 0
    for run in runs:
        part = []
        for sample in run:
            if number in chosen:
                part.append(sample)
            elif part:
                found.append(part)
                part = []
            number += 1
        found += [part] if part else []
    return source.select(keep), found


def stepped(offsets, stride):
    def apply(source, runs):
        found = []
        for run in runs:
            anchors = range(0, len(run) - max(offsets), stride)
            found.append(
                [
                    {name: np.stack([run[a + each][name] for each in offsets]) for name in run[0]}
                    for a in anchors
                ]
            )
        return source.windows(offsets=offsets, stride=stride), [run for run in found if run]

    return apply


def crops(sample, stride):
    tiles = [
        range(0, extent - size + 1, step)
        for extent, size, step in zip(ROWS.shape[1:], SIZE, stride, strict=True)
    ]
    for y, x in product(*tiles):
        yield {name: a[..., y : y + SIZE[0], x : x + SIZE[1]] for name, a in sample.items()}


def patches(source, runs):
    found = [[crop] for sample in flat(runs) for crop in crops(sample, STRIDE)]
    return source.patches(SIZE, stride=STRIDE), found


def random_patches(source, runs):
    return again("random patches", source.patches(SIZE, random=True), None, runs)


def split(source, runs):
    parts = source.split({"train": 0.6, "val": 0.4}, by="time")
    whole = everything(source)
    train, val = (everything(parts[name]) for name in ("train", "val"))
    assert train and val and bag(train) + bag(val) == bag(whole)
    found, left = [], len(train)
    for run in runs:
        found.append(run[:left])
        left = max(0, left - len(run))
    return parts["train"], [run for run in found if run]


def join(source, runs):
    return concatenate([source, source]), [*runs, *runs]


def pair(source, runs):
    names = sorted(source.fields)
    zipped = zip_sources({"a": source, "b": source})
    return zipped, [[dict.fromkeys("ab", s[names[0]]) for s in run] for run in runs]


VERBS = {
    "select": select,
    "windows": stepped([0, 1, 2], 1),
    "offsets": stepped([0, 3], 2),
    "patches": patches,
    "random patches": random_patches,
    "split": split,
    "concatenate": join,
    "zip_sources": pair,
}
TILES = ("patches", "random patches")
REFUSED = {  # each with the sentence that says what to do instead
    **dict.fromkeys(product(TILES, TILES), "pass the smaller sizes at once"),
    ("zip_sources", "zip_sources"): "have a field 'a': rename one",
    **{(first, "split"): "split first, then make patches of each part" for first in TILES},
}


def everything(source, epoch=0):
    source = source.drawn(SEED, epoch)
    out = {name: np.empty((len(source), *f.shape), f.dtype) for name, f in source.fields.items()}
    source.read(0, len(source), out)
    return [{name: rows[i] for name, rows in out.items()} for i in range(len(source))]


def bag(samples):
    return Counter(
        tuple((n, a.shape, np.ascontiguousarray(a).tobytes()) for n, a in sorted(s.items()))
        for s in samples
    )


def rows_of(batch, count):
    batch = batch if isinstance(batch, dict) else {"": batch}
    arrays = {name: rows.numpy() for name, rows in batch.items()}
    return [{name: rows[i] for name, rows in arrays.items()} for i in range(count)]


def streamed(source, world=1, *, state=None, steps=None, threads=2):
    """Return samples by number, of what all ranks get, and the state of rank 0."""
    found, states = [], []
    for rank in range(world):
        options = {"rank": rank, "world_size": world, "threads": threads, "lanes": 1}
        with StreamLoader(
            source, 3, block_samples=4, window_blocks=2, seed=SEED, drop_last=False, **options
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            first, plan = len(loader) - loader.remaining, loader.plan
            positions = [loader.positions_at(step, 0) for step in range(first, len(loader))]
            numbers = plan.order.at(0, np.concatenate(positions))  # of all steps at once
            numbers = np.split(numbers, np.cumsum([len(each) for each in positions])[:-1])
            for step, batch in enumerate(loader):
                here = numbers[step].tolist()
                found += zip(here, rows_of(batch, len(here)), strict=True)
                if steps is not None and step + 1 == steps:
                    break
            states.append(loader.state_dict())
    return found, states[0]


TOPOLOGIES = [(1, 1), (2, 2), (3, 1)]  # ranks, and threads of each


def check(source, expected, fresh=TOPOLOGIES, resumed=TOPOLOGIES):
    """Compare what is delivered, from the beginning and from the middle, with an enumeration."""
    whole, _ = streamed(source)
    assert sorted(number for number, _ in whole) == list(range(len(source)))
    assert bag(sample for _, sample in whole) == bag(expected)
    by_number = dict(whole)
    begun, state = streamed(source, steps=1 if len(source) <= 9 else 2)
    for world, threads in resumed:
        rest, _ = streamed(source, world, state=state, threads=threads)
        delivered = [n for n, _ in [*begun, *rest]]
        assert len(set(delivered)) == len(delivered)
        assert len(source) - len(delivered) < world  # every rank has as many steps: a log line
        same(rest, by_number)
    for world, threads in fresh:
        same(streamed(source, world, threads=threads)[0], by_number)


def same(delivered, by_number):
    for number, sample in delivered:
        assert bag([sample]) == bag([by_number[number]])


def base(*verbs):
    rows, seam = (FEW_ROWS, FEW_SEAM) if set(verbs) & set(TILES) else (ROWS, SEAM)
    return composed(Chunked(rows, 5, [seam])), row_runs(rows, seam)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_delivers_its_enumeration(verb):
    source, runs = VERBS[verb](*base(verb))
    check(source, flat(runs))


ORDERED = [*product(VERBS, VERBS)]


@pytest.mark.parametrize(("first", "second"), ORDERED)
def test_each_chain_of_two_delivers_its_enumeration(first, second):
    if (first, second) in REFUSED:
        with pytest.raises((PlanError, SourceError), match=REFUSED[first, second]):
            VERBS[second](*VERBS[first](*base()))
        return
    turn = [*VERBS].index(first) + [*VERBS].index(second)  # a diagonal: each verb has all of them
    fresh, resumed = (TOPOLOGIES[(turn + more) % 3] for more in (0, 1))
    check(*chain(first, second), [fresh], [resumed])


@pytest.mark.proof
@pytest.mark.parametrize(("first", "second"), [each for each in ORDERED if each not in REFUSED])
def test_each_chain_of_two_delivers_its_enumeration_on_any_ranks(first, second):
    check(*chain(first, second))


def chain(first, second):
    """The source of a chain, and the samples that it must have."""
    steps = second in ("windows", "offsets")
    if first in TILES and steps:  # the same tile over time
        source, _ = VERBS[second](*VERBS[first](*base(first)))
        source, runs = again(first, source, *VERBS[second](*base(first)))
    elif first == "random patches" and second == "concatenate":  # each part has its own draws
        source, _ = join(*random_patches(*base(first)))
        source, runs = again(first, source, None, 2 * base(first)[1])
    else:
        source, runs = VERBS[first](*base(first, second))
        if first == "patches":  # in the order of their numbers, which follows storage chunks
            assert bag(everything(source)) == bag(flat(runs))
            runs = [[sample] for sample in everything(source)]
        source, runs = VERBS[second](source, runs)
    return source, flat(runs)


CHAINS = [  # each verb once, of those with most to compute
    ("patches", "windows"),
    ("select", "offsets"),
    ("random patches", "concatenate"),
    ("zip_sources", "split"),
]


@pytest.mark.parametrize(("first", "second"), CHAINS)
def test_worker_processes_deliver_the_same_also_from_the_middle(first, second):
    source, _ = chain(first, second)
    right = [everything(source, epoch) for epoch in range(2)]

    def deliver(loader, epoch, steps=None):
        before = len(loader) - loader.remaining
        for step, batch in enumerate(loader, before):
            numbers = loader.samples_at(step, epoch).tolist()
            for number, sample in zip(numbers, rows_of(batch, len(numbers)), strict=True):
                assert bag([sample]) == bag([right[epoch][number]])
                yield number
            if step + 1 == steps:
                return

    options = {"seed": SEED, "shuffle": True, "num_workers": 2}
    with ChunkedDataLoader(source, 3, **options) as loader:
        assert sorted(deliver(loader, 0)) == list(range(len(source)))
        begun = list(deliver(loader, 1, steps=2))
        state = loader.state_dict()
    rest = []
    for rank in range(2):
        with ChunkedDataLoader(source, 3, rank=rank, world_size=2, **options) as loader:
            loader.load_state_dict(state)
            rest += deliver(loader, 1)
    assert len(begun) == 6 and sorted([*begun, *rest]) == list(range(len(source)))


def again(verb, source, parent, runs):
    """Return a source, and its patches of ``runs``; random ones must be among those possible."""
    if verb == "patches":
        return source, patches(parent, runs)[1]
    drawn = everything(source)
    possible = bag([crop for sample in flat(runs) for crop in crops(sample, (1, 1))])
    assert bag(drawn).keys() <= possible.keys()
    tiles = [(e // n) for e, n in zip(ROWS.shape[1:], SIZE, strict=True)]
    assert len(drawn) == len(flat(runs)) * np.prod(tiles)
    return source, [drawn]
