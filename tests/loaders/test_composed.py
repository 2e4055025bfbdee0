"""Loaders over mixtures, weights, lengths and packed sequences: resuming, ranks, shares."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

from penstock import (
    BlockOrder,
    CheckpointManager,
    ChunkedDataLoader,
    GaussianNoise,
    Mixture,
    StreamLoader,
    TextCollator,
    balanced,
    pack,
)
from penstock.datasets import AugmentedDataset
from penstock.errors import PlanError, SourceError, StateError
from penstock.keyed import sample_keys
from penstock.sources import MemorySource

few = settings(max_examples=10)
N = 60
LENGTHS = np.random.default_rng(0).integers(1, 20, N)
WEIGHTS = np.random.default_rng(1).gamma(0.7, size=N)


def rows(n=N, start=0):
    return torch.arange(start, start + n)


def mixed(**options):
    members = {"web": rows(40), "code": rows(13, 40), "rare": rows(7, 53)}
    return Mixture(members, weights={"web": 0.6, "code": 0.3, "rare": 0.1}, **options)


def nested():
    inner = Mixture({"a": rows(11), "b": rows(5, 11)}, weights=[1, 1])
    return Mixture({"inner": inner, "c": rows(20, 16)}, weights=[2, 1], until=29)


def documents():
    return [np.arange(i * 100, i * 100 + n) for i, n in enumerate(LENGTHS)]


# by name: a loader of one rank; all take 12 samples (or one batch per rank) in a step
LOADERS = {
    "mixture": lambda **o: ChunkedDataLoader(mixed(), **o),
    "stages": lambda **o: ChunkedDataLoader(mixed().then(50, [1, 1, 1]).then(90, [0, 1, 9]), **o),
    "nested": lambda **o: ChunkedDataLoader(nested(), **o),
    "balanced": lambda **o: ChunkedDataLoader(balanced(rows(), np.arange(N) ** 2 % 7), **o),
    "weights": lambda **o: ChunkedDataLoader(rows(), weights=WEIGHTS, epoch_samples=50, **o),
    "parts": lambda **o: ChunkedDataLoader(rows(), epoch_samples=25, **o),
    "packed": lambda **o: ChunkedDataLoader(pack(documents(), 16), shuffle=True, **o),
    "whole": lambda **o: ChunkedDataLoader(pack(documents(), 32, split=False), shuffle=True, **o),
}
BY_LENGTH = {
    "tokens": {"max_tokens": 60, "window": 30, "group": 12},
    "samples": {"window": 30, "group": 12},
}


def by_length(name, batch_size, **options):
    return ChunkedDataLoader(rows(), 4, lengths=LENGTHS, **BY_LENGTH[name], **options)


ALL = LOADERS | {name: partial(by_length, name) for name in BY_LENGTH}


def flat(batch):
    """The samples of a batch; the tokens of packed ones."""
    if isinstance(batch, dict):
        return batch["tokens"][batch["segment_ids"] > 0].tolist()
    return batch.tolist()


def deliver(name, state, world, steps, chunk=None, drop_last=True):
    """What all ranks get in the next steps, and the state after them, as JSON keeps it."""
    got, after = [[] for _ in range(steps)], None
    for rank in range(world):
        options = {"batch_size": 12 // world, "chunk_size": chunk, "drop_last": drop_last}
        with ALL[name](**options, rank=rank, world_size=world) as loader:
            if state is not None:
                loader.load_state_dict(state)
            left = steps
            while left:
                for batch in loader:
                    got[steps - left] += flat(batch)
                    left -= 1
                    if not left:
                        break
            mine = json.loads(json.dumps(loader.state_dict()))
            assert after is None or mine == after  # all ranks have the same state
            after = mine
    return [sample for step in got for sample in step], after


@pytest.mark.parametrize("name", LOADERS)
def test_a_chain_of_resumes_on_changing_ranks_is_the_uninterrupted_run(name):
    whole, last = deliver(name, None, 1, 24, chunk=2)
    got, state = [], None
    for link in range(12):
        part, state = deliver(name, state, 1 + link % 4, 2, chunk=2)
        got += part
    assert got == whole and state == last


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_chain_of_resumes_of_length_batches_is_the_uninterrupted_run(name, world):
    whole, last = deliver(name, None, world, 24, chunk=3, drop_last=False)
    got, state = [], None
    for _ in range(12):
        part, state = deliver(name, state, world, 2, chunk=3, drop_last=False)
        got += part
    assert got == whole and state == last


@pytest.mark.parametrize("name", BY_LENGTH)
def test_length_batches_lose_and_repeat_nothing_on_changing_ranks(name):
    got, state, epoch = [], None, 0
    for link in range(200):
        part, state = deliver(name, state, 1 + link % 4, 1, chunk=7, drop_last=False)
        got += part
        if state["epoch"] > epoch:
            assert len(got) == len(set(got)) and N - len(got) < 4  # fewer than there are ranks
            got, epoch = [], epoch + 1
        if epoch == 2:
            return
    raise AssertionError("an epoch without end")


@pytest.mark.parametrize("name", ALL)
def test_resuming_around_the_ends_of_chunks_and_epochs(name):
    whole, _ = deliver(name, None, 2, 16, chunk=3)
    with ALL[name](batch_size=6, chunk_size=3, rank=0, world_size=2, drop_last=True) as loader:
        steps = loader.plan.steps.count
    for cut in {2, 3, 4, steps - 1, steps, steps + 1} - {0}:
        first, state = deliver(name, None, 2, cut, chunk=3)
        rest, _ = deliver(name, state, 2, 16 - cut, chunk=3) if cut < 16 else ([], None)
        assert first[: len(whole)] + rest == whole[: max(len(whole), len(first))]


@pytest.mark.parametrize("name", ALL)
def test_samples_at_and_when_are_what_is_delivered(name):
    with ALL[name](batch_size=4, rank=1, world_size=2, drop_last=False) as loader:
        assert len(loader) == loader.remaining
        dataset = loader.dataset
        batches = list(loader)
        for step, batch in enumerate(batches):
            samples = loader.samples_at(step, epoch=0)
            if isinstance(batch, torch.Tensor):
                assert [int(dataset[i]) for i in samples.tolist()] == batch.tolist()
            for row, sample in enumerate(samples.tolist()):
                found = [(o.step, o.rank, o.row) for o in loader.when(sample)]
                assert (step, 1, row) in found


@pytest.mark.parametrize("name", ALL)
def test_a_copy_of_a_loader_continues(name):
    with ALL[name](batch_size=5, chunk_size=3) as loader:
        list(loader)
        copy = pickle.loads(pickle.dumps(loader))
        assert [flat(b) for b in copy] == [flat(b) for b in loader]


@pytest.mark.parametrize("name", ["mixture", "weights", "packed", "tokens"])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_every_executor_delivers_the_same(name, executor):
    workers = {"num_workers": 1} if executor == "processes" else {}
    with (
        ALL[name](batch_size=5, chunk_size=6) as inline,
        ALL[name](batch_size=5, chunk_size=6, executor=executor, **workers) as other,
    ):
        assert [flat(b) for b in other] == [flat(b) for b in inline]


# -- mixtures


def test_shares_are_exact_in_every_cycle_and_labelled():
    data = mixed(label="member")
    with ChunkedDataLoader(data, 10) as loader:
        for step, (samples, member) in enumerate(loader):
            assert torch.bincount(member, minlength=3).tolist() == [6, 3, 1]
            names = [name for name, _ in data.locate(loader.samples_at(step, epoch=0))]
            assert names == [["web", "code", "rare"][i] for i in member.tolist()]
            assert samples.tolist() == [int(data[i][0]) for i in loader.samples_at(step, epoch=0)]


def test_members_are_passed_through_before_they_repeat_across_epochs():
    with ChunkedDataLoader(mixed(), 10) as loader:
        got = [s for _ in range(8) for batch in loader for s in batch.tolist()]
    for first, size in ((0, 40), (40, 13), (53, 7)):
        own = [s for s in got if first <= s < first + size]
        passes = [own[i : i + size] for i in range(0, len(own) - size + 1, size)]
        assert passes and all(sorted(p) == list(range(first, first + size)) for p in passes)


def test_weights_change_in_a_running_job_and_nothing_before_does():
    plain = ChunkedDataLoader(mixed(), 10, 2)
    data = mixed()
    loader = ChunkedDataLoader(data, 10, 2)
    got = [b.tolist() for b in loader]
    data.then(at=20, weights={"web": 0, "code": 1, "rare": 1})
    state = plain.state_dict()
    for batch in loader:
        assert all(s >= 40 for s in batch.tolist())
    expected = [b.tolist() for b in plain]
    assert got == expected
    with pytest.raises(PlanError, match="use at=40 or more"):
        data.then(at=25, weights=[1, 1, 1])
        next(iter(loader))
    later = ChunkedDataLoader(mixed().then(at=30, weights=[0, 1, 1]), 10, 2)
    later.load_state_dict(plain.state_dict())  # taken before the change
    assert next(b.tolist() for b in later) != []
    for changed in (mixed().then(at=10, weights=[0, 1, 1]), Mixture({"web": rows()})):
        with pytest.raises(StateError):
            ChunkedDataLoader(changed, 10, 2).load_state_dict(plain.state_dict())
    with pytest.raises(StateError, match="stages"):  # a planned change is missing
        ChunkedDataLoader(mixed(), 10, 2).load_state_dict(later.state_dict())
    ChunkedDataLoader(mixed(), 10, 2).load_state_dict(state)


def test_members_are_sources_datasets_and_paths(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(30, 45))
    members = {
        "path": tmp_path / "x.npy",
        "source": MemorySource(np.arange(20)),
        "rows": rows(10, 20),
    }
    data = Mixture(members, until="all")
    with ChunkedDataLoader(data, 9) as loader:
        assert set(torch.cat(list(loader)).tolist()) == set(range(45))
    assert data[44].item() == 29 and data[-1].item() == 29
    named = Mixture({k: MemorySource({"x": np.arange(4) + i}) for i, k in enumerate("ab")})
    assert next(iter(ChunkedDataLoader(named, 4)))["x"].shape == (4,)


def test_no_samples_cannot_be_balanced():
    with pytest.raises(PlanError, match="cannot balance the classes of 0 samples"):
        balanced(np.arange(0), [])


def test_balanced_classes_have_equal_shares():
    labels = np.array([0] * 50 + [1] * 5 + [2] * 5)
    with ChunkedDataLoader(balanced(rows(), labels, until="all"), 6) as loader:
        for batch in loader:
            assert np.bincount(labels[batch.numpy()], minlength=3).tolist() == [2, 2, 2]
        assert len(loader) == 25  # until the largest class was passed through


def test_wrapped_mixtures_keep_their_shares_and_subsets_are_refused():
    images = Mixture({"a": torch.zeros(9, 1, 8, 8), "b": torch.ones(9, 1, 8, 8)}, weights=[3, 1])
    with ChunkedDataLoader(AugmentedDataset(images, {}, training=False), 4) as loader:
        assert next(iter(loader)).mean().item() == 0.25
    with pytest.raises(PlanError, match="subset of each member"):
        ChunkedDataLoader(torch.utils.data.Subset(images, [0, 1]), 1)


def test_mixtures_that_mean_nothing_are_refused():
    data = {"a": rows(4), "b": rows(4)}
    for weights in ([1], {"a": 1}, {"a": 1, "c": 2}, [0, 0], [-1, 2], "ab", [1, float("nan")]):
        with pytest.raises(PlanError):
            Mixture(data, weights=weights)
    for until in ("last", 0, 1.5):
        with pytest.raises(PlanError):
            Mixture(data, until=until)
    with pytest.raises(PlanError, match="no samples"):
        Mixture({"a": rows(4), "b": rows(0)})
    with pytest.raises(PlanError, match="in order"):
        Mixture(data).then(9, [1, 1]).then(5, [1, 2])
    with pytest.raises(PlanError, match="one class per sample"):
        balanced(rows(4), [1, 2])


# -- mixtures from storage


class CountedSource(MemorySource):
    """Counts how often each sample is read."""

    def __init__(self, rows):
        super().__init__(rows)
        self.reads = np.zeros(len(rows), int)

    def _read(self, start, stop, out):
        self.reads[start:stop] += 1
        super()._read(start, stop, out)

    def _view(self, start, stop):
        return None


def stored(label=None):
    members = {"web": rows(400), "code": rows(130, 400), "rare": rows(31, 530)}
    return Mixture(members, weights=[6, 3, 1], until=300, label=label)


def streamed(state, world, steps, data=None):
    """What all ranks get from a stream in the next steps, and the state after them."""
    got, after = [[] for _ in range(steps)], None
    for rank in range(world):
        geometry = {"block_samples": 7, "window_blocks": 5, "lanes": 12, "chunk_size": 3}
        ranks = {"rank": rank, "world_size": world}
        with StreamLoader(data or stored(), 12 // world, **geometry, **ranks) as loader:
            if state is not None:
                loader.load_state_dict(state)
            left = steps
            while left:
                for batch in loader:
                    step = steps - left
                    got[step] += batch.tolist()
                    left -= 1
                    if not left:
                        break
            after = json.loads(json.dumps(loader.state_dict()))
    return [sample for step in got for sample in step], after


def test_a_stream_of_a_mixture_resumes_on_any_number_of_ranks():
    whole, last = streamed(None, 1, 28)  # an epoch has 25
    got, state = [], None
    for link in range(14):
        part, state = streamed(state, 1 + link % 4, 2)
        got += part
    assert got == whole and state == last
    shares = np.bincount(np.searchsorted([400, 530], got, side="right"))
    assert (np.abs(shares - np.array([0.6, 0.3, 0.1]) * len(got)) <= 3 * 12).all()


def test_a_stream_of_a_mixture_says_what_it_delivers_and_follows_new_weights():
    data = stored()
    with StreamLoader(data, 10, chunk_size=10, block_samples=7, window_blocks=4) as loader:
        assert "rare 10.0%" in loader.describe()
        for step, batch in enumerate(loader):
            assert batch.tolist() == loader.samples_at(step).tolist()
            assert [len([s for s in batch if s >= 400]), loader.when(int(batch[3]))[0].step] == [
                4,
                step,
            ]
        data.then(at=100, weights=[0, 1, 0])
        assert all(400 <= s < 530 for batch in loader for s in batch.tolist())
        data.then(at=150, weights=[1, 1, 1])
        with pytest.raises(PlanError, match="use at=200 or more"):
            next(iter(loader))


def test_a_stream_of_a_mixture_reads_blocks_once_except_where_rounds_end():
    members = {"a": CountedSource(np.arange(4000)), "b": CountedSource(np.arange(1000))}
    data = Mixture(members, weights=[4, 1])
    options = {"block_samples": 20, "window_blocks": 40, "drop_last": False, "lanes": 2}
    with StreamLoader(data, 50, **options) as loader:
        before = sum(int(each.reads.sum()) for each in members.values())  # for the fingerprint
        first = [s for batch in loader for s in batch.tolist()]
        read = sum(int(each.reads.sum()) for each in members.values()) - before
    assert len(first) == 5000 and max(Counter(first).values()) <= 2
    # one round more is read ahead; a block that is cut is read for both rounds, in parts
    assert read <= 5000 + 2 * 2 * 800


def test_classes_of_a_source_are_streamed_in_equal_shares():
    labels = np.arange(N) ** 2 % 7
    data = balanced(MemorySource(np.arange(N)), labels, until="all")
    with StreamLoader(data, 8, block_samples=3, window_blocks=8) as loader:
        for step, batch in enumerate(loader):
            assert np.bincount(labels[batch.numpy()])[[0, 1, 2, 4]].tolist() == [2, 2, 2, 2]
            places = [int(name) for name, _ in data.locate(loader.samples_at(step))]
            assert places == labels[batch.numpy()].tolist()


def test_what_a_stream_cannot_mix_is_refused():
    with pytest.raises(PlanError, match="label"):
        StreamLoader(stored(label="from"), 4)
    with pytest.raises(SourceError, match="member 'a'"):
        StreamLoader(Mixture({"a": torch.utils.data.TensorDataset(rows(9))}), 4)
    for options in ({"steps": 2}, {"on_error": "replace"}, {"weights": np.ones(561)}):
        with pytest.raises(PlanError, match="Mixture"):
            StreamLoader(stored(), 4, **options)
    with pytest.raises(PlanError, match="shuffle"):
        StreamLoader(rows(), 4, weights=WEIGHTS, evaluation=True)
    with pytest.raises(PlanError, match="59 weights for 60"):
        StreamLoader(rows(), 4, weights=WEIGHTS[1:])
    with StreamLoader(rows(), 4) as plain, pytest.raises(PlanError, match="no weights"):
        plain.set_weights(WEIGHTS)


# -- weights


def test_new_weights_begin_with_the_next_epoch_and_are_saved_beside_a_checkpoint(tmp_path):
    make = partial(ChunkedDataLoader, rows(), 5, 2, epoch_samples=30)
    loader, other = make(weights=WEIGHTS), np.arange(N)
    first = [b.tolist() for b in loader]
    plain = make(weights=WEIGHTS)
    loader.set_weights(other)  # in the middle of epoch 0
    assert first + [b.tolist() for _ in range(2) for b in loader] == [
        b.tolist() for _ in range(3) for b in plain
    ]
    state = json.loads(json.dumps(loader.state_dict()))
    assert [epoch for epoch, _ in state["weights"]] == [0, 1] and state["position"] == 0
    (tmp_path / "checkpoint").mkdir()
    paths = loader.save_weights(tmp_path / "checkpoint")
    assert [p.name for p in paths] == [f"weights-{name}.npy" for _, name in state["weights"]]
    expected = [b.tolist() for b in loader]
    resumed = make(weights=other)  # continuing needs the last weights
    resumed.load_state_dict(state)
    assert [b.tolist() for b in resumed] == expected
    with pytest.raises(PlanError, match="not known"):
        resumed.samples_at(0, epoch=0)
    resumed = make(weights=WEIGHTS)
    with pytest.raises(StateError, match="load_weights"):
        resumed.load_state_dict(state)
    assert resumed.state_dict() == make(weights=WEIGHTS).state_dict()  # nothing changed
    resumed.load_weights(tmp_path / "checkpoint")
    resumed.load_state_dict(state)
    assert [b.tolist() for b in resumed] == expected
    assert resumed.samples_at(0, epoch=0).tolist() == first[0]
    earlier = {**state, "epoch": 0, "position": 10}  # still in the epoch of the first weights
    with pytest.raises(StateError, match="load_weights"):
        make(weights=other).load_state_dict(earlier)
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(StateError, match="damaged"):
        resumed.load_weights(tmp_path / "checkpoint")


def test_a_loader_and_a_mixture_say_what_they_are():
    with ChunkedDataLoader(rows(), lengths=LENGTHS, max_tokens=64) as loader:
        assert "max_tokens=64" in repr(loader) and "max_tokens=64" in loader.describe()
        assert "batch_size" not in repr(loader)
    with ChunkedDataLoader(rows(), 4, lengths=LENGTHS, group=1) as loader:
        assert "batch_size=4" in repr(loader)
    shares = {"web": 0.6, "code": 0.3, "rare": 0.1}
    assert repr(mixed()) == f"<Mixture of 60 samples: shares {shares}>"


def test_a_checkpoint_manager_keeps_the_weights(tmp_path):
    model, manager = torch.nn.Linear(1, 1), CheckpointManager(tmp_path)
    loader = ChunkedDataLoader(rows(), 5, 2, weights=WEIGHTS)
    loader.set_weights(np.arange(N))
    list(loader)
    path = manager.save(model, None, None, 0, {"val_loss": 1.0}, loaders=loader)
    resumed = ChunkedDataLoader(rows(), 5, 2, weights=WEIGHTS)
    manager.load(path, resumed)
    assert [b.tolist() for b in resumed] == [b.tolist() for b in loader]


PLAIN = torch.arange(480.0).view(30, 1, 4, 4)
NOISE = {"gaussian_noise_params": {"std": 0.5, "p": 1.0}, "spec_augment_params": None}


def augmented(n):
    return AugmentedDataset(torch.ones(n, 1, 4, 4), NOISE)


AUGMENTED = {
    "weights": lambda **o: ChunkedDataLoader(
        augmented(10), weights=np.ones(10), epoch_samples=40, **o
    ),
    "a mixture": lambda **o: ChunkedDataLoader(
        AugmentedDataset(
            Mixture({"a": torch.ones(4, 1, 4, 4), "b": torch.ones(6, 1, 4, 4)}, [1, 1], until=40),
            NOISE,
        ),
        **o,
    ),
    "members": lambda **o: ChunkedDataLoader(
        Mixture({"a": augmented(10), "b": PLAIN}, [1, 1], until=60), **o
    ),
    "classes": lambda **o: ChunkedDataLoader(
        balanced(augmented(10), [0] * 7 + [1] * 3, until=40), **o
    ),
    "a subset": lambda **o: ChunkedDataLoader(
        Subset(augmented(10), [7, 8, 9]), weights=np.ones(3), epoch_samples=12, **o
    ),
    "a stream of weights": lambda **o: StreamLoader(
        torch.ones(10, 1, 4, 4),
        weights=np.ones(10),
        epoch_samples=40,
        transform=GaussianNoise(std=0.5, p=1.0),
        **{"drop_last": False, **o},
    ),
    "a stream of a mixture": lambda **o: StreamLoader(
        Mixture({"a": torch.ones(4, 1, 4, 4), "b": torch.ones(6, 1, 4, 4)}, [1, 1], until=40),
        transform=GaussianNoise(std=0.5, p=1.0),
        **{"drop_last": False, **o},
    ),
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_a_sample_that_comes_twice_is_augmented_differently(name):
    """Augmentation is keyed by (seed, pass, sample): no two rows are alike, in any batch."""
    found = []
    for batch_size in (12, 7):
        with AUGMENTED[name](batch_size=batch_size) as loader:
            rows = [tuple(row.flatten().tolist()) for batch in loader for row in batch]
        assert len(rows) == len(set(rows)) >= 12
        found.append(sorted(rows))
    assert found[0] == found[1]


class ReadTogether(torch.utils.data.Dataset):
    """Samples that are read together, each with a key of its own."""

    def __len__(self):
        return 6

    def __getitems__(self, indices):
        keys = sample_keys(np.array(indices), "noise")
        return [(index, int(key % 2**31)) for index, key in zip(indices, keys, strict=True)]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_keys_of_a_subset_do_not_depend_on_the_batch(executor):
    options = {"executor": executor, "num_workers": 2 * (executor == "processes")}
    # indices of the subset are indices of other samples in the dataset
    subset, weights = Subset(ReadTogether(), [3, 4, 5, 0, 1, 2]), [5, 1, 1, 1, 1, 1]

    def delivered(batch_size):
        settings = {"weights": weights, "epoch_samples": 20, **options}
        with ChunkedDataLoader(subset, batch_size, **settings) as loader:
            return [pair for batch in loader for pair in zip(*map(list, batch), strict=True)]

    small, large = delivered(3), delivered(20)
    assert [tuple(map(int, pair)) for pair in small] == [tuple(map(int, pair)) for pair in large]
    assert len({int(key) for sample, key in small if sample == 3}) == 10


def test_augmentation_in_one_pass_an_epoch_is_that_of_a_plain_order():
    members = {"a": augmented(10)}
    by_sample = []
    for make in (
        lambda: ChunkedDataLoader(augmented(10), 5, shuffle=True),
        lambda: ChunkedDataLoader(augmented(10), 5, weights=np.ones(10)),
        lambda: ChunkedDataLoader(Mixture(members), 5),
    ):
        with make() as loader:
            for _ in range(2):
                epoch = loader.position.cursor.epoch
                pairs = [
                    (sample, row.flatten().tolist())
                    for step, batch in enumerate(loader)
                    for sample, row in zip(
                        loader.samples_at(step, epoch).tolist(), batch, strict=True
                    )
                ]
                by_sample.append(dict(pairs))
    plain = by_sample[:2]
    assert plain[0] != plain[1] and by_sample[2:4] == plain == by_sample[4:]


class Tokenizer:
    pad_token_id, mask_token_id, vocab_size, all_special_ids = 0, 1, 100, (0, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_tokens_of_a_sample_that_comes_twice_are_masked_differently(stored):
    tokens = np.tile(np.arange(10, 74), (6, 1))
    collate = TextCollator(Tokenizer(), mlm=True)

    def rows_of(batch):
        return collate([{"input_ids": row} for row in batch.tolist()])["labels"]

    options = {"weights": np.ones(6), "epoch_samples": 18, "collate_fn": rows_of}
    make = StreamLoader if stored else ChunkedDataLoader
    own = {} if stored else {"collate_fn": lambda rows: rows_of(torch.stack(rows))}
    with make(torch.from_numpy(tokens), 18, **{**options, **own}) as loader:
        (labels,) = loader
    assert len({tuple(row) for row in labels.tolist()}) == 18
    with make(torch.from_numpy(tokens), 6, **{**options, **own, "epoch_samples": 6}) as once:
        (first,) = once
        samples = once.samples_at(0, 0)
    with ChunkedDataLoader(
        torch.from_numpy(tokens), 6, collate_fn=lambda rows: rows_of(torch.stack(rows))
    ) as plain:  # one pass an epoch: the masks of an ordinary order
        (expected,) = plain
    assert torch.equal(first, expected[samples])


# -- lengths


@few
@given(st.integers(1, 4), st.integers(20, 200), st.integers(1, 5), st.booleans())
def test_length_batches_keep_the_budget_on_every_rank(world, budget, epoch, chunked):
    seen = Counter()
    for rank in range(world):
        options = {"rank": rank, "world_size": world, "window": 30, "group": 12}
        loader = ChunkedDataLoader(rows(), lengths=LENGTHS, max_tokens=budget, **options)
        loader.seek(epoch)
        for batch in loader:
            longest = int(LENGTHS[batch.numpy()].max())
            assert len(batch) * longest <= budget
            seen.update(batch.tolist())
    assert len(seen) == N and set(seen.values()) == {1}


def test_arguments_that_do_not_go_together_are_refused():
    for options in (
        {"max_tokens": 9},
        {"window": 9},
        {"group": 9},
        {"lengths": LENGTHS[:3]},
        {"lengths": LENGTHS, "max_tokens": 3},
        {"lengths": LENGTHS, "weights": WEIGHTS},
        {"lengths": LENGTHS, "epoch_samples": 9},
        {"weights": WEIGHTS[:3]},
        {"weights": WEIGHTS, "shuffle": False},
        {"weights": WEIGHTS, "sampler": range(N)},
        {"epoch_samples": 0},
    ):
        with pytest.raises(PlanError):
            ChunkedDataLoader(rows(), 4, **options)
    for options in ({"lengths": LENGTHS}, {"weights": WEIGHTS}):
        with pytest.raises(PlanError):
            ChunkedDataLoader(mixed(), 4, **options)
    loader = ChunkedDataLoader(rows(), lengths=LENGTHS, max_tokens=60, group=4)
    with pytest.raises(PlanError, match="no weights"):
        loader.set_weights(WEIGHTS)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_batches_of_lanes_are_read_from_a_ranks_own_blocks(world):
    size, lengths = 240, np.random.default_rng(0).integers(1, 30, 240)
    blocks, got = BlockOrder(size, 42, 10, 2, lanes=4), []
    for rank in range(world):
        given = {"lengths": lengths, "max_tokens": 90, "window": 80, "drop_last": False}
        with ChunkedDataLoader(
            rows(size), order=blocks, rank=rank, world_size=world, **given
        ) as own:
            mine = [batch.numpy() for batch in own]
        assert all(len(batch) * lengths[batch].max() <= 90 for batch in mine)
        lanes = set((blocks.position_of(0, np.concatenate(mine)) % 4).tolist())
        assert {lane % world for lane in lanes} == {rank}
        got.append(mine)
    assert len({len(mine) for mine in got}) == 1  # equal steps
    assert sorted(np.concatenate([b for mine in got for b in mine])) == list(range(size))
    for other in ({"group": 4}, {"max_tokens": None}, {"weights": [1] * size}):
        given = {"lengths": lengths, "max_tokens": 90} | other
        with pytest.raises(PlanError, match="combined with order="):
            ChunkedDataLoader(rows(size), order=blocks, **given)


# -- packing


@pytest.mark.parametrize("split", [True, False])
def test_packed_documents_are_the_same_from_any_storage(split, tmp_path):
    docs = documents()
    tokens = np.concatenate(docs).astype(np.uint16)
    np.save(tmp_path / "tokens.npy", tokens)
    packed = [
        pack(docs, 32, split=split),
        pack([{"input_ids": torch.from_numpy(d), "id": 3} for d in docs], 32, split=split),
        *(
            pack(data, 32, lengths=LENGTHS, split=split)
            for data in (docs, tokens, MemorySource(tokens), str(tmp_path / "tokens.npy"))
        ),
    ]
    first = packed[0].__getbatch__(np.arange(len(packed[0])))
    assert first["tokens"][first["segment_ids"] > 0].sort()[0].tolist() == sorted(tokens.tolist())
    for each in packed[1:]:
        batch = each.__getbatch__(np.arange(len(each)))
        assert all(torch.equal(batch[name], first[name]) for name in first)
    with StreamLoader(packed[3], 4, drop_last=False) as loader:
        got = [t for b in loader for t in flat(b)]
    assert sorted(got) == sorted(tokens.tolist())


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(PlanError, match="sum to"):
        pack(np.arange(9), 4, lengths=[4, 4])
    with pytest.raises(PlanError, match="integer tokens"):
        pack(np.zeros(9), 4)
    with pytest.raises(PlanError, match="packed already"):
        pack(MemorySource(np.zeros((9, 3), int)), 4)
    with pytest.raises(PlanError, match="a row of integers"):
        pack([{"x": [1], "y": [2]}], 4)
    with pytest.raises(PlanError, match="its length was given"):
        pack([[1, 2], [3]], 4, lengths=[1, 1])[0]
