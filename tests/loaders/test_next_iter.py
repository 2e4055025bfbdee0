"""What break, set_epoch, set_batch_size, seek, set_chunk, evaluation and a loaded state do to the
next ``iter()``: each alone, then all in any combination against a model in plain integers.
"""

from itertools import islice
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ChunkedDataLoader, PlanError, ShuffledOrder
from penstock.loaders.base import StaleIteratorError

N, BATCH = 20, 3  # seven batches an epoch, the last of two samples


def make(chunk=None, **options):
    return ChunkedDataLoader(torch.arange(N), BATCH, chunk, **{"shuffle": True, **options})


def take(loader, count):
    """The next batches, then break."""
    return [batch.tolist() for batch in islice(loader, count)]


def place(loader):
    state = loader.state_dict()
    return state["epoch"], state["position"]


def expected(epoch, begin=0, end=N, batch=BATCH):
    samples = ShuffledOrder(N, 42).at(epoch, np.arange(begin, end)).tolist()
    return [samples[i : i + batch] for i in range(0, len(samples), batch)]


# -- each alone


def test_iter_alone_moves_nothing_and_the_state_is_there_before_it():
    loader = make(chunk=2)
    before = loader.state_dict()
    iter(loader)
    iter(loader)
    assert loader.state_dict() == before and loader.remaining == 2
    assert take(loader, 2) == expected(0)[:2]


def test_looking_at_a_loader_moves_nothing():
    for chunk in (None, 2):
        loader = make(chunk)
        take(loader, 1)
        before = loader.state_dict()
        len(loader), loader.remaining, loader.describe(), loader.samples_at(3), list(loader.sampler)
        assert loader.state_dict() == before


def test_after_break_a_chunked_loader_goes_on_with_the_rest_of_the_chunk():
    loader = make(chunk=4)
    assert take(loader, 1) == expected(0)[:1]
    assert (loader.remaining, len(loader)) == (3, 4)
    assert [batch.tolist() for batch in loader] == expected(0)[1:4]
    assert (loader.remaining, len(loader)) == (3, 3)


def test_after_break_an_unchunked_loader_begins_the_next_epoch():
    loader = make()
    assert take(loader, 2) == expected(0)[:2]
    assert loader.remaining == 7
    assert [batch.tolist() for batch in loader] == expected(1)
    assert place(loader) == (2, 0)


def test_an_iterator_that_is_closed_was_left():
    for chunk, rest in ((4, expected(0)[1:4]), (None, expected(1))):
        loader = make(chunk)
        batches = iter(loader)
        next(batches)
        batches.close()
        assert list(batches) == []
        assert [batch.tolist() for batch in loader] == rest


def test_a_trainer_that_stops_every_epoch_early_sees_new_samples_each_time():
    loader = make()
    seen = [take(loader, 2) for _ in range(3)]
    assert seen == [expected(epoch)[:2] for epoch in range(3)]


def test_a_whole_iteration_leads_to_the_next_epoch_at_once():
    loader = make()
    for number, _ in enumerate(loader, 1):
        assert place(loader) == ((1, 0) if number == 7 else (0, 3 * number))


def test_a_state_is_what_was_delivered_and_resumes_exactly_also_unchunked():
    loader = make()
    take(loader, 2)
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    assert (again.remaining, len(again)) == (5, 7)
    assert [batch.tolist() for batch in again] == expected(0)[2:]
    assert [batch.tolist() for batch in again] == expected(1)


def test_set_epoch_goes_to_the_start_of_another_epoch_and_nowhere_inside_of_this_one():
    loader = make(chunk=4)
    take(loader, 2)
    loader.set_epoch(0)
    assert place(loader) == (0, 6)
    loader.set_epoch(5)
    assert place(loader) == (5, 0)
    assert take(loader, 1) == expected(5)[:1]


def test_set_epoch_in_a_resumed_epoch_keeps_the_position():
    for chunk in (None, 4):
        loader = make(chunk)
        loader.load_state_dict(make().state_dict() | {"epoch": 3, "position": 9})
        loader.set_epoch(3)
        assert place(loader) == (3, 9)
        assert take(loader, 1) == expected(3, 9)[:1]


def test_set_epoch_while_an_epoch_runs_does_nothing_to_it():
    loader, came = make(), []
    for batch in loader:
        if len(came) < 6:
            loader.set_epoch(0)
        came.append(batch.tolist())
    assert came == expected(0)


def test_set_epoch_of_an_epoch_that_was_left_begins_it_again():
    loader = make()
    take(loader, 2)
    loader.set_epoch(0)
    assert [batch.tolist() for batch in loader] == expected(0)


def test_the_usual_loop_with_set_epoch_and_break_has_one_epoch_a_turn():
    loader = make()
    for epoch in range(4):
        loader.set_epoch(epoch)
        assert take(loader, 3) == expected(epoch)[:3]


def test_what_trainers_find_as_sampler_cannot_move_the_cursor():
    loader = make(chunk=4)
    take(loader, 2)
    for found in (loader.sampler, loader.batch_sampler.sampler):
        found.set_epoch(7)
    assert place(loader) == (0, 6)
    assert isinstance(loader.sampler, torch.utils.data.DistributedSampler)
    assert list(loader.sampler) == [i for batch in expected(0)[2:4] for i in batch]


def test_set_batch_size_keeps_the_position():
    loader = make(chunk=4)
    take(loader, 2)
    loader.set_batch_size(5)
    assert place(loader) == (0, 6) and loader.batch_size == 5
    assert take(loader, 2) == expected(0, 6, batch=5)[:2]


def test_set_batch_size_takes_effect_at_the_next_iter():
    loader = make(chunk=4)
    batches = iter(loader)
    first = [next(batches).tolist()]
    loader.set_batch_size(5)
    assert first + [batch.tolist() for batch in batches] == expected(0)[:4]
    rest = expected(0, 12, batch=5)  # the fourth step of five samples, and the last: two chunks
    assert [[batch.tolist() for batch in loader] for _ in rest] == [rest[:1], rest[1:]]


def test_set_batch_size_after_a_break_continues_there_also_unchunked():
    loader = make()
    take(loader, 2)
    loader.set_batch_size(5)
    assert (loader.remaining, len(loader)) == (3, 5)
    assert [batch.tolist() for batch in loader] == expected(0, 6, batch=5)
    assert [batch.tolist() for batch in loader] == expected(1, batch=5)


def test_a_size_set_during_an_iteration_counts_after_the_break_that_follows():
    for set_size in (
        lambda loader: loader.set_batch_size(5),
        lambda loader: loader.set_chunk_size(9),
    ):
        loader = make()
        batches = iter(loader)
        next(batches)
        set_size(loader)
        assert [next(batches).tolist() for _ in range(2)] == expected(0)[1:3]  # as it began
        del batches
        assert place(loader) == (0, 9)
        batch = loader.batch_size
        assert [samples.tolist() for samples in loader] == expected(0, 9, batch=batch)
        assert place(loader) == (1, 0)


def test_only_the_break_after_a_new_size_is_continued():
    loader = make()
    take(loader, 2)
    loader.set_batch_size(5)
    take(loader, 1)  # continues, and is left again
    assert [batch.tolist() for batch in loader] == expected(1, batch=5)


def test_a_batch_size_that_leaves_no_step_in_this_epoch_leads_to_the_next():
    loader = ChunkedDataLoader(torch.arange(N), 2, 4, drop_last=True)
    loader.seek(0, 8)
    batches = iter(loader)
    next(batches)
    loader.set_batch_size(4)
    del batches
    assert place(loader) == (0, 18)  # delivered so far
    assert loader.remaining == len(loader) == 4  # but no step of four is left there
    assert len(list(loader)) == 4 and place(loader) == (1, 16)


def test_a_refused_batch_size_changes_nothing():
    loader = make(chunk=4)
    take(loader, 2)
    before = loader.state_dict(), loader.remaining, loader.batch_size
    with pytest.raises(PlanError, match="batch_size must be at least 1 sample, got 0"):
        loader.set_batch_size(0)
    strict = ChunkedDataLoader(torch.arange(N), BATCH, 4, drop_last=True)
    with pytest.raises(PlanError, match="20 samples do not fill a step of 21"):
        strict.set_batch_size(21)
    assert (loader.state_dict(), loader.remaining, loader.batch_size) == before
    assert strict.batch_size == BATCH and len(list(strict)) == 4


def test_seek_goes_there_whatever_is_loaded():
    for chunk in (None, 4):
        loader = make(chunk)
        loader.load_state_dict(make().state_dict() | {"epoch": 3, "position": 9})
        loader.seek(1, 2)
        assert place(loader) == (1, 6)
        assert take(loader, 1) == expected(1, 6)[:1]
        loader.seek(1)
        assert [batch.tolist() for batch in loader] == expected(1)[: chunk or 7]


def test_set_chunk_starts_at_that_chunk_of_this_epoch_and_cycles_on():
    loader = make(chunk=3)
    take(loader, 1)
    loader.set_chunk(2)
    assert (loader.current_chunk, loader.total_chunks) == (2, 3)
    assert [batch.tolist() for batch in loader] == expected(0, 18)
    loader.set_chunk(4)  # past the last: of a later epoch
    assert place(loader) == (2, 9)


def test_evaluation_always_begins_at_the_beginning_whatever_happened():
    loader = make(evaluation=True, shuffle=None)
    in_order = [list(range(i, min(i + BATCH, N))) for i in range(0, N, BATCH)]
    for meddle in (
        lambda: take(loader, 2),
        lambda: loader.set_epoch(3),
        lambda: loader.seek(1, 2),
        lambda: loader.set_chunk(0),
        lambda: loader.load_state_dict(loader.state_dict() | {"epoch": 2, "position": 6}),
        lambda: next(iter(loader)),
    ):
        meddle()
        assert (len(loader), loader.remaining) == (7, 7)
        assert [batch.tolist() for batch in loader] == in_order


def test_an_evaluation_chunk_is_always_the_same_subset():
    loader = make(chunk=2, evaluation=True)
    subset = expected(0)[:2]
    assert all([batch.tolist() for batch in loader] == subset for _ in range(3))
    take(loader, 1)
    assert len(loader) == loader.remaining == 2


def test_an_older_iterator_that_lost_its_turn_says_so():
    loader = make()
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    with pytest.raises(StaleIteratorError, match=r"call iter\(loader\) again"):
        next(old)
    assert len(list(new)) == 6
    moved = iter(loader)
    next(moved)
    loader.seek(0)
    with pytest.raises(StaleIteratorError):
        next(moved)


@pytest.mark.parametrize(
    ("limit", "batches"), [(0, 0), (2, 2), (99, 7), (1.0, 7), (0.5, 3), (0.0, 0)]
)
def test_limit_batches_is_a_number_or_a_share_of_each_epoch(limit, batches):
    loader = make(limit_batches=limit)
    assert len(loader) == loader.remaining == batches
    for epoch in range(2):
        assert [batch.tolist() for batch in loader] == expected(epoch if batches else 0)[:batches]
    assert loader.effective_chunk_size == (min(batches, 99) if isinstance(limit, float) else limit)


def test_chunk_size_beats_limit_batches():
    loader = make(chunk=4, limit_batches=2)
    assert [len(list(loader)) for _ in range(4)] == [4, 3, 4, 3]
    assert (loader.chunk_size, loader.limit_batches, loader.effective_chunk_size) == (4, 2, 4)
    assert loader.use_chunked and not make().use_chunked


@pytest.mark.parametrize("share", [0.1, 1.5, -0.5])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(PlanError, match="limit_batches"):
        make(limit_batches=share)


def test_a_state_of_an_unlimited_loader_past_the_limit_leads_to_the_next_epoch(caplog):
    loader = make(limit_batches=2)
    loader.load_state_dict(make().state_dict() | {"position": 9})
    assert [batch.tolist() for batch in loader] == expected(1)[:2]
    assert "dropping the last" not in caplog.text


def test_samples_too_few_for_the_ranks_are_dropped_with_a_warning(caplog):
    loader = make(rank=0, world_size=4)
    loader.load_state_dict(make().state_dict() | {"position": 18})
    assert place(loader) == (1, 0)
    assert "dropping the last 2 samples of epoch 0: fewer than world_size=4" in caplog.text


# -- in any combination, against a model in plain integers


class Model:
    """The promised behaviour, on one rank, nothing dropped."""

    def __init__(self, chunk, evaluation):
        self.chunk, self.evaluation = chunk, evaluation
        self.epoch = self.position = 0
        self.exact, self.batch = True, BATCH

    def start(self):
        if self.evaluation:
            return 0, 0
        if self.chunk is None and self.position and not self.exact:
            return self.epoch + 1, 0
        return self.epoch, self.position

    def remaining(self):
        _, position = self.start()
        left = -(-(N - position) // self.batch)
        done = -(-position // self.batch)
        return left if self.chunk is None else min(left, self.chunk - done % self.chunk)

    def take(self, count):
        promised, came = self.remaining(), []
        epoch, position = self.start()
        for number in range(min(count, promised)):
            end = min(position + self.batch, N)
            came += expected(epoch, position, end, self.batch)
            position = end
            if position == N:
                epoch, position = epoch + 1, 0
            self.exact = False
            last = number == promised - 1
            self.epoch, self.position = (0, 0) if last and self.evaluation else (epoch, position)
        return came

    def go(self, epoch, position):
        self.epoch, self.position, self.exact = epoch, position, True

    def set_epoch(self, epoch):
        if epoch != self.epoch or self.start() != (self.epoch, self.position):
            self.go(epoch, 0)

    def set_chunk(self, chunk):
        total = 1 if self.chunk is None else ceil(ceil(N / self.batch) / self.chunk)
        further, chunk = divmod(chunk, total)
        self.go(self.epoch + further, chunk * (self.chunk or 0) * self.batch)


moves = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 9)),
    st.tuples(st.just("set_epoch"), st.integers(0, 4)),
    st.tuples(st.just("set_batch_size"), st.integers(1, 8)),
    st.tuples(st.just("seek"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
    st.tuples(st.just("set_chunk"), st.integers(0, 5)),
    st.tuples(st.just("load"), st.tuples(st.integers(0, 3), st.integers(0, N - 1))),
    st.tuples(st.just("iter"), st.none()),
)


@settings(max_examples=150)
@given(st.sampled_from([None, 1, 2, 3]), st.booleans(), st.lists(moves, max_size=12))
def test_any_sequence_of_moves_does_what_the_model_does(chunk, evaluation, sequence):
    loader, model = make(chunk, evaluation=evaluation), Model(chunk, evaluation)
    for move, what in [*sequence, ("take", 3)]:
        if move == "take":
            assert take(loader, what) == model.take(what)
        elif move == "set_epoch":
            loader.set_epoch(what)
            model.set_epoch(what)
        elif move == "set_batch_size":
            loader.set_batch_size(what)
            model.batch, model.exact = what, True
        elif move == "seek":
            loader.seek(*what)
            model.go(what[0], what[1] * model.batch)
        elif move == "set_chunk":
            loader.set_chunk(what)
            model.set_chunk(what)
        elif move == "load":
            state = {"epoch": what[0], "position": what[1]}
            loader.load_state_dict(loader.state_dict() | state)
            model.go(*what)
        else:
            iter(loader)
        assert loader.remaining == model.remaining()
        assert place(loader) == (model.epoch, model.position)
        assert len(loader) >= loader.remaining or not model.exact
