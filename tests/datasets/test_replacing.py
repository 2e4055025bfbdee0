"""Samples that cannot be read are replaced, alike everywhere, and written down."""

import pytest
import torch
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader, PlanError, ReplacingDataset, SourceError

BAD = {3, 11, 12}


class Flawed(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index in BAD:
            raise OSError(f"sample {index} is damaged")
        return torch.tensor(index)


class Broken(Flawed):
    def __getitem__(self, index):
        raise OSError("nothing can be read")


def test_every_step_is_kept_and_any_workers_replace_alike(tmp_path):
    found = []
    for workers in (0, 2):
        file = tmp_path / f"quarantine-{workers}.jsonl"
        dataset = ReplacingDataset(Flawed(), quarantine=file)
        with ChunkedDataLoader(dataset, 3, num_workers=workers) as loader:
            found.append(torch.cat(list(loader)).tolist())
        assert {entry["sample"] for entry in dataset.replaced} == BAD
        assert all("is damaged" in entry["error"] for entry in dataset.replaced)
    assert found[0] == found[1] and len(found[0]) == 20 and not BAD & set(found[0])


def test_the_policy_raise_changes_nothing_and_warn_logs(caplog):
    with pytest.raises(OSError, match="sample 3 is damaged"):
        ReplacingDataset(Flawed(), on_error="raise")[3]
    ReplacingDataset(Flawed(), on_error="warn")[3]
    assert "sample 3 is replaced by" in caplog.text


def test_where_nothing_can_be_read_it_is_said():
    with pytest.raises(SourceError, match="nor can 16 others in its place"):
        ReplacingDataset(Broken())[0]
    with pytest.raises(PlanError, match="on_error must be one of"):
        ReplacingDataset(Flawed(), on_error="ignore")


def test_indices_past_the_end_are_errors_and_those_from_the_end_are_replaced():
    class Listed(Flawed):
        def __getitem__(self, index):
            if not -20 <= index < 20:
                raise IndexError(index)
            return super().__getitem__(index % 20)

    dataset = ReplacingDataset(Listed())
    assert len(list(dataset)) == 20  # a loop over indices ends with the IndexError
    assert torch.equal(dataset[-17], dataset[3])
    with pytest.raises(IndexError):
        dataset[20]
