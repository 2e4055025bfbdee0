"""The laws hold on good loaders, and each fails on a loader that breaks it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock import ChunkedDataLoader
from penstock.testing import (
    assert_covers,
    assert_resumes_everywhere,
    assert_topology_free,
    same_batch,
)


def make(rank=0, world_size=1, batch_size=3, *, kind=ChunkedDataLoader, samples=25, **options):
    ranks = {"rank": rank, "world_size": world_size}
    options = {"chunk_size": 2, **ranks, **options}
    return kind(torch.arange(samples), batch_size, **options)


# -- loaders, each broken in one way


class Forgetful(ChunkedDataLoader):
    """Resumes at the beginning of the epoch."""

    def load_state_dict(self, state, **options):
        super().load_state_dict(state | {"position": 0}, **options)


class Eager(ChunkedDataLoader):
    """Its state counts a batch that was prefetched, not delivered."""

    def __iter__(self):
        ahead = super().__iter__()
        held = next(ahead)
        for batch in ahead:
            yield held
            held = batch
        yield held


class Shrinking(ChunkedDataLoader):
    """Its length is what is left, not the length of the chunk."""

    def __len__(self):
        return self.remaining


class Boastful(ChunkedDataLoader):
    """Promises one batch more than comes."""

    @property
    def remaining(self):
        return super().remaining + 1


class Unsaid(ChunkedDataLoader):
    """Its state is not what JSON gives back."""

    def state_dict(self):
        return super().state_dict() | {"ranks": (0, 1)}


class Rankless(ChunkedDataLoader):
    """Every rank gets everything."""

    def __init__(self, dataset, batch_size, *, rank, world_size, **options):
        super().__init__(dataset, batch_size, rank=0, world_size=1, **options)


class Lossy(ChunkedDataLoader):
    """Drops the last sample of each batch."""

    def __iter__(self):
        return (batch[: max(1, len(batch) - 1)] for batch in super().__iter__())


class Seeded(ChunkedDataLoader):
    """Its order depends on the world, as with a sampler that shuffles each rank's share."""

    def __init__(self, dataset, batch_size, *, world_size, **options):
        super().__init__(dataset, batch_size, world_size=world_size, seed=world_size, **options)


class Ambient(ChunkedDataLoader):
    """What it delivers depends on how much was delivered before."""

    drawn = 0

    def __iter__(self):
        for batch in super().__iter__():
            type(self).drawn += 1
            yield batch + 1000 * type(self).drawn


@pytest.mark.parametrize("options", [{}, {"chunk_size": None}, {"drop_last": True}])
def test_a_good_loader_passes_every_law(options):
    assert_resumes_everywhere(lambda: make(**options))
    dropped = 25 % 6 if options.get("drop_last") else 0
    assert_covers(
        lambda rank, world: make(rank, world, **options), 25, world_size=2, dropped=dropped
    )
    assert_topology_free(
        lambda *ranks: make(*ranks, **options), 25, global_batch=6, worlds=(1, 2, 3)
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Forgetful, "resumed after 1 of .* the state reads"),
        (Eager, "len changed from 2|differs: expected"),
        (Shrinking, "len changed from 2 in mid-chunk"),
        (Boastful, "remaining was 3 batches, 2 were delivered"),
        (Unsaid, "changes in JSON"),
        (Ambient, "differs: expected"),
    ],
)
def test_a_loader_that_does_not_resume_fails(kind, words):
    with pytest.raises(AssertionError, match=words):
        assert_resumes_everywhere(lambda: make(kind=kind))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Rankless, "were delivered more than once"),
        (Lossy, "samples were not delivered, expected 0"),
    ],
)
def test_a_loader_that_does_not_cover_fails(kind, words):
    with pytest.raises(AssertionError, match=words):
        assert_covers(lambda rank, world: make(rank, world, kind=kind), 25, world_size=2)


def test_strange_samples_and_unequal_ranks_fail():
    with pytest.raises(AssertionError, match=r"samples \[20, 21.*not in range\(20\)"):
        assert_covers(make, 20)
    with pytest.raises(AssertionError, match=r"ranks have different numbers of batches: \[3, 2\]"):
        assert_covers(lambda rank, world: make(samples=9 - 3 * rank), 9, world_size=2)
    with pytest.raises(AssertionError, match="more than 3 batches, and no end of epoch"):
        assert_covers(lambda rank, world: make(samples=25), 3)


def test_a_loader_whose_batches_depend_on_the_ranks_fails():
    with pytest.raises(AssertionError, match=r"step 0 is .* on 1 ranks, .* on 2"):
        assert_topology_free(lambda *ranks: make(*ranks, kind=Seeded), 25, global_batch=6)
    with pytest.raises(AssertionError, match="4 ranks do not divide 6"):
        assert_topology_free(make, 25, global_batch=6, worlds=[1, 4])


def test_an_evaluation_loader_covers_in_every_iteration():
    def evaluation(rank, world):
        return make(rank, world, chunk_size=None, evaluation=True)

    assert_covers(evaluation, 25, world_size=4)


def test_a_loader_that_delivers_nothing_fails():
    with pytest.raises(AssertionError, match="an iteration delivers nothing"):
        assert_resumes_everywhere(lambda: make(chunk_size=None, limit_batches=0))


@pytest.mark.parametrize(
    "other",
    [
        [torch.zeros(2), "a", {"x": np.zeros(1)}],
        (torch.zeros(2, dtype=torch.int32), "a", {"x": np.zeros(1)}),
        (torch.zeros(1, 2), "a", {"x": np.zeros(1)}),
        (torch.ones(2), "a", {"x": np.zeros(1)}),
        (torch.zeros(2), "b", {"x": np.zeros(1)}),
        (torch.zeros(2), "a", {"y": np.zeros(1)}),
        (torch.zeros(2), "a", {"x": np.ones(1)}),
        (torch.zeros(2), "a", {"x": np.zeros(1, np.float32)}),
        (torch.zeros(2), "a"),
    ],
)
def test_batches_that_differ_anywhere_are_not_the_same(other):
    one = (torch.zeros(2), "a", {"x": np.zeros(1)})
    assert same_batch(one, (torch.zeros(2), "a", {"x": np.zeros(1)}))
    assert not same_batch(one, other)


def test_nan_is_the_same_as_itself_and_zero_is_not_minus_zero():
    assert same_batch(torch.tensor(float("nan")), torch.tensor(float("nan")))
    assert not same_batch(torch.tensor(0.0), torch.tensor(-0.0))


@pytest.mark.steady
def test_the_laws_need_no_pytest():
    code = "import sys, penstock.testing; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
