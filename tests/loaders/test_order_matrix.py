"""Every kind of order with every way to ask about it, to change it and to resume it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from penstock import BlockOrder, ChunkedDataLoader, Mixture, StreamLoader, balanced, pack
from penstock.datasets.mixture import prioritized
from penstock.errors import PlanError, StateError

N, BATCH = 120, 12
LENGTHS = np.random.default_rng(0).integers(1, 20, N)
WEIGHTS = np.random.default_rng(1).gamma(0.7, size=N)


def rows(n=N, start=0):
    return torch.arange(start, start + n)


def mixture(**options):
    members = {"web": rows(70), "code": rows(30, 70), "rare": rows(20, 100)}
    return Mixture(members, weights=[0.6, 0.3, 0.1], until=110, **options)


def stages():
    return mixture().then(40, [1, 1, 1]).then(90, [0, 1, 2])


def nested():
    inner = Mixture({"a": rows(40), "b": rows(30, 40)}, weights=[1, 2]).then(20, [1, 1])
    return Mixture({"inner": inner, "c": rows(50, 70)}, weights=[2, 1], until=100)


def documents(split=True):
    texts = [np.arange(i * 100, i * 100 + n) for i, n in enumerate(LENGTHS)]
    return pack(texts, 20, split=split)


def packed_mixture():
    other = pack([np.arange(50) for _ in range(9)], 20)
    return Mixture({"a": documents(), "b": other}, weights=[3, 1], until=80)


CLASSES = np.arange(N) ** 2 % 7
PARTS = {"hard": [0, 30], "rest": None}

CHUNKED = {
    "shuffled": lambda **o: ChunkedDataLoader(rows(), shuffle=True, **o),
    "sequential": lambda **o: ChunkedDataLoader(rows(), shuffle=False, **o),
    "blocks": lambda **o: ChunkedDataLoader(rows(), order=BlockOrder(N, 42, 5, 3, 4), **o),
    "mixture": lambda **o: ChunkedDataLoader(mixture(), **o),
    "stages": lambda **o: ChunkedDataLoader(stages(), **o),
    "nested": lambda **o: ChunkedDataLoader(nested(), **o),
    "balanced": lambda **o: ChunkedDataLoader(balanced(rows(), CLASSES, until=100), **o),
    "priority": lambda **o: ChunkedDataLoader(prioritized(rows(), PARTS, [1, 1]), **o),
    "weights": lambda **o: ChunkedDataLoader(rows(), weights=WEIGHTS, epoch_samples=100, **o),
    "part of a pass": lambda **o: ChunkedDataLoader(rows(), epoch_samples=50, shuffle=True, **o),
    "tokens": lambda **o: ChunkedDataLoader(
        rows(), lengths=LENGTHS, max_tokens=60, window=50, group=4, **o
    ),
    "tokens in lanes": lambda **o: ChunkedDataLoader(
        rows(), order=BlockOrder(N, 42, 5, 3, 4), lengths=LENGTHS, max_tokens=60, window=50, **o
    ),
    "lengths": lambda **o: ChunkedDataLoader(rows(), lengths=LENGTHS, window=50, group=4, **o),
    "packed": lambda **o: ChunkedDataLoader(documents(), shuffle=True, **o),
    "packed whole": lambda **o: ChunkedDataLoader(documents(split=False), shuffle=True, **o),
    "packed mixture": lambda **o: ChunkedDataLoader(packed_mixture(), **o),
}


def streamed(source, **own):
    geometry = {"block_samples": 7, "window_blocks": 3, "lanes": 4, "memory_budget": "64MB"}
    return lambda **o: StreamLoader(source(), **geometry, **own, **o)


STREAMS = {
    "blocks": streamed(rows),
    "sequential": streamed(rows, shuffle=False),
    "mixture": streamed(mixture),
    "mixture in order": streamed(mixture, shuffle=False),
    "stages": streamed(stages),
    "nested": streamed(nested),
    "nested in order": streamed(nested, shuffle=False),
    "balanced": streamed(lambda: balanced(rows(), CLASSES, until=100)),
    "priority": streamed(lambda: prioritized(rows(), PARTS, [1, 1])),
    "weights": streamed(rows, weights=WEIGHTS, epoch_samples=100),
    "part of a pass": streamed(rows, epoch_samples=50),
    "packed": streamed(documents),
    "packed whole": streamed(lambda: documents(split=False)),
    "packed mixture": streamed(packed_mixture),
}
ALL = {f"chunked {name}": make for name, make in CHUNKED.items()}
ALL |= {f"stream {name}": make for name, make in STREAMS.items()}
WEIGHTED = {name for name in ALL if name.endswith("weights")}


def opened(name, world=1, rank=0):
    ranks = {"rank": rank, "world_size": world, "drop_last": False, "chunk_size": 4}
    batch = 4 if name == "chunked lengths" else BATCH // world  # there a batch is cut by its size
    return ALL[name](batch_size=batch, **ranks)


def deliver(name, world, *, steps=None, state=None, skip=(), epoch=0):
    """Positions, by step, of what all ranks get up to the end of an epoch; and the state."""
    got, after = {}, None
    for rank in range(world):
        with opened(name, world, rank) as loader:
            for each in skip:
                loader.skip(*each)
            if state is not None:
                loader.load_state_dict(state)
            order, done = loader.position.plan.order, 0
            while loader.position.cursor.epoch == epoch and done != steps:
                number = loader.position.plan.steps.of(epoch).step_of(
                    loader.position.cursor.position,
                    loader.position._origin_of(loader.position.plan, epoch),
                )
                for batch in loader:
                    positions = loader.positions_at(number, epoch)
                    samples = loader.samples_at(number, epoch)
                    assert np.array_equal(samples, order.at(epoch, positions))
                    values = batch if isinstance(batch, torch.Tensor) else None
                    if values is not None and "balanced" not in name and "priority" not in name:
                        assert values.tolist() == samples.tolist()
                    # `when` is the inverse: of the first row, or of the last one
                    row = (number + rank) % 2 * (len(samples) - 1)
                    found = loader.when(int(samples[row]), [epoch])
                    at = {(o.position, o.step, o.rank, o.row) for o in found}
                    assert (int(positions[row]), number, rank, row) in at
                    got.setdefault(number, []).append(positions)
                    number, done = number + 1, done + 1
                    if done == steps:
                        break
            mine = json.loads(json.dumps(loader.state_dict()))
            assert after is None or mine == after  # all ranks have the same state
            after = mine
    return [np.concatenate(got[number]) for number in sorted(got)], after


def size_of(name):
    with opened(name) as loader:
        return loader.position.plan.order.size


# mixtures from storage are the slowest here: `make test` has each of them in one of the two tests
NOT_SKIPPED = {f"stream {n}" for n in ("priority", "nested", "packed mixture", "nested in order")}
NOT_CHAINED = {f"stream {n}" for n in ("balanced", "stages", "mixture", "mixture in order")}


def but_in_proofs(names):
    return [pytest.param(n, marks=[pytest.mark.proof] if n in names else []) for n in ALL]


@pytest.mark.parametrize("name", but_in_proofs(NOT_SKIPPED))
def test_skips_resumes_and_ranks_deliver_the_rest_exactly(name):
    whole, _ = deliver(name, 1)
    every = np.concatenate(whole)
    assert sorted(every.tolist()) == list(range(size_of(name)))
    # the positions of a step that is still to come, asked for by another number of ranks
    with opened(name) as loader:
        positions = loader.positions_at(2, 0)
    skip = (0, int(positions.min()), int(positions.max()) + 1)
    first, state = deliver(name, 1, steps=1, skip=[skip])
    assert state["skipped"] == [list(skip)]
    rest, last = deliver(name, 2, state=state, skip=[skip])  # a script repeats its skip
    got = np.concatenate([*first, *rest])
    kept = set(range(size_of(name))) - set(range(*skip[1:]))
    assert len(got) == len(set(got.tolist())) and set(got.tolist()) <= kept
    assert len(kept) - len(got) < 2  # fewer than there are ranks: only if they are too few
    again, end = deliver(name, 1, state=state)
    assert set(np.concatenate([*first, *again]).tolist()) == kept
    assert (end["epoch"], end["position"]) == (last["epoch"], last["position"]) == (1, 0)


@pytest.mark.parametrize("name", but_in_proofs(NOT_CHAINED))
def test_a_chain_of_loads_and_saves_ends_where_an_uninterrupted_run_does(name):
    whole, last = deliver(name, 2)
    got, state = [], None
    while state is None or state["epoch"] == 0:
        part, state = deliver(name, 2, steps=2, state=state)
        got += part
    assert [each.tolist() for each in got] == [each.tolist() for each in whole]
    assert state == last


@pytest.mark.parametrize("name", ALL)
def test_weights_are_set_where_there_are_weights_and_refused_elsewhere(name):
    with opened(name) as loader:
        next(iter(loader))
        if name not in WEIGHTED:
            with pytest.raises(PlanError, match="this loader has no weights: pass weights="):
                loader.set_weights(np.ones(N))
            return
        before = loader.samples_at(1).tolist()
        loader.set_weights(np.eye(N)[7])
        assert loader.samples_at(1).tolist() == before  # this epoch stays as it is
        state = loader.state_dict()
        assert (loader.samples_at(1, epoch=1) == 7).all()
        while loader.position.cursor.epoch == 0:
            for _ in loader:
                pass
        batch = next(iter(loader))
        assert (batch == 7).all() and len(loader.when(7, [1])) == 100
    with opened(name) as other, pytest.raises(ValueError, match="load_weights"):
        other.load_state_dict(state)


@pytest.mark.parametrize("name", sorted(WEIGHTED))
def test_weights_that_changed_are_found_beside_a_checkpoint(name, tmp_path):
    with opened(name) as loader:
        next(iter(loader))
        loader.set_weights(WEIGHTS[::-1].copy())
        loader.save_weights(tmp_path)
        state = loader.state_dict()
        expected = [loader.samples_at(step, epoch=1).tolist() for step in range(4)]
    with opened(name) as other:
        other.load_weights(tmp_path)
        other.load_state_dict(state)
        assert [other.samples_at(step, epoch=1).tolist() for step in range(4)] == expected
        assert next(iter(other)).tolist() == other.samples_at(1, epoch=0).tolist()


@pytest.mark.parametrize("name", ["mixture", "stages", "nested"])
def test_an_evaluated_mixture_is_the_same_from_storage_and_by_sample(name):
    data = {"mixture": mixture, "stages": stages, "nested": nested}[name]()
    with StreamLoader(data, 9, evaluation=True, block_samples=4) as stream:
        first, second = ([batch.tolist() for batch in stream] for _ in range(2))
    expected = [batch.tolist() for batch in ChunkedDataLoader(data, 9, evaluation=True)]
    assert first == second == expected
    assert sum(map(len, expected)) == data.until


def test_members_of_nested_mixtures_have_their_shares_and_stages_from_storage():
    inner = Mixture({"a": rows(400), "b": rows(300, 400)}, weights=[1, 2])
    data = Mixture({"inner": inner, "c": rows(500, 700)}, weights=[2, 1], until=900)
    data.then(450, [4, 1])
    with StreamLoader(data, 9, block_samples=10, window_blocks=4, chunk_size=50) as loader:
        edges = [0, 400, 700, 1200]
        for batch in loader:  # inner has 2 of 3, and of these a has 1 of 3
            assert np.histogram(batch, edges)[0].tolist() == [2, 4, 3]
        inner.then(360, [1, 0])  # 300 of the first 450, and 60 of the next 75
        counts = sum(np.histogram(batch, edges)[0] for batch in loader)
        assert abs(counts[2] - 450 / 5) <= 9 and abs(counts[1] - 60 * 2 / 3) <= 9
        inner.then(360, [0, 1])
        with pytest.raises(PlanError, match="delivered already"):
            next(iter(loader))
    by_sample = ChunkedDataLoader(data, 9)
    inner.then(10**6, [1, 1])
    with pytest.raises(PlanError, match="inside another one"):
        next(iter(by_sample))


def test_batches_by_length_are_resumed_with_the_size_that_they_were_cut_by():
    with opened("chunked lengths") as loader:
        state = loader.state_dict()
    with (
        CHUNKED["lengths"](batch_size=5) as other,
        pytest.raises(StateError, match=r"batches of 4 samples.*batches of 5.*same batch_size"),
    ):
        other.load_state_dict(state)
