"""`loader.skip` and `loader.when`: positions left out for good, and where a sample comes."""

import copy
import json
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import AugmentedDataset, ChunkedDataLoader, PlanError, StateError, StreamLoader
from penstock.datamodules.sequence_loaders import TBPTTDataLoader
from penstock.loaders.partition import validation_loader
from penstock.loaders.sampler import ChunkedSampler
from penstock.order import BlockOrder, SequentialOrder, ShuffledOrder

KINDS = ("chunked", "block", "stream", "sequential stream", "held stream")


def first_rows(batch):
    return batch[:, 0]


def loader_of(kind, n, batch, chunk=None, rank=0, world=1, **options):
    options |= {"chunk_size": chunk, "rank": rank, "world_size": world}
    if kind == "chunked":
        return ChunkedDataLoader(torch.arange(n), batch, shuffle=True, **options)
    if kind == "block":
        return ChunkedDataLoader(torch.arange(n), batch, order=BlockOrder(n, 3, 5, 2, 2), **options)
    if kind == "held stream":  # samples of five rows each, gathered from blocks in memory
        options |= {"steps": 5, "collate": first_rows, "lanes": 2, "memory_budget": "20kB"}
        options |= {"block_samples": 5, "window_blocks": 2, "threads": 1, "drop_last": False}
        return StreamLoader(torch.arange(n + 4), batch, **options)
    geometry = {"block_samples": 5, "window_blocks": 2, "lanes": 2, "threads": 1}
    options = {"drop_last": False, "shuffle": kind == "stream"} | geometry | options
    if kind != "stream":
        del options["lanes"], options["block_samples"], options["window_blocks"]
    return StreamLoader(torch.arange(n), batch, **options)


def take(loader, batches):
    """The next batches, over as many chunks as it takes; each with the step it came in."""
    found = []
    while len(found) < batches:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == batches:
                loader.position.keep_position()  # not only a break: it continues here
                break
    return found


def order_of(loader, epoch, n, holes):
    positions = [p for p in range(n) if not any(e == epoch and a <= p < b for e, a, b in holes)]
    return loader.plan.order.at(epoch, np.array(positions, np.int64)).tolist()


holes_ = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(1, 30)).map(
        lambda hole: (hole[0], hole[1], hole[1] + hole[2])
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=20)
@given(
    st.sampled_from(KINDS),
    st.integers(30, 60),
    st.integers(2, 7),
    st.integers(1, 3),
    st.sampled_from([None, 3]),
    holes_,
)
def test_the_batches_of_all_ranks_are_the_kept_samples(kind, n, batch, world, chunk, holes):
    loaders = [loader_of(kind, n, batch, chunk, rank, world) for rank in range(world)]
    seen = {0: [], 1: []}
    for loader in loaders:
        with loader:
            for hole in [*holes, *holes]:  # as a script does at each requeue
                loader.skip(*hole)
            while (epoch := loader.position.start.epoch) < 2:
                promised, batches = loader.remaining, []
                assert len(loader) == promised
                for step in loader:
                    batches.append(step.tolist())
                assert len(batches) == promised
                seen[epoch] += [sample for each in batches for sample in each]
    for epoch in (0, 1):
        kept = order_of(loaders[0], epoch, n, holes)
        assert len(kept) - len(seen[epoch]) < (world if len(kept) < world else 1)
        assert set(seen[epoch]) <= set(kept) and len(set(seen[epoch])) == len(seen[epoch])


@settings(max_examples=20)
@given(
    st.sampled_from(KINDS),
    st.integers(40, 60),
    st.integers(2, 7),
    st.sampled_from([None, 4]),
    holes_,
    st.lists(st.integers(1, 4), min_size=3, max_size=20),
)
def test_a_chain_of_resumes_ends_where_an_uninterrupted_run_does(
    kind, n, batch, chunk, holes, runs
):
    whole = loader_of(kind, n, batch, chunk)
    for hole in holes:
        whole.skip(*hole)
    expected, state, got = take(whole, sum(runs)), None, []
    for count in runs:
        loader = loader_of(kind, n, batch, chunk)
        if len(got) % 2:  # before or after loading: both are the same
            loader.skip(*holes[0])
        if state is not None:
            loader.load_state_dict(state)
        for hole in holes:
            loader.skip(*hole)
        with loader:
            got += take(loader, count)
            state = json.loads(json.dumps(loader.state_dict()))
    with whole:
        assert got == expected and state == whole.state_dict()


@settings(max_examples=20)
@given(
    st.sampled_from(KINDS),
    st.integers(40, 60),
    st.tuples(st.integers(2, 7), st.integers(1, 2)),
    st.tuples(st.integers(2, 7), st.integers(1, 2)),
    st.integers(0, 5),
    holes_,
)
def test_when_is_the_inverse_also_after_a_resume_with_another_global_batch(
    kind, n, before, after, steps, holes
):
    first = loader_of(kind, n, before[0], 2, 0, before[1])
    for hole in holes:
        first.skip(*hole)
    with first:
        take(first, steps)
        state = first.state_dict()
    loaders = [loader_of(kind, n, after[0], 2, rank, after[1]) for rank in range(after[1])]
    for loader in loaders:
        loader.load_state_dict(state)
    here = loaders[0].position.start
    with loaders[0] as loader:
        delivered = [batch.tolist() for batch in loader]
    first_step = loader.plan.steps.of(here.epoch).step_of(here.position)
    for step, batch in enumerate(delivered, start=first_step):
        assert loaders[0].samples_at(step, here.epoch).tolist() == batch
        positions = loaders[0].positions_at(step, here.epoch)
        for row, sample in enumerate(batch):
            (found,) = loaders[0].when(sample, epochs=[here.epoch])
            assert (found.step, found.rank, found.row) == (step, 0, row)
            assert found.position == positions[row]
    if after[1] == 2 and len(delivered):
        for row, sample in enumerate(loaders[1].samples_at(first_step, here.epoch).tolist()):
            (found,) = loaders[0].when(sample, epochs=[here.epoch])
            assert (found.step, found.rank, found.row) == (first_step, 1, row)


# -- while training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [None, 10])
def test_a_skip_inside_an_iteration_takes_effect_at_once(kind, chunk):
    with loader_of(kind, 100, 5, chunk) as loader:
        got = []
        for batch in loader:
            got.append(batch.tolist())
            if len(got) == 3:
                assert loader.positions_at(4).min() >= 20 or kind == "block"
                loader.skip(0, 0, 90)  # what was delivered is not skipped
                assert loader.state_dict()["skipped"] == [[0, 15, 90]]
        kept = [*range(15), *range(90, 100)]
        order = loader.plan.order.at(0, np.array(kept)).tolist()
        assert len(got) == 5 and sorted(chain(*got)) == sorted(order)
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_an_epoch_can_be_skipped_inside_an_iteration(kind):
    with loader_of(kind, 100, 5) as loader:
        for count, _ in enumerate(loader, start=1):
            if count == 2:
                loader.skip(0, 0, 10**9)
        assert count == 2
        assert len(list(loader)) == 20  # the next epoch
        assert loader.state_dict()["epoch"] == 2


def test_all_executors_skip_alike():
    expected = None
    for options in ({}, {"executor": "threads"}, {"num_workers": 1}):
        with loader_of("chunked", 60, 4, 5, **options) as loader:
            got = []
            for batch in loader:
                got.append(batch.tolist())
                if len(got) == 2:
                    loader.skip(0, 12, 31)
            got += take(loader, 4)
        expected = expected or got
        assert got == expected


def test_a_batch_that_fails_can_be_skipped():
    class Bad(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 9:
                raise ValueError("cannot read 9")
            return index

    for skipped, rest in (((8, 12), [12, 16]), ((16, 20), [12])):
        loader = ChunkedDataLoader(Bad(), 4)
        batches = iter(loader)
        got = [next(batches)[0].item() for _ in range(2)]
        with pytest.raises(ValueError, match="cannot read 9"):
            next(batches)
        loader.skip(0, *skipped)
        got += [batch[0].item() for batch in batches]
        assert got == [0, 4, *rest]


def test_pieces_of_a_batch_are_delivered_before_a_skip_takes_effect():
    data = [(torch.arange(8.0)[:, None], torch.tensor(i), {}) for i in range(12)]
    loader = TBPTTDataLoader(data, 2, chunk_len=4, overlap_len=1, shuffle=False)
    got = []
    for _, y, _ in loader:
        got.append(y.tolist())
        if len(got) == 1:  # the first of two pieces
            loader.skip(0, 0, 6)
    assert got == [[0, 1], [0, 1], [6, 7], [6, 7], [8, 9], [8, 9], [10, 11], [10, 11]]


# -- refusals


def test_refusals_of_skip_and_when():
    loader = loader_of("chunked", 20, 4)
    with pytest.raises(PlanError, match="from start to stop, got 9 to 3"):
        loader.skip(0, 9, 3)
    with pytest.raises(PlanError, match="epoch must be at least 0"):
        loader.skip(-1, 0, 3)
    with pytest.raises(PlanError, match=r"sample must be in \[0, 20\), got 20"):
        loader.when(20)
    with pytest.raises(PlanError, match="delivers every sample, every time"):
        ChunkedDataLoader(torch.arange(9), 3, evaluation=True).skip(0, 0, 3)
    loader.skip(0, 4, 8)
    state = loader.state_dict()
    with pytest.raises(StateError, match="which a ChunkedSampler cannot do"):
        ChunkedSampler(20, 4, seed=42).load_state_dict(state)
    for wrong in ([[0, 8, 4]], [[0, 4]], {"0": 1}, [[0, 1.5, 3]], 7):
        with pytest.raises(StateError, match="must be a list of"):
            loader.load_state_dict(state | {"skipped": wrong})
    assert loader.state_dict() == state


def test_a_state_without_skips_is_as_before_and_a_copy_skips_too():
    loader = loader_of("chunked", 20, 4)
    assert "skipped" not in loader.state_dict()
    loader.skip(1, 3, 3)
    assert "skipped" not in loader.state_dict()
    loader.skip(0, 4, 8)
    assert [b.tolist() for b in copy.copy(loader)] == [b.tolist() for b in loader]
    subset = validation_loader(torch.arange(50), 5, 2)
    chosen = set(torch.cat(list(subset)).tolist())
    assert {sample for sample in range(50) if subset.when(sample)} == chosen


# -- passes


class Twice(SequentialOrder):
    """Every sample twice an epoch."""

    kind = "twice"

    def __init__(self, samples, seed=0):
        super().__init__(2 * samples, seed)
        self.samples = samples

    def at(self, epoch, positions):
        return super().at(epoch, positions) // 2

    def passes(self, epoch, positions):
        return 2 * epoch + positions % 2

    def identity(self):
        return super().identity() | {"samples": self.samples, "places": self.size}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("options", [{}, {"executor": "threads"}, {"num_workers": 1}])
def test_a_sample_that_comes_twice_is_augmented_by_its_pass(options, batched):
    class One(torch.utils.data.Dataset):
        def __init__(self, augmented):
            self.augmented = augmented

        def __len__(self):
            return len(self.augmented)

        def __getitem__(self, index):
            return self.augmented[index]

    noise = {"gaussian_noise_params": {"std": 1.0, "p": 1.0}}
    augmented = AugmentedDataset(torch.zeros(6, 1, 4, 4), noise, seed=5)
    data = augmented if batched else One(augmented)
    once = ChunkedDataLoader(augmented, 3, order=ShuffledOrder(6, 1))
    by_pass = {}
    for epoch in range(2):  # one pass an epoch: the values of an ordinary order
        for step, batch in enumerate(once):
            for sample, row in zip(once.samples_at(step, epoch).tolist(), batch, strict=True):
                by_pass[epoch, sample] = row
    with ChunkedDataLoader(data, 4, order=Twice(6), **options) as loader:
        rows = torch.cat(list(loader))
    for position, row in enumerate(rows):
        assert torch.equal(row, by_pass[position % 2, position // 2])
