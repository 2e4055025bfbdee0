"""The steering loader: the order, the epoch, the ranks, and what may change on the way."""

from __future__ import annotations

import gc
import logging
import random
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    create_loader,
    first_batch,
    set_epoch,
    validate_first_batch,
)
from penstock.errors import BatchError, PlanError
from penstock.loaders import ChunkedDataLoader
from penstock.testing import (
    assert_covers,
    assert_resumes_everywhere,
    assert_topology_free,
    same_batch,
)

CONFIG = {"curriculum": {"zero_prob_start": 0.5, "zero_prob_end": 0.1, "epochs_total": 10}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return build_steering_directory(
        tmp_path_factory.mktemp("steering"), pairs=160, embedding_dim=8, config=CONFIG
    )


@pytest.fixture
def own(tmp_path):
    """A directory to change."""
    return build_steering_directory(tmp_path / "own", pairs=160, embedding_dim=8, config=CONFIG)


def rows(batches):
    """Which pairs, by their relevance, which is different for each."""
    return [batch["relevance"].tolist() for batch in batches]


def all_same(a, b):
    a, b = list(a), list(b)
    return len(a) == len(b) and all(same_batch(x, y) for x, y in zip(a, b, strict=True))


def ambient():
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )


# -- laws


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("split", ["train", "val"])
def test_any_number_of_workers_gives_the_same_batches(directory, split):
    epochs = {}
    for workers in (0, 2, 4):
        with create_loader(directory, split, 8, num_workers=workers) as loader:
            epochs[workers] = [batch for _ in range(2) for batch in loader]
    assert all_same(epochs[0], epochs[2]) and all_same(epochs[0], epochs[4])


def test_a_state_resumes_everywhere(directory):
    assert_resumes_everywhere(lambda: create_loader(directory, "train", 16, drop_last=False))


def sample_ids(directory):
    data = JASPERSteeringDataset(directory, "train")
    index = {v: i for i, v in enumerate(data.pair_relevance[data._rows].tolist())}
    return len(data), lambda batch: torch.tensor([index[v] for v in batch["relevance"].tolist()])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_pair_once_an_epoch_on_any_ranks(directory, world):
    samples, ids = sample_ids(directory)

    def make(rank, world_size):
        ranks = {"rank": rank, "world_size": world_size}
        return create_loader(directory, "train", 8, drop_last=False, **ranks)

    assert_covers(make, samples, world_size=world, ids=ids)


def test_the_same_global_batches_for_any_world(directory):
    samples, ids = sample_ids(directory)

    def make(rank, world_size, batch_size):
        ranks = {"rank": rank, "world_size": world_size}
        return create_loader(directory, "train", batch_size, drop_last=False, **ranks)

    assert_topology_free(make, samples, global_batch=12, worlds=(1, 2, 3, 4), ids=ids)


def test_a_pairs_variant_depends_on_neither_order_nor_batch_nor_rank(directory):
    def variants(**options):
        loader = create_loader(directory, "train", drop_last=False, epoch=3, **options)
        return {
            relevance: variant
            for batch in loader
            for relevance, variant in zip(
                batch["relevance"].tolist(), batch["steering_variant"].tolist(), strict=True
            )
        }

    whole = variants(batch_size=8)
    assert whole == variants(batch_size=31, shuffle=False)
    halves = [variants(batch_size=8, rank=rank, world_size=2) for rank in range(2)]
    assert whole == halves[0] | halves[1]


# -- what the seed's own tests ask


def test_sizes_defaults_and_attributes(directory):
    loader = create_loader(directory, "train", 8)
    assert isinstance(loader, DataLoader) and isinstance(loader, ChunkedDataLoader)
    assert loader.batch_size == 8 and loader.drop_last is True and loader.pin_memory is True
    assert loader.num_workers == 0 and loader.dataset is loader.dataset_obj
    assert loader.sampler_obj is None
    assert len(list(loader)) == len(loader) == len(loader.dataset) // 8
    for split in ("val", "test"):
        held = create_loader(directory, split, 8, pin_memory=False)
        assert held.drop_last is False and held.pin_memory is False
        assert sum(len(batch["relevance"]) for batch in held) == len(held.dataset)
    assert create_loader(directory, "train", 8, drop_last=False).drop_last is False
    assert create_loader(directory, "train", 8, num_workers=2).num_workers == 2


def test_val_can_drop_its_last_batch_too(directory):
    loader = create_loader(directory, "val", 4, drop_last=True)
    batches = list(loader)
    assert loader.drop_last is True
    assert [len(b["relevance"]) for b in batches] == [4] * (len(loader.dataset) // 4)
    assert all_same(batches, loader)
    with pytest.raises(PlanError, match="make no whole step of 500"):
        create_loader(directory, "val", 500, drop_last=True)


def test_train_is_shuffled_anew_each_epoch_and_repeatable_val_is_in_order(directory):
    loader = create_loader(directory, "train", 8)
    first, second = rows(loader), rows(loader)
    assert first != second
    assert rows(create_loader(directory, "train", 8)) == first
    assert rows(create_loader(directory, "train", 8, seed=7)) != first
    val = create_loader(directory, "val", 8)
    data = val.dataset_obj
    in_order = data.pair_relevance[data._rows].tolist()
    for _ in range(2):
        assert [value for batch in rows(val) for value in batch] == in_order
    assert sorted(v for batch in first for v in batch) != [v for batch in first for v in batch]


def test_nothing_is_pinned_and_nothing_warns_without_an_accelerator(directory):
    loader = create_loader(directory, "train", 8, pin_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(loader))
    assert loader.pin_memory is True
    assert batch["relevance"].is_pinned() == torch.accelerator.is_available()


# -- epochs


def test_set_epoch_moves_shuffle_and_curriculum(directory):
    loader = create_loader(directory, "train", 8)
    straight = [batch for _ in range(6) for batch in loader]
    set_epoch(loader, 5)
    assert loader.dataset_obj.current_epoch == 5
    assert all_same(loader, straight[5 * len(loader) :])
    begun = create_loader(directory, "train", 8, epoch=5)
    assert begun.dataset_obj.current_epoch == 5
    assert all_same(begun, straight[5 * len(loader) :])


def test_the_dataset_tells_the_epoch_that_is_delivered(directory):
    loader = create_loader(directory, "train", 8)
    seen = []
    for _ in range(3):
        for _ in loader:
            pass
        seen.append((loader.dataset_obj.current_epoch, loader.dataset_obj.steering_probs["zero"]))
    assert seen == [(0, pytest.approx(0.5)), (1, pytest.approx(0.46)), (2, pytest.approx(0.42))]


@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_follow_the_curriculum(directory, workers):
    with create_loader(directory, "train", 8, num_workers=workers, drop_last=False) as loader:
        for epoch in (0, 10):
            set_epoch(loader, epoch)
            variants = torch.cat([batch["steering_variant"] for batch in loader])
            share = (variants == 0).float().mean().item()
            assert share == pytest.approx(0.5 if epoch == 0 else 0.1, abs=0.01)


def test_set_epoch_within_a_resumed_epoch_keeps_the_place(directory):
    loader = create_loader(directory, "train", 8)
    whole = list(loader)
    again = create_loader(directory, "train", 8)
    early = again.state_dict()
    for _, batch in zip(range(3), again, strict=False):  # noqa: B007
        early = again.state_dict()
    resumed = create_loader(directory, "train", 4)
    resumed.load_state_dict(early)
    resumed.set_batch_size(8)
    set_epoch(resumed, 0)
    assert all_same(resumed, whole[3:]) and same_batch(batch, whole[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_is_the_same_each_time_until_told_otherwise(directory, workers):
    with create_loader(directory, "val", 8, num_workers=workers) as val:
        first = list(val)
        assert all_same(first, val)
        next(iter(val))
        val.set_epoch(9)  # a trainer's doing
        assert all_same(first, val)
        set_epoch(val, 9)  # the user's
        later = list(val)
        assert rows(later) == rows(first)
        assert not all_same(first, later)
        data = val.dataset_obj
        wanted = data.variants_of(np.arange(len(data)), 9).tolist()
        assert torch.cat([b["steering_variant"] for b in later]).tolist() == wanted


def test_set_epoch_moves_a_stock_loaders_dataset(directory):
    data = JASPERSteeringDataset(directory, "train")
    set_epoch(DataLoader(Subset(data, range(10)), 4), 7)
    assert data.current_epoch == 7
    set_epoch(DataLoader(TensorDataset(torch.zeros(4))), 3)


# -- what may change on the way


@pytest.mark.parametrize("workers", [0, 2])
def test_forcing_counts_from_the_very_next_batch(directory, workers):
    with create_loader(directory, "train", 8, num_workers=workers) as loader:
        plain = list(loader)
        loader.seek(0)
        for place, batch in enumerate(loader):
            assert rows([batch]) == rows([plain[place]])
            if place < 3:
                assert same_batch(batch, plain[place])
            elif place < 6:
                assert (batch["steering_variant"] == 2).all()
            else:
                assert same_batch(batch, plain[place])
            if place == 2:
                loader.dataset_obj.force_steering("keyword")
            if place == 5:
                loader.dataset_obj.force_steering(None)


@pytest.mark.parametrize("workers", [0, 2])
def test_reloaded_negatives_count_from_the_very_next_batch(own, workers):
    fresh = (torch.load(own / "hard_negatives.pt") + 1) % 128
    with create_loader(own, "train", 8, num_workers=workers) as loader:
        data, iterator = loader.dataset_obj, iter(loader)
        before = data.source_embs[data.hard_negatives[data._rows]]
        assert torch.equal(next(iterator)["negative_embs"], before[loader.samples_at(0, epoch=0)])
        torch.save(fresh, own / "hard_negatives.pt")
        data.reload_negatives()
        after = data.source_embs[fresh[data._rows]]
        for step, batch in enumerate(iterator, start=1):
            assert torch.equal(batch["negative_embs"], after[loader.samples_at(step, epoch=0)])


def test_workers_refuse_negatives_that_changed_again(own):
    with create_loader(own, "train", 8, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        fresh = torch.load(own / "hard_negatives.pt").roll(1, 0)
        torch.save(fresh, own / "hard_negatives.pt")
        loader.dataset_obj.reload_negatives()
        other = own / "other.pt"
        torch.save(fresh.roll(1, 0), other)
        other.replace(own / "hard_negatives.pt")
        with pytest.raises(ValueError, match="changed again since reload_negatives"):
            next(iterator)


# -- looking without a trace


@pytest.mark.parametrize("workers", [0, 2])
def test_validating_and_peeking_leave_no_trace(directory, workers):
    untouched = create_loader(directory, "train", 8)
    with create_loader(directory, "train", 8, num_workers=workers) as loader:
        before, state = ambient(), loader.state_dict()
        assert validate_first_batch(loader) is True
        assert same_batch(first_batch(loader), loader.peek())
        assert ambient() == before and loader.state_dict() == state
        assert loader._workers is None  # none was started
        for place, (a, b) in enumerate(zip(loader, untouched, strict=True)):
            assert same_batch(a, b)
            if place == 4:
                middle = loader.state_dict()
                assert validate_first_batch(loader) is True
                assert loader.state_dict() == middle
        assert ambient() == before


def test_a_look_with_next_iter_leaves_no_trace_once_the_epoch_is_set(directory):
    loader, untouched = (create_loader(directory, "train", 8) for _ in range(2))
    before = ambient()
    looked = next(iter(loader))
    assert ambient() == before
    set_epoch(loader, 0)
    batches = list(loader)
    assert all_same(batches, untouched) and same_batch(looked, batches[0])


def test_a_look_begins_where_the_next_iteration_does(directory):
    loader = create_loader(directory, "train", 8)
    next(iter(loader))  # the abandoned epoch is over
    looked = loader.peek()
    assert same_batch(looked, next(iter(loader)))
    val = create_loader(directory, "val", 4)
    next(iter(val))
    assert same_batch(val.peek(), next(iter(val)))


@pytest.mark.parametrize("given", [None, 5])
def test_a_stock_loader_is_looked_at_without_a_trace(directory, given):
    data = JASPERSteeringDataset(directory, "train")
    generator = None if given is None else torch.Generator().manual_seed(given)
    loader = DataLoader(
        data,
        8,
        sampler=RandomSampler(data, generator=generator),
        num_workers=2,
        generator=generator,
    )
    before = ambient()
    torch.manual_seed(3)
    assert validate_first_batch(loader) is True
    first = rows([first_batch(loader)])
    looked = rows(loader)
    assert looked[:1] == first
    torch.manual_seed(3)
    if generator is not None:
        generator.manual_seed(given)
    assert rows(loader) == looked
    torch.set_rng_state(torch.tensor(before[2], dtype=torch.uint8))
    assert ambient() == before


def test_loaders_of_torchs_own_and_plain_lists_can_be_looked_at():
    passed = ChunkedDataLoader(torch.arange(6), 2, generator=torch.Generator().manual_seed(1),
                               shuffle=True)  # fmt: skip
    assert torch.equal(passed.peek(), next(iter(passed)))
    assert first_batch([1, 2]) == 1
    unbatched = DataLoader(torch.arange(3), batch_size=None)
    assert first_batch(unbatched) == 0


class Broken(JASPERSteeringDataset):
    """A dataset with one thing wrong in every batch."""

    def __getbatch__(self, indices):
        batch = super().__getbatch__(indices)
        self.spoil(batch)
        return batch


def nan(batch):
    batch["question_emb"][2, 5] = float("nan")


def inf(batch):
    batch["negative_embs"][1, 0, 3] = float("inf")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (nan, "NaN detected in question_emb: nan at row 2, element 5"),
        (inf, r"Inf detected in negative_embs: inf at row 1, element \[0, 3\]"),
        (lambda b: b["relevance"].fill_(1.5), r"relevance out of range \[0, 1\]: 1.5 at row 0"),
        (lambda b: b["centroid_distance"].fill_(-0.1), "centroid_distance out of range"),
        (lambda b: b["cluster_id"].fill_(5), r"cluster_id out of range \[0, 4\]: 5 at row 0"),
        (lambda b: b["steering_variant"].fill_(4), "steering_variant out of range"),
        (lambda b: b["negative_tiers"].fill_(0), "negative_tiers out of range"),
        (lambda b: b.pop("steering"), "steering is missing"),
        (lambda b: b.update(more=b["steering"]), "unexpected fields"),
        (lambda b: b.update(steering=b["steering"].double()), "steering must be float32"),
        (lambda b: b.update(relevance=b["relevance"][:3]), "relevance must have shape"),
    ],
)
@pytest.mark.parametrize("stock", [False, True])
def test_each_check_of_the_first_batch_can_fail(directory, spoil, message, stock):
    Broken.spoil = staticmethod(spoil)
    data = Broken(directory, "train")
    loader = create_loader(directory, "train", 8, dataset=data)
    if stock and "shape" not in message:
        loader = DataLoader(Subset(data, range(100)), 8)
    with pytest.raises(AssertionError, match=message) as caught:
        validate_first_batch(loader)
    assert isinstance(caught.value, BatchError)


def test_an_empty_loader_is_an_error_not_a_stop(directory):
    data = JASPERSteeringDataset(directory, "train")
    with pytest.raises(BatchError, match="has no batches"):
        validate_first_batch(DataLoader(data, 1000, drop_last=True))
    with pytest.raises(BatchError, match="has no batches"):
        validate_first_batch([])
    with pytest.raises(BatchError, match="limit_batches=0 leaves no batches"):
        validate_first_batch(create_loader(directory, "train", 8, limit_batches=0))


# -- reuse


def test_a_second_loader_of_a_loaded_directory_shares_its_tables(directory):
    first = create_loader(directory, "train", 64)
    for size in (16, 32, 64):
        loader = create_loader(directory, "train", size)
        assert loader.dataset_obj.source_embs is first.dataset_obj.source_embs
        assert loader.dataset_obj is not first.dataset_obj


def test_a_dataset_given_is_used_and_must_fit(directory, own):
    data = JASPERSteeringDataset(directory, "train")
    assert create_loader(directory, "train", 8, dataset=data, epoch=2).dataset_obj is data
    assert data.current_epoch == 2
    with pytest.raises(PlanError, match="is the train split"):
        create_loader(directory, "val", 8, dataset=data)
    with pytest.raises(PlanError, match="is the train split"):
        create_loader(own, "train", 8, dataset=data)


def test_tables_on_a_device_need_no_workers_and_no_pinning(directory):
    data = JASPERSteeringDataset(directory, "train", device="meta")
    loader = create_loader(directory, "train", 8, dataset=data)
    assert loader.pin_memory is False
    assert {value.device.type for value in next(iter(loader)).values()} == {"meta"}
    with pytest.raises(PlanError, match="need num_workers=0"):
        create_loader(directory, "train", 8, dataset=data, num_workers=2)


def test_a_loader_let_go_is_gone_without_the_garbage_collector(directory):
    gc.collect()
    gc.disable()
    try:
        loader = create_loader(directory, "train", 8, num_workers=1)
        next(iter(loader))
        gone, workers = weakref.ref(loader), loader._workers._loader._iterator._workers
        begin = time.perf_counter()
        del loader
        assert gone() is None
        assert time.perf_counter() - begin < 4  # torch's patience with a worker is five seconds
        assert not workers[0].is_alive()
    finally:
        gc.enable()


# -- ranks


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_distributed_needs_a_group_and_says_how_to_start_one(directory):
    with pytest.raises(PlanError, match=r"torchrun.*init_process_group"):
        create_loader(directory, "train", 8, distributed=True)


def test_distributed_has_a_sampler_and_maps_the_tables(directory, group):
    loader = create_loader(directory, "train", 8, distributed=True)
    assert (loader.sampler_obj.num_replicas, loader.sampler_obj.rank) == (1, 0)
    assert loader.dataset_obj.use_mmap is True
    loader.sampler_obj.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4
    set_epoch(loader, 0)
    assert all_same(loader, create_loader(directory, "train", 8))


def test_not_distributed_is_not_sharded_even_in_a_group(directory, group, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    alone = create_loader(directory, "train", 8, drop_last=False)
    assert sum(len(b["relevance"]) for b in alone) == len(alone.dataset)
    shared = create_loader(directory, "train", 8, drop_last=False, distributed=True)
    assert len(shared) < len(alone) and shared.sampler_obj.rank == 2


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("split", ["train", "val"])
def test_ranks_get_each_pair_once_and_equal_steps_none_padded(directory, split, world):
    loaders = [
        create_loader(directory, split, 2, drop_last=False, rank=rank, world_size=world)
        for rank in range(world)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    got = [value for loader in loaders for batch in rows(loader) for value in batch]
    data = loaders[0].dataset_obj
    assert sorted(got) == sorted(data.pair_relevance[data._rows].tolist())


# -- refusals


def test_a_wrong_split_is_refused_with_a_question(directory):
    with pytest.raises(ValueError, match=r"got 'vall'; did you mean 'val'\?"):
        create_loader(directory, "vall", 8)


def test_a_batch_larger_than_the_split_is_one_sentence(directory):
    with pytest.raises(PlanError, match="use a smaller batch size, or drop_last=False"):
        create_loader(directory, "train", 1000)


def test_other_data_is_refused_on_resume(directory, tmp_path, caplog):
    state = create_loader(directory, "train", 8).state_dict()
    other = build_steering_directory(
        tmp_path / "other", pairs=160, embedding_dim=8, seed=42, config={"n_neg": 4}
    )
    questions = torch.load(other / "question_embs.pt")
    torch.save(questions.roll(1, 0), other / "question_embs.pt")
    with pytest.raises(ValueError, match="the data changed since the state was taken"):
        create_loader(other, "train", 8).load_state_dict(state)
    with caplog.at_level(logging.INFO):
        create_loader(directory, "train", 8).load_state_dict(state)
