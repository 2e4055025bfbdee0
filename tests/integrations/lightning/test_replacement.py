"""Stock loaders become Penstock's with the same settings; what cannot is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from penstock.errors import ConfigError
from penstock.integrations.lightning import ChunkedTraining
from penstock.integrations.lightning.loaders import as_training_loader, as_validation_loader
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.loaders.partition import validation_loader
from tests.integrations.lightning.fits import fit, ids, stock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def doubled(samples):
    return [torch.stack([x for (x,) in samples]) * 2]


def test_a_replaced_loader_has_the_settings_of_the_one_it_replaces():
    options = {"num_workers": 2, "prefetch_factor": 3, "timeout": 60.0, "drop_last": True}
    before = stock(23, batch=4, collate_fn=doubled, worker_init_fn=print, **options)
    after = as_training_loader(before, ChunkSettings(2), name="train_dataloader")
    assert isinstance(after, ChunkedDataLoader) and after.dataset is before.dataset
    for name in ("batch_size", "collate_fn", "worker_init_fn", *options):
        assert getattr(after, name) == getattr(before, name), name
    assert after.persistent_workers and (after.chunk_size, after.total_chunks) == (2, 3)
    scored = as_validation_loader(before, ChunkSettings(2), name="val_dataloader")
    assert scored.collate_fn is doubled and scored.num_workers == 2 and len(scored) == 6


def test_a_collate_function_of_the_users_own_makes_the_batches():
    run = fit(ChunkedTraining(4), stock(22, collate_fn=doubled), max_epochs=3)
    assert sorted(run.seen) == [*range(0, 44, 2)]


@pytest.mark.parametrize("own", [{}, {"shuffle": True}, {"generator": torch.Generator()}])
def test_the_order_is_the_callbacks_whatever_the_stock_loader_did(own):
    one = fit(ChunkedTraining(4), stock(22, **own), max_epochs=3).seen
    assert one == fit(ChunkedTraining(4), max_epochs=3).seen != sorted(one)
    ordered = fit(ChunkedTraining(4, shuffle=False), stock(22, **own), max_epochs=3).seen
    assert ordered == fit(ChunkedTraining(4, order="sequential"), max_epochs=3).seen == sorted(one)
    blocks = fit(ChunkedTraining(40, order="block"), stock(200, **own), max_epochs=3).seen
    assert sorted(blocks) == [*range(200)] != blocks
    assert one != fit(ChunkedTraining(4, seed=1), stock(22, **own), max_epochs=3).seen


def test_a_share_of_ranks_stays_that_share():
    sampler = DistributedSampler(range(20), num_replicas=2, rank=1)
    loader = DataLoader(ids(20), 2, sampler=sampler)
    after = as_training_loader(loader, ChunkSettings(3), name="train_dataloader")
    steps = after.position.plan.steps
    assert (steps.world, after.position.plan.rank, steps.total_chunks) == (2, 1, 2)
    inferred = as_training_loader(loader, ChunkSettings(None, 3), name="train_dataloader")
    assert inferred.chunk_size == 5


def test_several_validation_loaders_each_get_the_size():
    run = fit(ChunkedTraining(4, 2), val=[stock(9, 1000), stock(3, 2000)])
    assert [len(scored) for scored in run.scored] == [4 + 3] * 2
    assert fit(ChunkedTraining(4), val=[stock(9), stock(3)]).callback.val_chunk_size == 5


# -- what is left alone where no size is asked of it


class Counting(IterableDataset):
    def __iter__(self):
        return ((torch.tensor(x),) for x in range(1000, 1009))


def test_what_has_no_order_is_left_alone_when_its_size_is_inferred():
    sampler = WeightedRandomSampler([1.0] * 22, 8, generator=torch.Generator().manual_seed(0))
    train = DataLoader(ids(22), 2, sampler=sampler)
    run = fit(ChunkedTraining(val_chunk_size=3), train)
    assert run.trainer.train_dataloader is train and run.callback.train_chunk_size == 4
    assert run.train_batches == [4, 4] and run.val_batches == [3, 3]
    scored = fit(ChunkedTraining(4), val=DataLoader(Counting(), 2)).scored
    assert scored == [[*range(1000, 1009)]] * 2


# -- refusals


class OwnLoader(DataLoader):
    def __iter__(self):
        return super().__iter__()


NO_ORDER = {
    "an IterableDataset (Counting)": lambda: DataLoader(Counting(), 2),
    "a sampler of its own (WeightedRandomSampler)": lambda: DataLoader(
        ids(8), 2, sampler=WeightedRandomSampler([1.0] * 8, 8)
    ),
    "a RandomSampler that does not give every sample once": lambda: DataLoader(
        ids(8), 2, sampler=RandomSampler(range(8), replacement=True)
    ),
    "a batch_sampler of its own": lambda: DataLoader(
        ids(8),
        batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(range(8)), 2, False),
    ),
    "batch_size=None": lambda: DataLoader(ids(8), batch_size=None),
    "its own way to iterate (OwnLoader)": lambda: OwnLoader(ids(8), 2),
    "its own way to iterate (list)": lambda: [1],
    "no samples": lambda: DataLoader(ids(0), 2),
    "sampler": lambda: ChunkedDataLoader(ids(8), 2, sampler=RandomSampler(range(8))),
}


@pytest.mark.parametrize("reason", NO_ORDER)
@pytest.mark.parametrize("side", ["train", "val"])
def test_what_has_no_order_is_refused_a_chunk_size(reason, side):
    loader, settings = NO_ORDER[reason](), ChunkSettings(**{f"{side}_chunk_size": 3})
    replace = {"train": as_training_loader, "val": as_validation_loader}[side]
    with pytest.raises(ConfigError) as refused:
        replace(loader, settings, name=f"{side}_dataloader")
    assert f"{side}_chunk_size=3 needs" in str(refused.value)
    assert f"a loader with {reason}" in str(refused.value)


def test_the_refusal_reaches_the_user_through_fit():
    with pytest.raises(
        ConfigError, match="train_dataloader gives a loader with an IterableDataset"
    ):
        fit(ChunkedTraining(4), DataLoader(Counting(), 2))


def test_two_different_sizes_for_one_loader_are_refused():
    with pytest.raises(ConfigError, match=r"train_chunk_size=4 .* has chunk_size=5"):
        fit(ChunkedTraining(4), ChunkedDataLoader(ids(22), 2, 5))
    with pytest.raises(ConfigError, match=r"val_chunk_size=4 .* has chunk_size=2"):
        fit(ChunkedTraining(val_chunk_size=4), val=validation_loader(ids(9), 2, 2))
    stream = StreamLoader(torch.arange(9).numpy(), 2, evaluation=True)
    with pytest.raises(ConfigError, match="val_chunk_size=4 of a StreamLoader"):
        as_validation_loader(stream, ChunkSettings(None, 4), name="val_dataloader")


def test_overfitting_and_chunks_are_refused_together():
    with pytest.raises(ConfigError, match="overfit_batches=2"):
        fit(ChunkedTraining(4), overfit_batches=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_chunk_size": 0}, "train_chunk_size must be at least 1 batch, got 0"),
        ({"val_chunk_size": -3}, "val_chunk_size must be at least 1 batch, got -3"),
        ({"train_chunk_size": 2.5}, "train_chunk_size must be an integer, got 2.5 (float)"),
        ({"train_chunk_size": "many"}, "or a duration such as '10min', got 'many'"),
        ({"train_chunk_size": True}, "must be an integer, got True, which is a bool"),
        ({"max_passes": 0}, "max_passes must be at least 1 pass, got 0"),
        ({"start_chunk": -1}, "start_chunk must be at least 0, got -1"),
        ({"order": "random"}, "order must be one of"),
        ({"cycle": False, "max_passes": 2}, "cycle=False is one pass"),
        ({"train_chunk_size": {"model": 1}}, "not a configuration with a section 'train'"),
        ({"train_chunk_size": {"train": {}}, "seed": 1}, "seed was passed with a configuration"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError) as refused:
        ChunkedTraining(**options)
    assert message in str(refused.value)
