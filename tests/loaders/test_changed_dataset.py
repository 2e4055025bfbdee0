"""A loader looks at its dataset and its settings again at every iteration, as torch's does."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from penstock import ChunkedDataLoader, PlanError, ShuffledOrder, StreamLoader
from penstock.loaders.partition import validation_loader
from penstock.testing import same_batch

EXECUTORS = {
    "inline": {},
    "threads": {"executor": "threads"},
    "workers": {"num_workers": 1, "persistent_workers": False},
    "persistent workers": {"num_workers": 1},
}


class Scaled(Dataset):
    """An attribute that is read with every sample."""

    def __init__(self, scale=1):
        self.scale, self.samples = scale, 6

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.scale * index


def negative(samples):
    return -default_collate(samples)


def replace_tensors():
    dataset = TensorDataset(torch.arange(6), torch.arange(6) * 10)

    def change(loader):
        dataset.tensors = (torch.arange(6) + 100, torch.arange(6) + 200)

    return dataset, change


def replace_indices():
    dataset = Subset(TensorDataset(torch.arange(10)), [0, 1, 2, 3, 4, 5])

    def change(loader):
        dataset.indices = [9, 8, 7, 6, 5, 4]

    return dataset, change


def replace_inner():
    dataset = Subset(TensorDataset(torch.arange(10)), [0, 1, 2, 3, 4, 5])

    def change(loader):
        dataset.dataset = TensorDataset(torch.arange(10) + 100)

    return dataset, change


def replace_collate():
    def change(loader):
        loader.collate_fn = negative

    return torch.arange(6), change


def grow():
    dataset = [1, 2, 3, 4]

    def change(loader):
        dataset.extend([5, 6])

    return dataset, change


def shrink():
    dataset = [1, 2, 3, 4]

    def change(loader):
        del dataset[3:]

    return dataset, change


def shorter_tensors():
    dataset = TensorDataset(torch.arange(6))

    def change(loader):
        dataset.tensors = (torch.arange(3),)

    return dataset, change


CHANGES = {
    change.__name__: change
    for change in (
        replace_tensors,
        replace_indices,
        replace_inner,
        replace_collate,
        grow,
        shrink,
        shorter_tensors,
    )
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_replaced_between_epochs_is_seen_as_with_torch(name, executor):
    results = []
    for make in (DataLoader, lambda *args: ChunkedDataLoader(*args, **EXECUTORS[executor])):
        dataset, change = CHANGES[name]()
        loader = make(dataset, 2)
        before = list(loader)
        change(loader)
        results.append((before, len(loader), list(loader), list(loader)))
        if isinstance(loader, ChunkedDataLoader):
            loader.close()
    assert same_batch(*results)


@pytest.mark.parametrize("executor", ["inline", "threads", "workers"])
def test_an_attribute_of_the_dataset_is_seen_in_the_next_epoch(executor):
    dataset = Scaled()
    with ChunkedDataLoader(dataset, 2, **EXECUTORS[executor]) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        dataset.scale = 10
        assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40, 50]]


def test_persistent_workers_keep_the_copy_they_started_with_as_torchs_do():
    results = []
    for kind in (DataLoader, ChunkedDataLoader):
        dataset = Scaled()
        loader = kind(dataset, 2, num_workers=1, persistent_workers=True)
        first = list(loader)
        dataset.scale = 10
        results.append((first, list(loader)))
        if kind is ChunkedDataLoader:
            loader.close()
            assert next(iter(loader)).tolist() == [0, 10]  # new workers have a new copy
            loader.close()
        else:
            del loader
    assert same_batch(*results)


def test_indices_changed_in_place_are_seen():
    dataset = Subset(TensorDataset(torch.arange(10)), [0, 1, 2])
    loader = ChunkedDataLoader(dataset, 3)
    list(loader)
    dataset.indices[:] = [7, 8, 9]
    assert next(iter(loader))[0].tolist() == [7, 8, 9]


def test_tensors_replaced_within_an_epoch_are_seen_at_once_as_with_torch():
    for kind in (DataLoader, ChunkedDataLoader):
        dataset = TensorDataset(torch.zeros(4))
        batches = iter(kind(dataset, 2))
        next(batches)
        dataset.tensors = (torch.ones(4),)
        assert next(batches)[0].tolist() == [1, 1]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_replaced_between_two_chunks_is_seen(executor):
    dataset = TensorDataset(torch.arange(8))
    options = EXECUTORS[executor]
    with ChunkedDataLoader(dataset, 2, 2, shuffle=False, **options) as loader:
        assert torch.cat([x for (x,) in loader]).tolist() == [0, 1, 2, 3]
        dataset.tensors = (torch.arange(8) + 100,)
        assert torch.cat([x for (x,) in loader]).tolist() == [104, 105, 106, 107]


@pytest.mark.parametrize("kind", [DataLoader, ChunkedDataLoader])
def test_settings_of_workers_may_be_assigned(kind):
    loader = kind(Scaled(), 2)
    assert len(list(loader)) == 3
    loader.num_workers, loader.prefetch_factor = 1, 2
    assert len(list(loader)) == 3
    loader.num_workers = 0
    assert len(list(loader)) == 3
    if kind is ChunkedDataLoader:
        loader.close()


def test_the_order_of_a_new_size_is_that_of_a_new_loader():
    for shuffle in (True, False):
        data = list(range(20))
        loader = ChunkedDataLoader(data, 3, 4, shuffle=shuffle)
        while loader.state_dict()["epoch"] == 0:
            list(loader)
        data += [20, 21, 22]
        fresh = ChunkedDataLoader(list(range(23)), 3, 4, shuffle=shuffle)
        fresh.seek(1)
        assert (len(loader), loader.remaining, loader.total_chunks) == (4, 4, 2)
        assert loader.state_dict() == fresh.state_dict()
        assert same_batch([list(loader) for _ in range(3)], [list(fresh) for _ in range(3)])


def test_another_size_in_the_middle_of_an_epoch_is_refused_with_what_to_do():
    data = list(range(10))
    loader = ChunkedDataLoader(data, 2, 2)
    list(loader)
    data += [10, 11]
    words = r"has 12 samples now, but epoch 0 began with 10: restore it .* loader\.seek\(1\)"
    for ask in (lambda: next(iter(loader)), loader.peek):
        with pytest.raises(PlanError, match=words):
            ask()
    assert len(loader) == 2 and loader.state_dict()["samples"] == 10  # of the epoch it is in
    # restored, it continues
    del data[10:]
    assert len(list(loader)) == 2
    # or an epoch of the new size begins
    data += [10, 11]
    loader.seek(1)
    seen = [i for _ in range(3) for batch in loader for i in batch.tolist()]
    assert sorted(seen) == list(range(12)) and loader.state_dict()["samples"] == 12


def test_an_epoch_that_was_left_by_break_is_over_when_the_size_changes():
    data = list(range(10))
    loader = ChunkedDataLoader(data, 2)
    next(iter(loader))
    data += [10, 11]
    assert (len(loader), loader.remaining) == (6, 6)
    assert len(list(loader)) == 6 and loader.state_dict()["epoch"] == 2


def test_an_epoch_keeps_the_size_it_began_with():
    data = list(range(6))
    loader, seen = ChunkedDataLoader(data, 2), []
    for batch in loader:
        data.append(0)
        assert len(loader) == 3
        seen += batch.tolist()
    assert seen == list(range(6)) and len(loader) == 5


def test_a_state_of_the_new_size_can_be_loaded_in_the_middle_of_an_old_epoch():
    data = list(range(10))
    loader = ChunkedDataLoader(data, 2, 2)
    list(loader)
    data += [10, 11]
    other = ChunkedDataLoader(list(range(12)), 2, 2)
    list(other)
    loader.load_state_dict(other.state_dict())
    assert same_batch(list(loader), list(other))


def test_an_order_of_ones_own_is_refused_for_another_size():
    class Own(ShuffledOrder):
        kind = "own"

    data = list(range(10))
    loader = ChunkedDataLoader(data, 2, order=Own(10, 3))
    list(loader)
    data += [10, 11]
    with pytest.raises(PlanError, match="has 12 samples now, the order has 10: build the loader"):
        next(iter(loader))
    assert len(list(ChunkedDataLoader(data, 2, order=Own(12, 3)))) == 6


def test_a_dataset_that_became_empty_is_refused_and_can_still_be_shown():
    data = list(range(10))
    loader = ChunkedDataLoader(data, 2)
    data.clear()
    with pytest.raises(PlanError, match="cannot order 0 samples"):
        next(iter(loader))
    assert "cannot order 0 samples" in repr(loader)


def test_validation_follows_its_partition():
    data = list(range(40))
    loader = validation_loader(data, 4, 2)
    assert same_batch(list(loader), list(loader))
    del data[10:]
    seen = torch.cat(list(loader)).tolist()
    assert len(seen) == 8 and max(seen) < 10
    assert same_batch(list(loader), list(validation_loader(data, 4, 2)))


def test_evaluation_has_the_size_there_is():
    data = list(range(5))
    loader = ChunkedDataLoader(data, 2, evaluation=True)
    next(iter(loader))
    data += [5, 6, 7]
    assert len(loader) == 4 and torch.cat(list(loader)).tolist() == list(range(8))


def test_a_state_has_the_fingerprint_of_the_data_there_is():
    dataset = TensorDataset(torch.arange(6))
    loader = ChunkedDataLoader(dataset, 2)
    before = loader.state_dict()["fingerprint"]
    list(loader)
    dataset.tensors = (torch.arange(6) + 1,)
    list(loader)
    after = loader.state_dict()
    assert after["fingerprint"] != before
    ChunkedDataLoader(TensorDataset(torch.arange(6) + 1), 2).load_state_dict(after)


def test_a_stream_reads_the_array_it_was_given():
    data = np.zeros((8, 1), np.float32)
    with StreamLoader(data, 4, shuffle=False) as loader:
        assert torch.cat(list(loader)).sum() == 0
