"""Chunks of a recording: covered once a pass, loaded ahead, resumed exactly."""

import gc
import json
import logging
import threading
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.domains.recording import RandomChunkLoader
from penstock.domains.recording.sampling import ChunkPlan
from penstock.errors import PenstockError, PlanError, StateError

PATIENCE = 20.0
T, N = 1000, 6
DATA = np.arange(T * N, dtype="f4").reshape(T, N)
STIM = np.arange(T * 2, dtype="f4").reshape(T, 2) + 0.5


class Recorded:
    """The seed's load function, with a note of every call."""

    def __init__(self, before=lambda start, end: None):
        self.calls, self.before = [], before

    def __call__(self, start, end):
        self.calls.append((start, end))
        self.before(start, end)
        return DATA[start:end].copy(), STIM[start:end].copy()


def drained(loader):
    """All chunks of the epoch."""
    found = []
    while (chunk := loader.get_next_chunk())[0] is not None:
        found.append(chunk)
    return found


def starts(chunks):
    return [int(chunk[0][0, 0]) // N for chunk in chunks]


# -- what the seed's own tests ask


def test_chunks_have_the_shape_and_device_and_then_come_none():
    load = Recorded()
    with RandomChunkLoader(load, T, 250, device="cpu", seed=1) as loader:
        loader.start_epoch(4)
        for _ in range(4):
            data, stim = loader.get_next_chunk()
            assert data.shape == (250, N) and stim.shape == (250, 2)
            assert data.device.type == stim.device.type == "cpu"
            assert data.dtype == torch.float32
        assert loader.get_next_chunk() == (None, None)
        assert loader.get_next_chunk() == (None, None)  # and again
    assert len(load.calls) == 4


@pytest.mark.parametrize("prefetch", [1, 2, 6])
def test_exactly_the_chunks_asked_for_are_loaded(prefetch):
    load = Recorded()
    with RandomChunkLoader(load, T, 100, prefetch=prefetch, seed=1) as loader:
        loader.start_epoch(7)
        assert len(drained(loader)) == 7
        assert len(load.calls) == 7
        assert loader.get_stats()["chunks_loaded"] == 7
        assert loader.get_stats()["chunks_transferred"] == 7


def test_uniform_starts_are_in_range_and_differ():
    with RandomChunkLoader(Recorded(), T, 100, seed=3, sampling="uniform") as loader:
        loader.start_epoch(50)
        found = starts(drained(loader))
    assert all(0 <= start <= T - 100 for start in found)
    assert len(set(found)) > 25
    assert len({start % 10 for start in found}) > 3


@pytest.mark.parametrize("sampling", ["cover", "uniform"])
def test_the_same_seed_gives_the_same_chunks(sampling):
    def run(seed):
        with RandomChunkLoader(Recorded(), T, 130, seed=seed, sampling=sampling) as loader:
            found = []
            for _ in range(3):
                loader.start_epoch(8)
                found += starts(drained(loader))
            return found

    assert run(5) == run(5)
    assert run(5) != run(6)


@pytest.mark.parametrize("sampling", ["cover", "uniform"])
def test_a_chunk_longer_than_the_recording_is_the_recording(sampling):
    with RandomChunkLoader(Recorded(), T, 5000, seed=1, sampling=sampling) as loader:
        loader.start_epoch(3)
        for data, stim in drained(loader):
            assert np.array_equal(data, DATA) and np.array_equal(stim, STIM)


def test_chunks_hold_what_the_recording_holds():
    load = Recorded()
    with RandomChunkLoader(load, T, 77, seed=1, prefetch=3) as loader:
        loader.start_epoch(13)
        for (data, stim), (start, end) in zip(drained(loader), load.calls, strict=True):
            assert np.array_equal(data, DATA[start:end])
            assert np.array_equal(stim, STIM[start:end])


def test_loading_and_training_overlap():
    """Each load starts while the chunk before it is trained on."""
    started = [threading.Event() for _ in range(20)]
    load = Recorded(lambda start, end: started[len(load.calls) - 1].set())
    with RandomChunkLoader(load, T, 50, seed=1) as loader:
        loader.start_epoch(20)
        for following in started[1:]:
            assert loader.get_next_chunk()[0] is not None
            assert following.wait(PATIENCE)  # as long as training would take
        assert loader.get_next_chunk()[0] is not None


def test_a_loaded_chunk_is_returned_while_the_next_one_is_loading():
    opened = threading.Event()

    def third_waits(start, end):
        if len(load.calls) == 3:
            assert opened.wait(PATIENCE)

    load = Recorded(third_waits)
    with RandomChunkLoader(load, T, 100, seed=1) as loader:
        loader.start_epoch(3)
        for _ in range(2):
            assert loader.get_next_chunk()[0] is not None
        opened.set()
        assert loader.get_next_chunk()[0] is not None


def test_the_next_chunk_is_loaded_while_this_one_is_used():
    second = threading.Event()
    load = Recorded(lambda start, end: second.set() if len(load.calls) == 2 else None)
    with RandomChunkLoader(load, T, 100, seed=1) as loader:
        loader.start_epoch(5)
        loader.get_next_chunk()
        assert second.wait(PATIENCE)


def test_cleanup_stops_before_all_chunks_are_loaded():
    load = Recorded()
    loader = RandomChunkLoader(load, T, 10, seed=1, prefetch=2)
    loader.start_epoch(100)
    loader.get_next_chunk()
    loader.cleanup()
    loader.cleanup()
    assert len(load.calls) <= 4
    assert loader.get_next_chunk() == (None, None)


def test_epochs_back_to_back_differ_and_are_whole():
    with RandomChunkLoader(Recorded(), T, 50, seed=1) as loader:
        orders = []
        for _ in range(3):
            loader.start_epoch(20)
            orders.append(starts(drained(loader)))
    assert all(len(order) == 20 for order in orders)
    assert len({tuple(order) for order in orders}) == 3


# -- the seed's defects


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_an_early_break_takes_nothing_from_the_next_epoch(prefetch):
    """1: a stale end marker; 10: a generator that had run ahead."""
    with RandomChunkLoader(Recorded(), T, 100, seed=1, prefetch=prefetch) as whole:
        want = []
        for _ in range(21):
            whole.start_epoch(5)
            want.append(starts(drained(whole)))
    with RandomChunkLoader(Recorded(), T, 100, seed=1, prefetch=prefetch) as loader:
        for epoch in range(20):
            loader.start_epoch(5)
            got = [loader.get_next_chunk() for _ in range(epoch % 5)]
            assert starts(got) == want[epoch][: epoch % 5]
        loader.start_epoch(5)
        assert starts(drained(loader)) == want[20]


@pytest.mark.parametrize("at", [0, 3, 6])
def test_what_load_fn_raises_arrives_after_the_chunks_before(at):
    """2: a dead thread and a consumer that waits for ever."""

    def broken(start, end):
        if len(load.calls) == at + 1:
            raise OSError("no such chunk")

    load = Recorded(broken)
    with RandomChunkLoader(load, T, 100, seed=1) as loader:
        loader.start_epoch(7)
        for _ in range(at):
            assert loader.get_next_chunk()[0] is not None
        with pytest.raises(OSError, match="no such chunk") as caught:
            loader.get_next_chunk()
        assert caught.value.__notes__ == ["in thread penstock-chunks"]
        with pytest.raises(OSError, match="no such chunk"):
            loader.get_next_chunk()
        assert loader.state_dict()["position"] == at
        loader.load_state_dict(loader.state_dict())
        loader.start_epoch(7)  # continues where it stopped
        assert len(drained(loader)) == 7 - at


def test_buffers_are_reused_where_load_fn_fills_them():
    """4: new page-locked memory for every chunk."""
    places = []

    def load(start, end, out=None):
        if out is None:
            return DATA[start:end], STIM[start:end]
        places.append(out[0].ctypes.data)
        out[0][...], out[1][...] = DATA[start:end], STIM[start:end]
        return None

    with RandomChunkLoader(load, T, 60, seed=1, prefetch=2) as loader:
        for _ in range(3):
            loader.start_epoch(17)
            for _ in range(17):
                data, stim = loader.get_next_chunk()
                start = int(data[0, 0]) // N
                assert np.array_equal(data, DATA[start : start + len(data)])
                assert np.array_equal(stim, STIM[start : start + len(data)])
    assert len(places) >= 50 - 3
    assert len(set(places)) <= 3  # prefetch + 1


def test_filled_chunks_that_are_kept_are_never_overwritten():
    def load(start, end, out=None):
        if out is None:
            return (DATA[start:end],)
        out[0][...] = DATA[start:end]
        return None

    with RandomChunkLoader(load, T, 60, seed=1) as loader:
        loader.start_epoch(17)
        kept = [chunk for (chunk,) in drained(loader)]
    assert sorted(int(row) for chunk in kept for row in chunk[:, 0] // N) == list(range(T))


def test_a_load_fn_that_fails_to_fill_gives_its_buffer_back():
    def load(start, end, out=None):
        if out is None:
            return (DATA[start:end],)
        raise OSError("broken")

    errors = 0
    with RandomChunkLoader(load, T, 60, seed=1) as loader:
        for _ in range(10):
            loader.start_epoch(3)
            try:
                while loader.get_next_chunk()[0] is not None:
                    pass
            except OSError:
                errors += 1
        assert errors == 10
        assert len(loader._pipeline._host._buffers.free) == 2


@settings(max_examples=40)
@given(st.integers(1, 3000), st.integers(1, 500), st.integers(0, 2**32), st.integers(0, 5))
def test_a_pass_covers_every_timestep_once(total, chunk, seed, epoch):
    """5: uniform starts miss a third of the recording; 6: the reported batches are those run."""
    plan = ChunkPlan(total, chunk, seed)
    spans = plan.spans(epoch, plan.per_pass)
    assert plan.per_pass == -(-total // chunk)
    seen = sorted(t for start, end in spans for t in range(start, end))
    assert seen == list(range(total))
    lengths = {end - start for start, end in spans}
    assert max(lengths) <= chunk and max(lengths) - min(lengths) <= 1


@settings(max_examples=40)
@given(
    st.integers(50, 3000),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 60),
    st.integers(0, 2**32),
    st.sampled_from(["cover", "uniform"]),
)
def test_starts_are_aligned_and_windows_overlap(total, units, align, overlap, seed, sampling):
    """11: starts off the storage's chunks; and windows lost at borders."""
    plan = ChunkPlan(total, units * align, seed, sampling, align, overlap)
    for start, end in plan.spans(0, plan.per_pass + 2):
        assert start % align == 0
        assert start < end <= min(total, start + units * align + overlap)
    if sampling == "cover":
        spans = sorted(plan.spans(0, plan.per_pass))
        assert spans[-1][1] == total
        for (_, end), (start, _) in pairwise(spans):
            assert end == min(total, start + overlap)


def test_more_chunks_than_a_pass_are_a_further_pass_of_another_order():
    plan = ChunkPlan(T, 100, seed=1)
    spans = plan.spans(0, 25)
    assert plan.spans(0, 7) == spans[:7]
    assert sorted(spans[:10]) == sorted(spans[10:20])
    assert spans[:10] != spans[10:20]
    assert [len({*range(*span)}) for span in ChunkPlan(967680, 65536, 1).spans(0, 15)] == [
        64512
    ] * 15


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("fills", [False, True])
def test_at_most_prefetch_and_one_chunks_are_in_memory(prefetch, fills):
    """7: what is really held, counted where it is made."""
    alive, most = [], []

    def load(start, end, out=None):
        if out is not None:
            out[0][...] = DATA[start:end]
            most.append(len(set(busy())))
            return None
        made = DATA[start:end].copy()
        alive.append(start)
        weakref.finalize(made, alive.pop)
        most.append(len(alive))
        return made

    def busy():
        slots = loader._pipeline._host._buffers
        return set(range(slots.count)) - set(slots.free)

    plain = lambda start, end: load(start, end)  # noqa: E731 - takes no out=
    with RandomChunkLoader(load if fills else plain, T, 10, prefetch=prefetch, seed=1) as loader:
        loader.start_epoch(100)
        for _ in range(100):
            chunk = loader.get_next_chunk()
            assert chunk[0] is not None
        stats = loader.get_stats()
    assert max(most) <= prefetch + 1
    assert stats["host_bytes"] == (prefetch + 1) * 10 * N * 4
    assert stats["device_bytes"] == 0
    assert f"at most {prefetch + 1} chunks" in loader.describe()


def test_who_keeps_all_chunks_is_not_slowed_down_for_ever():
    with RandomChunkLoader(Recorded(), T, 10, seed=1) as loader:
        loader.start_epoch(100)
        kept = drained(loader)
    assert sorted(starts(kept)) == list(range(0, T, 10))


def test_threads_end_when_it_is_dropped():
    """12: daemon threads and no end."""
    loader = RandomChunkLoader(Recorded(), T, 10, seed=1)
    loader.start_epoch(100)
    chunk = loader.get_next_chunk()
    (thread,) = [t for t in threading.enumerate() if t.name == "penstock-chunks"]
    del loader
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(chunk[0]) == 10


def test_the_thread_ends_with_the_epoch():
    with RandomChunkLoader(Recorded(), T, 100, seed=1) as loader:
        loader.start_epoch(3)
        drained(loader)
        for thread in threading.enumerate():
            if thread.name == "penstock-chunks":
                thread.join(PATIENCE)
                assert not thread.is_alive()


# -- any number of arrays


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_arrays_and_as_many_none_at_the_end(count):
    def load(start, end):
        return tuple(DATA[start:end] + i for i in range(count))

    with RandomChunkLoader(load, T, 500, seed=1) as loader:
        loader.start_epoch(2)
        for _ in range(2):
            chunk = loader.get_next_chunk()
            assert len(chunk) == count
            assert all(torch.equal(chunk[0] + i, each) for i, each in enumerate(chunk))
        assert loader.get_next_chunk() == (None,) * count


def test_one_array_need_not_be_a_tuple_and_none_is_refused():
    with RandomChunkLoader(lambda a, b: DATA[a:b], T, 500, seed=1) as loader:
        loader.start_epoch(1)
        assert len(loader.get_next_chunk()) == 1
    with RandomChunkLoader(lambda a, b: (), T, 500, seed=1) as loader:
        loader.start_epoch(1)
        with pytest.raises(PlanError, match="load_fn returned no array"):
            loader.get_next_chunk()


# -- state


@settings(max_examples=25)
@given(st.integers(0, 2), st.integers(0, 9), st.sampled_from(["cover", "uniform"]))
def test_a_state_goes_on_after_the_last_chunk_got(epochs, taken, sampling):
    def make():
        return RandomChunkLoader(Recorded(), T, 100, seed=9, prefetch=3, sampling=sampling)

    with make() as whole:
        want = []
        for _ in range(epochs + 2):
            whole.start_epoch(10)
            want.append(starts(drained(whole)))
    with make() as first:
        for _ in range(epochs):
            first.start_epoch(10)
            drained(first)
        first.start_epoch(10)
        got = [first.get_next_chunk() for _ in range(taken)]
        state = json.loads(json.dumps(first.state_dict()))
    with make() as second:
        second.load_state_dict(state)
        assert second.state_dict() == state
        second.start_epoch(10)
        assert starts(got) + starts(drained(second)) == want[epochs]
        second.start_epoch(10)
        assert starts(drained(second)) == want[epochs + 1]


def test_a_state_after_the_last_chunk_begins_the_next_epoch():
    with RandomChunkLoader(Recorded(), T, 100, seed=9) as loader:
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 0)
        loader.start_epoch(10)
        for _ in range(10):
            loader.get_next_chunk()
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_a_drawn_seed_is_logged_kept_and_adopted(caplog):
    with caplog.at_level(logging.INFO, logger="penstock"):
        one, other = (RandomChunkLoader(Recorded(), T, 100) for _ in range(2))
    assert f"seed={one.seed}" in caplog.text
    other.load_state_dict(one.state_dict())
    assert other.seed == one.seed == one.state_dict()["seed"]


def test_a_state_of_another_plan_is_refused():
    state = RandomChunkLoader(Recorded(), T, 100, seed=1).state_dict()
    for other, word in (
        (RandomChunkLoader(Recorded(), T, 100, seed=2), "seed 1, this loader has 2"),
        (RandomChunkLoader(Recorded(), T, 50, seed=1), "chunk 100"),
        (RandomChunkLoader(Recorded(), T - 1, 100, seed=1), "samples 1000"),
        (RandomChunkLoader(Recorded(), T, 100, seed=1, sampling="uniform"), "order 'cover'"),
    ):
        with pytest.raises(StateError, match=word):
            other.load_state_dict(state)
    loader = RandomChunkLoader(Recorded(), T, 100, seed=1)
    for damage in ({"epoch": -1}, {"position": "3"}, {"format": "other"}):
        with pytest.raises(StateError):
            loader.load_state_dict({**state, **damage})


# -- refusals


def test_a_chunk_before_the_first_epoch_is_an_error():
    with pytest.raises(PenstockError, match=r"call start_epoch\(num_chunks\) first"):
        RandomChunkLoader(Recorded(), T, 100, seed=1).get_next_chunk()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1 timestep, got 0"),
        ({"total_timesteps": 0}, "total_timesteps must be at least 1"),
        ({"prefetch": 0}, "prefetch must be at least 1 chunk, got 0"),
        ({"sampling": "all"}, "sampling must be one of"),
        ({"align": 30}, "use chunk_size=90 or 120"),
        ({"overlap": -1}, "overlap must be at least 0 timesteps, got -1"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    sizes = {"total_timesteps": T, "chunk_size": 100, "seed": 1}
    with pytest.raises(PlanError, match=sentence):
        RandomChunkLoader(Recorded(), **{**sizes, **options})


def test_an_epoch_of_no_chunks_is_refused():
    with pytest.raises(PlanError, match="num_chunks must be at least 1"):
        RandomChunkLoader(Recorded(), T, 100, seed=1).start_epoch(0)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.proof)])
def test_random_timings_of_loading_and_training_lose_nothing(seed):
    """Ten random pairings of slow and fast (as proof a hundred): every chunk once, in order."""
    rng = np.random.default_rng(seed)
    wait = threading.Event().wait  # never set: a pause that an interrupt can end
    for _ in range(100 if seed else 10):
        slow_load, slow_train = rng.uniform(0, 0.004, 2)
        prefetch, chunks = int(rng.integers(1, 5)), int(rng.integers(1, 12))
        loaded = []

        def load(start, end, slow_load=slow_load, loaded=loaded):
            wait(rng.uniform(0, slow_load))
            loaded.append((start, end))
            return np.arange(start, end)

        with RandomChunkLoader(load, 1000, 90, prefetch=prefetch, seed=seed) as loader:
            loader.start_epoch(chunks)
            got = []
            while (chunk := loader.get_next_chunk()[0]) is not None:
                got.append((int(chunk[0]), int(chunk[-1]) + 1))
                wait(rng.uniform(0, slow_train))
            assert got == loaded == loader.plan.spans(0, chunks)
