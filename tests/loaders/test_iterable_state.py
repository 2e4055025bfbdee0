"""An iterable dataset with a state of its own is resumed by it, exactly, also in workers."""

import json
from itertools import islice

import datasets
import pytest
from torch.utils.data import IterableDataset, get_worker_info

from penstock import ChunkedDataLoader, PlanError, ReplayLoader, StateError
from penstock.loaders import pass_through
from penstock.loaders.pass_through import restores_itself
from tests.cases import each_once

SAMPLES = 22


class Stateful(IterableDataset):
    """Split over workers; its place is an attribute, as in torchdata's examples."""

    def __init__(self, place=0):
        self.place, self.started_at = place, []

    def __iter__(self):
        self.started_at.append(self.place)
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        mine = range(first, SAMPLES, step)
        while self.place < len(mine):
            self.place += 1
            yield {"i": mine[self.place - 1]}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def doubled(batch):
    return {"i": [2 * i for i in batch["i"]]}


def stream(shards=3):
    data = datasets.Dataset.from_dict({"i": list(range(SAMPLES))})
    return data.to_iterable_dataset(num_shards=shards)


STREAMS = {
    "torch": Stateful,
    "hugging face": stream,
    "mapped": lambda: stream().map(doubled, batched=True, batch_size=5),
    "filtered": lambda: stream().filter(lambda row: row["i"] % 3),
    "interleaved": lambda: datasets.interleave_datasets(
        [stream(), stream(5)], probabilities=[0.3, 0.7], seed=1
    ),
    "taken": lambda: stream().skip(3).take(15),
}


def loader_of(data, **options):
    return ReplayLoader(data, **({"batch_size": 4, "seed": 1} | options))


def values(batches):
    return [batch["i"].tolist() for batch in batches]


def resumed(make, done, **options):
    """Return what comes before and after a state is taken, written and loaded elsewhere."""
    first = loader_of(make(), **options)
    seen = values(islice(first, done))
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = loader_of(make(), **options)
    second.load_state_dict(state)
    return seen, values(second), second, state


@pytest.mark.parametrize("name", STREAMS)
def test_every_batch_is_resumed_by_the_datasets_own_state(name, caplog):
    caplog.set_level("INFO", "penstock")
    whole = values(loader_of(STREAMS[name]()))
    for done in range(1, len(whole)):
        seen, rest, loader, state = resumed(STREAMS[name], done)
        assert seen + rest == whole
        assert state["dataset"]["workers"][0][0] == done
        assert loader.state_dict()["epoch"] == 1 and "dataset" not in loader.state_dict()
    assert "batches again" not in caplog.text


@pytest.mark.parametrize("name", ["mapped", "filtered"])
def test_a_state_of_a_version_that_is_not_exact_is_not_used(name, monkeypatch, caplog):
    """With datasets 5.0 and 4.8, the states of these streams repeated and lost rows."""
    monkeypatch.setattr(pass_through, "version", lambda package: "5.0.2")
    caplog.set_level("INFO", "penstock")
    whole = values(loader_of(STREAMS[name]()))
    seen, rest, _, state = resumed(STREAMS[name], 2)
    assert seen + rest == whole and "dataset" not in state
    assert "reading 2 batches again" in caplog.text


@pytest.mark.parametrize(
    ("name", "workers"), each_once(["torch", "hugging face", "mapped"], [3, 2])
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3:UserWarning")
def test_workers_continue_in_their_turn(name, workers):
    whole = values(loader_of(STREAMS[name](), num_workers=workers))
    for done in (1, 2, 3, len(whole) - 1):
        seen, rest, _, _ = resumed(STREAMS[name], done, num_workers=workers)
        assert seen + rest == whole, done


def test_a_resumed_state_is_resumed_again():
    whole = values(loader_of(stream()))
    loader = loader_of(stream())
    for done in range(1, len(whole)):
        assert values(islice(loader, 1)) == [whole[done - 1]]
        state = loader.state_dict()
        loader = loader_of(stream())
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    assert values(loader) == whole[-1:]


def test_the_next_epoch_begins_at_the_beginning_after_a_break_and_a_resume():
    whole = values(loader_of(Stateful()))
    seen, rest, loader, _ = resumed(Stateful, 2)
    assert seen + rest == whole and values(loader) == whole
    next(iter(loader))
    assert values(loader) == whole


def test_nothing_is_read_again():
    data = Stateful()
    _, _, loader, state = resumed(lambda: data, 3)
    assert data.started_at == [0, 12] and data.place == 0  # the dataset itself is not moved
    assert state["dataset"] == {"rank": 0, "last": 0, "workers": [[3, {"place": 12}]]}
    loader.close()


def test_a_rank_that_loads_the_state_of_another_reads_again(caplog):
    caplog.set_level("INFO", "penstock")
    whole, first = values(loader_of(stream())), loader_of(stream())
    seen = values(islice(first, 2))
    state = first.state_dict()
    state["dataset"]["rank"] = 1
    second = loader_of(stream())
    second.load_state_dict(state)
    assert seen + values(second) == whole and "reading 2 batches again" in caplog.text


def test_a_shuffle_buffer_is_read_again():
    shuffled = stream().shuffle(seed=3, buffer_size=7)
    assert restores_itself(stream()) and not restores_itself(shuffled)
    assert not restores_itself(datasets.interleave_datasets([stream(), shuffled.take(5)]))
    loader = loader_of(shuffled)
    next(iter(loader))
    assert "dataset" not in loader.state_dict()


@pytest.mark.parametrize(
    "own",
    [7, {}, {"rank": 0, "last": 0, "workers": []}, {"rank": 0, "last": 3, "workers": [[1, None]]}],
)
def test_a_damaged_state_of_the_dataset_is_refused(own):
    loader = loader_of(stream())
    next(iter(loader))
    with pytest.raises(StateError, match="the state of the dataset"):
        loader.load_state_dict(loader.state_dict() | {"dataset": own})


def test_the_advice_of_a_loader_without_a_state_leads_to_one_with_a_state():
    with pytest.raises(StateError, match=r"use ReplayLoader\(dataset, batch_size=4\)"):
        ChunkedDataLoader(stream(), 4).state_dict()
    loader = ReplayLoader(stream(), batch_size=4)  # as advised
    next(iter(loader))
    assert loader.state_dict()["batches"] == 1


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(PlanError, match="dataset must be iterable, got 3"):
        ReplayLoader(3, batch_size=4)
    with pytest.raises(TypeError, match="takes no argument 'shuffle'"):
        ReplayLoader(stream(), 4, shuffle=True)
