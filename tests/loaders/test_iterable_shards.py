"""An iterable dataset on several workers or ranks is split, or refused: no sample comes twice."""

import json
import sys
from functools import partial
from pathlib import Path

import datasets
import datasets.distributed
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock import ChunkedDataLoader, DataLoaderConfig, DataLoaderFactory, PlanError
from penstock.datamodules import UniversalDataModule
from penstock.loaders import ReplayLoader
from penstock.loaders.pass_through import share_of_rank
from penstock.order import Topology
from tests.distributed.process_groups import run_ranks

SAMPLES = 24


class Whole(IterableDataset):
    """Gives all samples to each who reads it."""

    def __iter__(self):
        return iter(range(SAMPLES))


class ByWorker(IterableDataset):
    """Split as torch's documentation shows it."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, SAMPLES, step))


class ByMethod(ByWorker):
    def __iter__(self):
        return (i for i in super().__iter__())


def my_part():
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


class Elsewhere(IterableDataset):
    """Split, but by a function of its module: only its author can know."""

    def __iter__(self):
        first, step = my_part()
        return iter(range(first, SAMPLES, step))


class Range(IterableDataset):
    """Split by a ``worker_init_fn``, as torch's documentation shows it too."""

    def __init__(self):
        self.start, self.step = 0, 1

    def __iter__(self):
        return iter(range(self.start, SAMPLES, self.step))


def split_range(scale, worker):
    info = get_worker_info()
    info.dataset.start, info.dataset.step = worker, info.num_workers


def hugging_face(shards=4):
    data = datasets.Dataset.from_dict({"i": list(range(SAMPLES))})
    return data.to_iterable_dataset(num_shards=shards)


def seen(loader):
    batches = [batch["i"] if isinstance(batch, dict) else batch for batch in loader]
    return sorted(torch.cat(batches).tolist())


def declared(dataset):
    dataset.sharded = True
    return dataset


# -- workers


def test_workers_that_would_each_read_all_are_refused_with_what_to_do():
    with pytest.raises(PlanError, match="num_workers=2 would deliver every sample 2 times") as no:
        ChunkedDataLoader(Whole(), 4, num_workers=2)
    words = str(no.value)
    assert "use num_workers=1" in words
    assert seen(ChunkedDataLoader(Whole(), 4, num_workers=1)) == list(range(SAMPLES))
    assert "get_worker_info() in __iter__" in words
    assert seen(ChunkedDataLoader(ByWorker(), 4, num_workers=2)) == list(range(SAMPLES))
    assert "set dataset.sharded = True if it is split elsewhere" in words
    with pytest.raises(PlanError, match="would deliver every sample"):
        ChunkedDataLoader(Elsewhere(), 4, num_workers=2)
    loader = ChunkedDataLoader(declared(Elsewhere()), 4, num_workers=2)
    assert seen(loader) == list(range(SAMPLES))


def test_workers_added_later_are_refused_too():
    loader = ChunkedDataLoader(Whole(), 4)
    loader.num_workers, loader.prefetch_factor = 2, 2
    with pytest.raises(PlanError, match="every sample 2 times"):
        iter(loader)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (ByWorker(), {}),
        (ByMethod(), {}),
        (Range(), {"worker_init_fn": partial(split_range, 1)}),
        (hugging_face(), {}),
        (hugging_face(shards=1), {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*num_shards:UserWarning")
def test_what_asks_for_its_worker_is_split(dataset, options):
    loader = ChunkedDataLoader(dataset, 4, num_workers=2, **options)
    assert seen(loader) == list(range(SAMPLES))


def test_the_factory_reads_with_one_worker_what_does_not_split(caplog):
    config = DataLoaderConfig(batch_size=4, num_workers=2)
    loader = DataLoaderFactory.create_dataloader(Whole(), config)
    assert loader.num_workers == 1 and seen(loader) == list(range(SAMPLES))
    assert "num_workers=1 instead of 2" in caplog.text
    loader = DataLoaderFactory.create_dataloader(declared(Elsewhere()), config)  # as advised
    assert loader.num_workers == 2 and seen(loader) == list(range(SAMPLES))
    with pytest.raises(PlanError, match="every sample 2 times"):  # asked for by the caller
        DataLoaderFactory.create_training_loader(Whole(), 4, num_workers=2)


def test_a_data_module_reads_with_one_worker_what_does_not_split():
    module = UniversalDataModule(Whole(), batch_size=4, num_workers=2, val_split=0)
    loader = module.train_dataloader()
    assert isinstance(loader, ReplayLoader) and loader.num_workers == 1
    assert seen(loader) == list(range(SAMPLES))
    loader.close()


# -- ranks


def test_ranks_that_would_each_read_all_are_refused():
    two = Topology(0, 2)
    for dataset in (Whole(), ByWorker()):
        with pytest.raises(PlanError, match="2 ranks would deliver every sample 2 times") as no:
            share_of_rank(dataset, two)
    assert "__iter__ and set dataset.sharded = True, or use a map-style dataset" in str(no.value)
    assert share_of_rank(Whole(), Topology(0, 1)) is not None
    whole = declared(Whole())
    assert share_of_rank(whole, two) is whole


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_a_hugging_face_stream_is_split_once_by_its_own_means(shards):
    shares = [share_of_rank(hugging_face(shards), Topology(rank, 2)) for rank in range(2)]
    assert sorted(row["i"] for share in shares for row in share) == list(range(SAMPLES))
    again = [share_of_rank(share, Topology(rank, 2)) for rank, share in enumerate(shares)]
    assert all(one is other for one, other in zip(again, shares, strict=True))


class ByRank(IterableDataset):
    sharded = True

    def __iter__(self):
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(rank * workers + worker, SAMPLES, world * workers))


MADE = {
    "whole": lambda: ChunkedDataLoader(Whole(), 4),
    "whole, replayed": lambda: replayed(Whole()),
    "hugging face": lambda: ChunkedDataLoader(hugging_face(), 4),
    "hugging face, replayed": lambda: replayed(hugging_face()),
    "hugging face, resumed": lambda: resumed(hugging_face),
    "hugging face, resumed, 2 workers": lambda: resumed(hugging_face, num_workers=2),
    "hugging face, split by the user": lambda: resumed(split_by_node),
    "declared": lambda: ChunkedDataLoader(ByRank(), 4),
    "declared, 2 workers": lambda: ChunkedDataLoader(ByRank(), 4, num_workers=2),
    "map-style": lambda: ChunkedDataLoader(range(SAMPLES), 4),
}


def replayed(dataset, num_workers=0):
    return ReplayLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=None, seed=1)


def split_by_node():
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return datasets.distributed.split_dataset_by_node(hugging_face(), rank, world)


def resumed(make, num_workers=0):
    """Yield a batch of a loader, and the rest from another one that loads its state."""
    first, second = replayed(make(), num_workers), replayed(make(), num_workers)
    yield next(iter(first))
    state = first.state_dict()
    first.close()
    assert state["dataset"]["rank"] == torch.distributed.get_rank()
    second.load_state_dict(state)
    yield from second


def rank_of_two(rank, world, folder, early):
    """What this rank reads, or is refused, with loaders built before and after there are ranks."""
    results = {}
    for when, loaders in (("before", early), ("after", MADE)):
        for name, make in loaders.items():
            try:
                results[f"{name}, built {when}"] = seen(make())
            except PlanError as error:
                results[f"{name}, built {when}"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(results))


def test_on_two_real_ranks_every_sample_comes_once_or_not_at_all(commands, tmp_path):
    done = commands.program(tmp_path, __file__, tmp_path)
    assert done.code == 0, done.err
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert len(first) == 2 * len(MADE)
    for name, read in first.items():
        if name.startswith("whole"):
            assert "2 ranks would deliver every sample 2 times" in read
            assert second[name] == read
        else:
            assert sorted(read + second[name]) == list(range(SAMPLES)), name


if __name__ == "__main__":
    built = {name: partial(lambda loader: loader, make()) for name, make in MADE.items()}
    sys.exit(max(run_ranks(2, rank_of_two, Path(sys.argv[1]), built)))
