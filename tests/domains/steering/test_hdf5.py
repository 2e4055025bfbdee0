"""HDF5: the same samples as from .pt files, without the files."""

from __future__ import annotations

import os
import pickle
import sys

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from penstock.domains.steering import JASPERSteeringDataset, convert_to_hdf5, validate_dataset
from penstock.errors import MissingExtraError


def samples(data):
    return data.__getbatch__(np.arange(len(data)))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def alone(directory):
    """Leave only what an HDF5 dataset needs."""
    for path in directory.glob("*.pt"):
        path.unlink()


@pytest.mark.parametrize("compression", ["gzip", "lzf", None])
@pytest.mark.parametrize("mapped", [False, True])
def test_hdf5_gives_what_pt_gives_in_every_split(built, compression, mapped):
    splits = JASPERSteeringDataset.create_combined_splits(built)
    wanted = {split: samples(data) for split, data in splits.items()}
    keywords, identity = splits["train"].pair_keyword_ids, splits["train"].fingerprint()
    path = JASPERSteeringDataset.convert_pt_to_hdf5(built, compression=compression)
    assert path == built / "dataset.h5"
    alone(built)
    for split, batch in wanted.items():
        data = JASPERSteeringDataset(built, split, use_mmap=mapped)
        assert data.storage_format == "hdf5" and same(samples(data), batch)
        assert data.fingerprint() == identity
        copy = pickle.loads(pickle.dumps(data))
        assert same(samples(copy), batch)
    assert data.pair_keyword_ids == keywords
    assert validate_dataset(built).ok


def test_auto_prefers_hdf5_and_pt_can_be_asked_for(built):
    assert JASPERSteeringDataset(built, "train").storage_format == "pt"
    convert_to_hdf5(built)
    assert JASPERSteeringDataset(built, "train").storage_format == "hdf5"
    assert JASPERSteeringDataset(built, "train", storage_format="pt").storage_format == "pt"


def test_the_layout_is_the_formats_own(built):
    convert_to_hdf5(built)
    with h5py.File(built / "dataset.h5") as file:
        assert set(file) == {"embeddings", "pair_data", "negatives", "steering", "splits"}
        assert set(file["negatives"]) == {"hardnegatives", "tiers"}
        assert file["pair_data/keyword_ids/0"].dtype == np.int32
        assert file["steering/residual"].compression == "gzip"


def test_uncompressed_tables_are_mapped(built):
    convert_to_hdf5(built, compression=None)
    data = JASPERSteeringDataset(built, "train", use_mmap=True)
    with open("/proc/self/maps") as maps:
        assert any("dataset.h5" in line for line in maps)
    assert data[0]["steering"].shape == (16,)


def test_another_directory_gets_the_file_and_the_config(built, tmp_path, monkeypatch):
    monkeypatch.chdir(built.parent)
    path = convert_to_hdf5(built.name, tmp_path / "there")
    assert sorted(os.listdir(path.parent)) == ["config.json", "dataset.h5"]
    wanted = samples(JASPERSteeringDataset(built, "val"))
    assert same(samples(JASPERSteeringDataset(path.parent, "val")), wanted)


def test_a_relative_directory_is_converted(built, monkeypatch):
    monkeypatch.chdir(built.parent)
    JASPERSteeringDataset.convert_pt_to_hdf5("built")
    assert (built / "dataset.h5").is_file()


def test_workers_read_hdf5(built):
    convert_to_hdf5(built)
    data = JASPERSteeringDataset(built, "train")
    loader = DataLoader(data, 8, num_workers=1, multiprocessing_context="forkserver")
    got = [batch["negative_embs"] for batch in loader]
    assert torch.equal(torch.cat(got), samples(data)["negative_embs"])


def test_negatives_are_reloaded_from_hdf5(built):
    convert_to_hdf5(built)
    data = JASPERSteeringDataset(built, "train")
    with h5py.File(built / "dataset.h5", "r+") as file:
        file["negatives/hardnegatives"][:] = 0
    data.reload_negatives()
    assert not data.hard_negatives.any()


def test_a_failed_conversion_leaves_nothing_behind(built):
    (built / "steering_residual.pt").write_bytes(b"broken")
    before = sorted(os.listdir(built))
    with pytest.raises(ValueError, match=r"steering_residual\.pt"):
        convert_to_hdf5(built)
    assert sorted(os.listdir(built)) == before


@pytest.mark.parametrize("damage", ["truncate", "other", "missing table", "text"])
def test_a_damaged_file_is_one_sentence(built, damage):
    convert_to_hdf5(built)
    alone(built)
    path = built / "dataset.h5"
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:4000])
    elif damage == "other":
        path.write_bytes(b"nothing of the kind")
    else:
        with h5py.File(path, "r+") as file:
            del file["embeddings/sources"]
            if damage == "text":
                file["embeddings/sources"] = ["a", "b"]
    with pytest.raises(ValueError, match=r"dataset\.h5") as caught:
        JASPERSteeringDataset(built, "train")
    assert "\n" not in str(caught.value)
    assert not validate_dataset(built).ok


def test_without_h5py_pt_is_read_and_hdf5_is_an_import_and_a_value_error(built, monkeypatch):
    convert_to_hdf5(built)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert JASPERSteeringDataset(built, "train").storage_format == "pt"
    with pytest.raises(ValueError, match="h5py is not installed"):
        JASPERSteeringDataset(built, "train", storage_format="hdf5")
    with pytest.raises(ImportError, match="h5py is required"):
        JASPERSteeringDataset.convert_pt_to_hdf5(built)
    with pytest.raises(MissingExtraError, match="pip install"):
        convert_to_hdf5(built)
    alone(built)
    with pytest.raises(ImportError, match="h5py is required"):
        JASPERSteeringDataset(built, "train")


def test_an_unknown_compression_is_refused(built):
    with pytest.raises(ValueError, match="compression must be one of"):
        convert_to_hdf5(built, compression="zip")
