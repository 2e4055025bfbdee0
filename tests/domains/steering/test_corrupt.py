"""Every file of a directory, damaged in every way: one clear sentence each, and nothing runs."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    validate_dataset,
)

NAMES = [
    "question_embs",
    "source_embs",
    "keyword_embs",
    "centroid_embs",
    "pair_index",
    "pair_cluster_id",
    "pair_relevance",
    "pair_keyword_ids",
    "hard_negatives",
    "negative_tiers",
    "steering_centroid",
    "steering_keyword_weighted",
    "steering_residual",
    "centroid_distances",
    "train_idx",
    "val_idx",
    "test_idx",
]
TENSORS = [name for name in NAMES if name != "pair_keyword_ids"]
BAD_VALUES = {
    "question_embs": (float("nan"), "NaN detected in question_embs"),
    "source_embs": (float("inf"), "Inf detected in source_embs"),
    "keyword_embs": (float("-inf"), "Inf detected in keyword_embs"),
    "centroid_embs": (float("nan"), "NaN detected in centroid_embs"),
    "pair_index": (-7, "pair_index references question -7, but only"),
    "pair_cluster_id": (77, "pair_cluster_id references cluster 77, but only 5 clusters exist"),
    "pair_relevance": (1.5, "pair_relevance out of range [0, 1]: 1.5"),
    "hard_negatives": (-1, "hard_negatives references source -1, but only"),
    "negative_tiers": (0, "negative_tiers out of range [1, 4]: 0"),
    "steering_centroid": (float("nan"), "NaN detected in steering_centroid"),
    "steering_keyword_weighted": (float("nan"), "NaN detected in steering_keyword_weighted"),
    "steering_residual": (float("inf"), "Inf detected in steering_residual"),
    "centroid_distances": (2.5, "centroid_distances out of range [0, 2]: 2.5"),
    "train_idx": (-1, "Split indices reference pair -1, but only 60 pairs exist"),
    "val_idx": (60, "Split indices reference pair 60, but only 60 pairs exist"),
    "test_idx": (10**12, "Split indices reference pair 1000000000000, but only 60 pairs exist"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return build_steering_directory(tmp_path_factory.mktemp("sound"), pairs=60, embedding_dim=8)


@pytest.fixture
def directory(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def findings(directory: Path, name: str) -> list[str]:
    """What validation says of this file: the first thing it says at all."""
    report = validate_dataset(directory)
    assert report.findings, "nothing was found"
    of_file = [str(f) for f in report.findings if f.file == f"{name}.pt"]
    assert of_file, [str(f) for f in report.findings]
    assert all("\n" not in text for text in of_file)
    return of_file


def refused(directory: Path, name: str) -> str:
    """What the dataset says when it is built on the split concerned."""
    split = name.removesuffix("_idx") if name.endswith("_idx") else "train"
    with pytest.raises(ValueError) as caught:
        JASPERSteeringDataset(directory, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_sound_directory_has_no_findings(directory):
    report = validate_dataset(directory)
    report.raise_if_any()
    assert report.facts["pairs"] == 60


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(directory, name):
    (directory / f"{name}.pt").unlink()
    assert len(findings(directory, name)) == 1
    assert f"{name}.pt not found" in findings(directory, name)[0]
    said = refused(directory, name)
    assert f"{name}.pt" in said and "not found" in said


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_named(directory, name, mapped):
    path = directory / f"{name}.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert findings(directory, name) == findings(directory, name)
    assert f"{name}.pt cannot be read" in findings(directory, name)[0]
    if name != "pair_keyword_ids":  # which batches do not need: it is read when asked for
        assert f"{name}.pt cannot be read" in refused(directory, name)
    else:
        data = JASPERSteeringDataset(directory, "train", use_mmap=mapped)
        with pytest.raises(ValueError, match=r"pair_keyword_ids\.pt cannot be read"):
            _ = data.pair_keyword_ids


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [b"", b"not a tensor", b"PK\x03\x04" + bytes(40)])
def test_a_file_of_something_else_is_named(directory, name, content):
    (directory / f"{name}.pt").write_bytes(content)
    said = findings(directory, name)
    assert "cannot be read" in said[0] or "is refused" in said[0]
    if name != "pair_keyword_ids":
        refused(directory, name)


@pytest.mark.parametrize("name", TENSORS)
def test_another_shape_is_named(directory, name):
    tensor = torch.load(directory / f"{name}.pt")
    torch.save(tensor.unsqueeze(-1), directory / f"{name}.pt")
    wanted = f"{name}.pt must be"
    assert wanted in findings(directory, name)[0] and "found" in findings(directory, name)[0]
    assert wanted in refused(directory, name)


@pytest.mark.parametrize("name", [n for n in TENSORS if "_embs" not in n and "_idx" not in n])
def test_another_length_is_named(directory, name):
    tensor = torch.load(directory / f"{name}.pt")
    torch.save(tensor[:-1].clone(), directory / f"{name}.pt")
    report = validate_dataset(directory)
    with pytest.raises(ValueError, match="of shape"):
        report.raise_if_any()
    with pytest.raises(ValueError, match="of shape"):
        JASPERSteeringDataset(directory, "train")


@pytest.mark.parametrize("name", TENSORS)
def test_another_dtype_is_named(directory, name):
    tensor = torch.load(directory / f"{name}.pt")
    other = torch.float64 if tensor.is_floating_point() else torch.int32
    torch.save(tensor.to(other), directory / f"{name}.pt")
    found = f"found {str(other).removeprefix('torch.')}"
    assert found in findings(directory, name)[0]
    assert found in refused(directory, name)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, 3, torch.empty(2, 2, device="meta")])
def test_something_else_than_a_tensor_is_named(directory, name, value):
    torch.save(value, directory / f"{name}.pt")
    assert f"{name}.pt must hold one tensor" in findings(directory, name)[0]
    assert f"{name}.pt must hold one tensor" in refused(directory, name)


@pytest.mark.parametrize("name", BAD_VALUES)
def test_one_bad_value_is_found_by_file_row_and_value(directory, name):
    value, message = BAD_VALUES[name]
    tensor = torch.load(directory / f"{name}.pt")
    row = len(tensor) - 1
    tensor[(row, 0)[: tensor.ndim]] = value
    torch.save(tensor, directory / f"{name}.pt")
    found = [f for f in validate_dataset(directory).findings if message in f.problem]
    assert len(found) == 1
    assert (found[0].file, found[0].row, found[0].rows) == (f"{name}.pt", row, 1)
    assert str(found[0].value) == str(float(value) if tensor.is_floating_point() else value)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0]] * 59 + [[999]], "pair_keyword_ids references keyword 999, but only 30 keywords"),
        ([[0]] * 59 + [[-1]], "pair_keyword_ids references keyword -1, but only 30 keywords"),
        ([[0]] * 59, "must have 60 lists, one for each pair, found 59"),
        ([[0]] * 59 + ["a"], "row 59 must be a list of integers"),
        ([[0]] * 59 + [[0.5]], "row 59 must be a list of integers"),
        ("abc", "must hold a list of lists, found str"),
        ((torch.tensor([0, 2, 1]), torch.tensor([3])), "offsets that decrease"),
        ((torch.tensor([0, 2]), torch.tensor([3])), "offsets from 0 to the number of values"),
    ],
)
def test_bad_keyword_ids_are_named(directory, ids, message):
    torch.save(ids, directory / "pair_keyword_ids.pt")
    assert message in findings(directory, "pair_keyword_ids")[0]


def test_keyword_ids_may_be_offsets_and_values(directory):
    lists = torch.load(directory / "pair_keyword_ids.pt")
    lengths = torch.tensor([0, *(len(ids) for ids in lists)])
    values = torch.tensor([i for ids in lists for i in ids])
    torch.save((lengths.cumsum(0), values), directory / "pair_keyword_ids.pt")
    assert validate_dataset(directory).ok
    assert JASPERSteeringDataset(directory, "train").pair_keyword_ids == lists


class Payload:
    """Pickles to a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_that_runs_code_is_refused_unrun(directory, name, legacy, tmp_path):
    marker, path = tmp_path / "ran", directory / f"{name}.pt"
    payload = [Payload(marker)] if name == "pair_keyword_ids" else Payload(marker)
    torch.save(payload, path, _use_new_zipfile_serialization=not legacy)
    said = findings(directory, name)
    assert "refused" in said[0] and len(said) == 1
    if name != "pair_keyword_ids":
        assert "refused" in refused(directory, name)
    else:
        with pytest.raises(ValueError, match="refused"):
            _ = JASPERSteeringDataset(directory, "train").pair_keyword_ids
    path.write_bytes(pickle.dumps(payload))
    assert "refused" in findings(directory, name)[0]
    assert not marker.exists()


def test_a_tensor_in_the_old_format_is_read_mapped_or_not(directory):
    path = directory / "source_embs.pt"
    tensor = torch.load(path)
    torch.save(tensor, path, _use_new_zipfile_serialization=False)
    for mapped in (False, True):
        data = JASPERSteeringDataset(directory, "train", use_mmap=mapped)
        assert torch.equal(data.source_embs, tensor)
    assert validate_dataset(directory).ok
