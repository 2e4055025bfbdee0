"""The laws of every loader, on the chunked one, without workers: exact, for any sizes."""

import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock import BlockOrder, ChunkedDataLoader, SequentialOrder, ShuffledOrder
from penstock.testing import assert_covers, assert_resumes_everywhere, assert_topology_free

seeds = st.integers(0, 2**64 - 1)
small = st.integers(1, 200)
batch_sizes = st.integers(1, 20)
chunks = st.one_of(st.none(), st.integers(1, 9))
kinds = st.sampled_from(["sequential", "shuffled", "block"])


def possible(n, batch, world, drop):
    return n >= batch * world if drop else n >= world and not (batch == 1 and n % world)


def order_of(kind, n, seed):
    if kind == "block":
        return BlockOrder(n, seed, block=7, window=3, lanes=2)
    return (SequentialOrder if kind == "sequential" else ShuffledOrder)(n, seed)


@settings(max_examples=20)
@given(small, batch_sizes, st.integers(1, 6), chunks, st.booleans(), kinds, seeds)
def test_each_sample_exactly_once_an_epoch_over_all_ranks(n, batch, world, chunk, drop, kind, seed):
    assume(possible(n, batch, world, drop))

    def make(rank, world_size):
        ranks = {"rank": rank, "world_size": world_size}
        order = order_of(kind, n, seed)
        return ChunkedDataLoader(
            torch.arange(n), batch, chunk, order=order, drop_last=drop, **ranks
        )

    dropped = n % (batch * world) if drop else 0
    assert_covers(make, n, world_size=world, dropped=dropped)


@settings(max_examples=6)
@given(st.integers(1, 30), st.integers(1, 9), chunks, st.booleans(), kinds, seeds)
def test_resuming_after_any_batch_gives_exactly_the_rest(n, batch, chunk, drop, kind, seed):
    assume(possible(n, batch, 1, drop))

    def make():
        order = order_of(kind, n, seed)
        return ChunkedDataLoader(torch.arange(n), batch, chunk, order=order, drop_last=drop)

    assert_resumes_everywhere(make)


@settings(max_examples=15)
@given(st.integers(13, 100), st.sampled_from([12, 24]), chunks, st.booleans(), kinds, seeds)
def test_the_global_batches_are_the_same_for_every_split(n, whole, chunk, drop, kind, seed):
    assume(n >= whole)

    def make(rank, world_size, batch_size):
        ranks = {"rank": rank, "world_size": world_size}
        order = order_of(kind, n, seed)
        options = {"order": order, "drop_last": drop, **ranks}
        return ChunkedDataLoader(torch.arange(n), batch_size, chunk, **options)

    assert_topology_free(make, n, global_batch=whole, worlds=[1, 2, 3, 4, 6])


@settings(max_examples=20)
@given(small, st.booleans(), seeds, kinds, st.data())
def test_resuming_on_any_sequence_of_topologies_delivers_exactly_the_rest(
    n, drop, seed, kind, data
):
    state, seen = None, []
    for _ in range(40):
        batch, world = data.draw(st.integers(2, 9)), data.draw(st.integers(1, 4))
        chunk = data.draw(st.sampled_from([None, 1, 3]))
        stop = data.draw(st.integers(1, 5))
        if not possible(n, batch, world, drop):
            continue
        loaders = [
            ChunkedDataLoader(
                torch.arange(n),
                batch,
                chunk,
                order=order_of(kind, n, seed),
                drop_last=drop,
                rank=rank,
                world_size=world,
            )
            for rank in range(world)
        ]
        rest = n if state is None else n - state["position"]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        if loaders[0].state_dict()["epoch"]:
            break
        promised = loaders[0].remaining
        for number, parts in enumerate(zip(*loaders, strict=True), 1):
            seen += torch.cat(parts).tolist()
            if number == min(stop, promised):
                break
        state, *others = (json.loads(json.dumps(loader.state_dict())) for loader in loaders)
        assert all(other == state for other in others)  # ranks agree where they are
        if state["epoch"]:
            break
    assert len(seen) == len(set(seen))
    if state is not None and state["epoch"]:
        assert n - len(seen) < (batch * world if drop else 1)
    elif state is not None and loaders[0].state_dict()["epoch"]:  # given up: too few for the ranks
        assert rest < (batch * world if drop else world)


@given(small, batch_sizes, st.integers(1, 9), seeds)
def test_chunks_of_an_epoch_are_disjoint_and_cover(n, batch, chunk, seed):
    loader = ChunkedDataLoader(torch.arange(n), batch, chunk, seed=seed)
    epochs = []
    for epoch in range(2):
        parts = []
        for number in range(loader.total_chunks):
            assert (loader.current_chunk, loader.state_dict()["epoch"]) == (number, epoch)
            promised = len(loader)
            parts.append(torch.cat(list(loader)).tolist())
            short = number == loader.total_chunks - 1
            assert len(parts[-1]) == (n - batch * chunk * number if short else batch * chunk)
            assert promised == -(-len(parts[-1]) // batch)
        epochs.append([i for part in parts for i in part])
        assert sorted(epochs[-1]) == list(range(n))
    if n > 30:
        assert epochs[0] != epochs[1]  # the next epoch has another order


def test_a_chunk_is_a_shuffle_of_the_whole_dataset_not_of_neighbours():
    loader = ChunkedDataLoader(torch.arange(10_000), 10, chunk_size=20)
    for _ in range(loader.total_chunks):
        chunk = torch.cat(list(loader)).numpy()
        cells = np.bincount(chunk * 10 // 10_000, minlength=10)  # 200 samples over ten parts
        assert cells.min() > 3 and cells.max() < 45


@pytest.mark.parametrize("chunk", [None, 3])
@given(st.integers(1, 100), st.integers(2, 9), st.integers(1, 4))
def test_samples_at_tells_every_batch_before_it_is_read(chunk, n, batch, world):
    assume(n >= world)
    for rank in range(world):
        ranks = {"rank": rank, "world_size": world}
        loader = ChunkedDataLoader(torch.arange(n), batch, chunk, shuffle=True, **ranks)
        steps = loader.position.plan.steps.count
        told = [
            loader.samples_at(step, epoch).tolist() for epoch in (0, 1) for step in range(steps)
        ]
        came = []
        while len(came) < len(told):
            came += [part.tolist() for part in loader]
        assert came == told
        assert loader.samples_at(0).tolist() == loader.samples_at(0, epoch=2).tolist()
        assert loader.samples_at(0).dtype == np.int64


@given(st.integers(2, 12), st.integers(1, 60), st.integers(2, 9))
def test_evaluation_scores_every_sample_once_on_equally_many_batches_without_padding(
    world, n, batch
):
    assume(n >= world)

    def make(rank, world_size):
        ranks = {"rank": rank, "world_size": world_size}
        return ChunkedDataLoader(torch.arange(n), batch, evaluation=True, drop_last=True, **ranks)

    assert_covers(make, n, world_size=world, epochs=2)


def test_two_loaders_built_alike_deliver_alike_and_other_seeds_do_not():
    one, two, other = (
        [batch.tolist() for batch in ChunkedDataLoader(torch.arange(99), 4, 5, seed=seed)]
        for seed in (7, 7, 8)
    )
    assert one == two != other


def test_a_trillion_samples_cost_nothing():
    class Trillion(torch.utils.data.Dataset):
        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            return index

    loader = ChunkedDataLoader(Trillion(), 4, chunk_size=1000)
    loader.seek(3, loader.total_chunks * 1000 // 2)
    state = loader.state_dict()
    assert state["position"] == 5 * 10**11
    first = next(iter(loader)).tolist()
    assert first == loader.samples_at(125_000_000_000, epoch=3).tolist()
    assert 0 <= min(first) and max(first) < 10**12
