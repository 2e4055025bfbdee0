"""Documents that are packed differently in every pass: each token once in a pass, also resumed."""

from __future__ import annotations

import json
import pickle
from itertools import cycle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from penstock import (
    ChunkedDataLoader,
    Mixture,
    StreamLoader,
    concatenate,
    open_source,
    pack,
    zip_sources,
)
from penstock.errors import PlanError, StateError

LENGTH, SEED = 16, 10  # the cuts of its first passes differ
LENGTHS = np.random.default_rng(0).integers(1, LENGTH + 1, 90)
TOKENS = np.arange(LENGTHS.sum()) + 1


def packed(split, first=0, seed=SEED):
    return pack(TOKENS + first, LENGTH, lengths=LENGTHS, split=split, seed=seed)


def expected(data, epoch):
    """The sequences of a pass, by their definition."""
    pieces, rows = data.packed.pieces(epoch, np.arange(len(data))), np.zeros((len(data), LENGTH))
    begins = np.cumsum(LENGTHS) - LENGTHS
    for s, offset, d, start, stop in zip(*(column.tolist() for column in pieces), strict=True):
        rows[s, offset : offset + stop - start] = TOKENS[begins[d] + start : begins[d] + stop]
    return rows.astype(int).tolist()


def chunked(data, **options):
    return ChunkedDataLoader(data, shuffle=True, drop_last=False, **options)


def stream(data, **options):
    sizes = {"block_samples": 5, "window_blocks": 2, "lanes": 2, "memory_budget": "64MB"}
    return StreamLoader(data, drop_last=False, **sizes, **options)


def numbered(loader, epoch):
    """(sequence, tokens) of each row of an epoch."""
    found = []
    for step, batch in enumerate(loader):
        rows = batch["tokens"].tolist()
        found += zip(loader.samples_at(step, epoch).tolist(), rows, strict=True)
    return found


WAYS = {
    "in turn": chunked,
    "threads": lambda data, **o: chunked(data, executor="threads", threads=2, **o),
    "processes": lambda data, **o: chunked(data, num_workers=1, **o),
    "stream": stream,
}


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_epoch_has_every_token_once_in_other_sequences(way, split):
    data, before = packed(split), None
    with WAYS[way](data, batch_size=4) as loader:
        for epoch in range(3):
            found = sorted(numbered(loader, epoch))
            rows = expected(data, epoch)
            assert found == list(enumerate(rows))
            assert sorted(t for row in rows for t in row if t) == TOKENS.tolist()
            assert rows != before
            before = rows


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("make", [chunked, stream])
def test_a_run_that_is_resumed_on_other_ranks_packs_alike(make, split):
    data, state, epoch = packed(split), None, 0
    got, worlds = {}, cycle([1, 2, 3, 4, 3, 2])
    while epoch < 3:
        world, after = next(worlds), None
        for rank in range(world):
            ranks = {"batch_size": 12 // world, "rank": rank, "world_size": world}
            with make(packed(split), **ranks) as loader:  # nothing but the state is known
                if state is not None:
                    loader.load_state_dict(state)
                rows = next(iter(loader))["tokens"].tolist()
                after = json.loads(json.dumps(loader.state_dict()))
                # where an epoch has fewer sequences left than ranks, the step is of the next one
                epoch = after["epoch"] - (after["position"] == 0)
                got.setdefault(epoch, []).extend(rows)
        state, epoch = after, after["epoch"]
    assert sorted(got) == [0, 1, 2]
    for each, rows in got.items():
        wanted = expected(data, each)
        lost = len(wanted) - len(rows)  # fewer than the ranks of a last step
        assert 0 <= lost < 4 and len(set(map(tuple, rows))) == len(rows)
        assert set(map(tuple, rows)) <= set(map(tuple, wanted))


MIXED = {
    "in turn": lambda data: ChunkedDataLoader(data, 8, drop_last=False),
    "process": lambda data: ChunkedDataLoader(data, 8, drop_last=False, num_workers=1),
    "stream": lambda data: stream(data, batch_size=8),
    "stream in order": lambda data: stream(data, batch_size=8, shuffle=False),
}


@pytest.mark.parametrize("way", MIXED)
@pytest.mark.parametrize("split", [True, False])
def test_a_member_of_a_mixture_is_packed_by_its_own_pass(split, way):
    members = {"a": packed(split), "b": packed(split, first=10_000)}
    mixture = Mixture(members, weights=[3, 1], until=40)
    got = {name: {} for name in members}  # by pass: which sequence had which tokens
    with MIXED[way](mixture) as loader:
        order = loader.position.plan.order
        for epoch in range(9):
            for step, batch in enumerate(loader):
                samples, passes = order.at_with_passes(epoch, loader.positions_at(step, epoch))
                found = (mixture.locate(samples), passes.tolist(), batch["tokens"].tolist())
                for (name, sequence), own, row in zip(*found, strict=True):
                    row = [t - 10_000 * (name == "b") if t else 0 for t in row]
                    got[name].setdefault(own, []).append((sequence, row))
    complete = 0
    for passes in got.values():
        assert sorted(passes) == list(range(len(passes)))
        for own, rows in passes.items():
            wanted = list(enumerate(expected(members["a"], own)))
            assert sorted(rows) == wanted or (
                own == len(passes) - 1 and all(row in wanted for row in rows)
            )
            complete += sorted(rows) == wanted
    assert complete >= 5
    came = [sum(map(len, passes.values())) for passes in got.values()]
    assert came[0] == 3 * came[1]


def test_rows_of_other_lengths_beside_packed_documents_in_a_mixture(tmp_path):
    """Every row has the words of its own sample, resumed anywhere and on two ranks."""
    data = packed(True)
    words = [[number] * (1 + number % 5) for number in range(len(data))]
    (tmp_path / "words.jsonl").write_text("\n".join(json.dumps({"words": each}) for each in words))
    both = zip_sources({"documents": data, "words": open_source(tmp_path / "words.jsonl")})
    mixture = Mixture({"all": both, "some": both.select(np.arange(20))}, {"all": 0.7, "some": 0.3})

    def steps(count, state=None, rank=0, world=1):
        found = []
        with stream(mixture, batch_size=8 // world, rank=rank, world_size=world) as loader:
            if state is not None:
                loader.load_state_dict(state)
            while len(found) < count:
                for batch in loader:
                    rows = [*zip(batch["tokens"].tolist(), batch["words"].tolist(), strict=True)]
                    found.append((rows, loader.state_dict()))
        return found[:count]

    whole = steps(30)
    passes = [expected(data, each) for each in range(9)]
    for rows, _ in whole:
        for tokens, said in rows:
            number = said[0]
            assert said == words[number] and tokens in [each[number] for each in passes]
    for after in (0, 7, 16, 23):
        assert steps(5, whole[after][1]) == whole[after + 1 : after + 6]
    for one, *others in zip(
        whole, steps(30, rank=0, world=2), steps(30, rank=1, world=2), strict=True
    ):
        assert sorted(one[0]) == sorted(row for rows, _ in others for row in rows)


def test_whole_documents_that_come_together_in_one_pass_do_not_in_the_next():
    lengths = np.random.default_rng(1).integers(10, 60, 5000)
    data = pack(np.zeros(lengths.sum(), int), 128, lengths=lengths, split=False, seed=3)

    def pairs(epoch):
        pieces = data.packed.pieces(epoch, np.arange(len(data)))
        same = pieces.sequence[1:] == pieces.sequence[:-1]
        return set(zip(pieces.document[:-1][same], pieces.document[1:][same], strict=True))

    assert len(pairs(0) & pairs(1)) < 0.05 * len(pairs(0))
    filled = [np.bincount(data.packed.pieces(e, np.arange(len(data))).sequence) for e in (0, 1)]
    assert np.array_equal(*filled) and data.filled > 0.97


@pytest.mark.parametrize("split", [True, False])
def test_without_a_loader_the_pass_is_the_first_one(split):
    data = packed(split)
    rows = [data[i]["tokens"].tolist() for i in range(len(data))]
    assert rows == expected(data, 0)
    assert [row for b in DataLoader(data, 7) for row in b["tokens"].tolist()] == rows
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again[3]["tokens"], data[3]["tokens"])


def test_parts_of_packed_documents_follow_the_pass():
    data, kept = packed(True), [9, 2, 30]
    with chunked(Subset(data, kept), batch_size=2) as loader:
        for epoch in range(2):
            wanted = [expected(data, epoch)[i] for i in kept]
            found = numbered(loader, epoch)
            assert all(row == wanted[index] for index, row in found) and len(found) == 3
    for make in (chunked, stream):
        with make(data.select(kept), batch_size=2) as loader:
            for epoch in range(2):
                wanted = [expected(data, epoch)[i] for i in sorted(kept)]
                assert sorted(numbered(loader, epoch)) == list(enumerate(wanted))
    joined = concatenate([data, packed(True, first=10_000)])
    with stream(joined, batch_size=4) as loader:
        for epoch in range(2):
            rows = [row for _, row in sorted(numbered(loader, epoch))]
            assert rows[: len(data)] == expected(data, epoch)


@pytest.mark.parametrize("make", [chunked, stream])
@pytest.mark.parametrize("options", ["weights", "epoch_samples", "small mixture"])
def test_each_copy_is_packed_by_its_own_pass(make, options):
    data, given = packed(True), {}
    if options == "weights":
        given = {"weights": np.arange(len(data)) % 3}
    elif options == "epoch_samples":
        given = {"epoch_samples": len(data) // 2 + 3}
    else:  # a member that is passed through several times in a round
        data = pack(TOKENS[: LENGTHS[:3].sum()], LENGTH, lengths=LENGTHS[:3], seed=SEED)
        given = {"epoch_samples": 50}
    with make(data, batch_size=8, **given) as loader:
        order = loader.position.plan.order
        for epoch in range(3):
            for step, batch in enumerate(loader):
                samples, passes = order.at_with_passes(epoch, loader.positions_at(step, epoch))
                assert np.array_equal(samples, loader.samples_at(step, epoch))
                rows = [
                    expected(data, int(own))[sample]
                    for sample, own in zip(samples, passes, strict=True)
                ]
                assert batch["tokens"].tolist() == rows


def test_where_no_pass_is_known_it_is_refused():
    data = packed(True)
    part = Mixture({"a": data.select(range(20)), "b": data.select(range(20, 40))})
    with (
        ChunkedDataLoader(part, 4) as loader,
        pytest.raises(PlanError, match="to the loader or the Mixture directly"),
    ):
        list(loader)
    for seed in (-1, 1.5, "7"):
        with pytest.raises(PlanError, match="seed"):
            packed(True, seed=seed)


@pytest.mark.parametrize("split", [True, False])
def test_a_state_of_another_packing_is_refused(split):
    with chunked(packed(split), batch_size=4) as loader:
        state = loader.state_dict()
    for other in (None, SEED + 1):
        with chunked(packed(split, seed=other), batch_size=4) as loader:
            with pytest.raises(StateError):
                loader.load_state_dict(state)


def test_patches_of_what_changes_are_refused_and_the_advice_works():
    for data in (packed(True), packed(True).select(np.arange(4)), concatenate([packed(True)])):
        with pytest.raises(PlanError, match="pack without seed"):
            data.patches((4,))
    assert len(packed(True, seed=None).patches((4,))) == 4 * len(packed(True))
