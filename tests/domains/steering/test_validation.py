"""Validation of a whole directory: cross checks, and the report."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from penstock.domains.steering import (
    JASPERSteeringDataset,
    validate_dataset,
)


def change(directory, name, edit):
    tensor = torch.load(directory / f"{name}.pt")
    torch.save(edit(tensor), directory / f"{name}.pt")


def put(directory, name, at, value):
    def edit(tensor):
        tensor[at] = value
        return tensor

    change(directory, name, edit)


def only(directory):
    report = validate_dataset(directory)
    assert len(report.findings) == 1, str(report)
    return report.findings[0]


def test_a_fault_in_many_rows_is_one_finding(built):
    put(built, "steering_residual", (slice(7, 50, 4), 1), float("nan"))
    put(built, "hard_negatives", (slice(3, 60, 10), 0), -1)
    put(built, "pair_relevance", slice(20, 30), 4.0)
    found = {f.file: (f.row, f.rows) for f in validate_dataset(built).findings}
    assert found == {
        "steering_residual.pt": (7, 11),
        "hard_negatives.pt": (3, 6),
        "pair_relevance.pt": (20, 10),
    }


def test_a_pairs_own_source_among_its_negatives_is_found(built):
    own = int(torch.load(built / "pair_index.pt")[17, 1])
    put(built, "hard_negatives", (17, 2), own)
    found = only(built)
    assert (found.file, found.row, found.value) == ("hard_negatives.pt", 17, own)
    assert "the pair's own source" in found.problem


def test_a_pair_in_two_splits_is_found(built):
    stolen = int(torch.load(built / "train_idx.pt")[5])
    change(built, "test_idx", lambda rows: torch.cat([rows, torch.tensor([stolen])]))
    report = validate_dataset(built)
    found = next(f for f in report.findings if "is in train_idx.pt too" in f.problem)
    assert (found.file, found.value) == ("test_idx.pt", stolen)


def test_a_pair_twice_in_a_split_is_found(built):
    again = int(torch.load(built / "train_idx.pt")[2])
    change(built, "train_idx", lambda rows: torch.cat([rows, rows[2:3]]))
    found = only(built)
    assert f"train_idx has pair {again} twice" in found.problem


def test_a_pair_in_no_split_is_found(built):
    lost = int(torch.load(built / "train_idx.pt")[-1])
    change(built, "train_idx", lambda rows: rows[:-1].clone())
    found = only(built)
    assert found.problem == f"pair {lost} is in no split"


def test_a_question_in_two_splits_is_found(built):
    index = torch.load(built / "pair_index.pt")
    train, val = (torch.load(built / f"{s}_idx.pt") for s in ("train", "val"))
    question = int(index[train[0], 0])
    put(built, "pair_index", (int(val[1]), 0), question)
    report = validate_dataset(built)
    found = next(f for f in report.findings if "question" in f.problem)
    assert (found.file, found.row, found.value) == ("val_idx.pt", 1, question)
    assert "has pairs in train_idx.pt too" in found.problem


def test_an_empty_split_is_found(built):
    change(built, "val_idx", lambda rows: rows[:0])
    said = [f.problem for f in validate_dataset(built).findings]
    assert "val_idx.pt has no pairs: a split needs at least one" in said


def test_counts_of_the_config_are_held_against_the_files(built):
    config = json.loads((built / "config.json").read_text())
    (built / "config.json").write_text(json.dumps(config | {"n_sources": 3}))
    found = only(built)
    assert found.file == "config.json" and "n_sources is 3, but source_embs.pt has" in found.problem
    JASPERSteeringDataset(built, "train")  # the files are what counts


def test_several_faults_are_all_reported(built):
    put(built, "question_embs", (3, 1), float("nan"))
    put(built, "negative_tiers", (9, 0), 9)
    (built / "test_idx.pt").unlink()
    report = validate_dataset(built)
    assert {f.file for f in report.findings} == {
        "question_embs.pt",
        "negative_tiers.pt",
        "test_idx.pt",
    }
    with pytest.raises(ValueError, match="has 3 faults"):
        report.raise_if_any()
    assert len(json.loads(report.to_json())["findings"]) == 3


def test_what_a_first_batch_cannot_see_is_found(built):
    """The last row of all: no first batch has it."""
    put(built, "steering_keyword_weighted", (119, 0), float("inf"))
    assert only(built).row == 119


def test_nothing_to_look_at_is_a_finding_too(tmp_path):
    for directory, message in (
        (tmp_path / "nowhere", "Dataset directory not found"),
        (tmp_path, "Config file not found"),
    ):
        report = validate_dataset(directory)
        assert len(report.findings) == 1 and message in report.findings[0].problem
    (tmp_path / "config.json").write_text('{"embedding_dim": 8, "n_neg": 2}')
    assert "No dataset files found" in str(validate_dataset(tmp_path))


def test_hdf5_findings_name_the_file_and_the_dataset_in_it(built):
    h5py = pytest.importorskip("h5py")
    JASPERSteeringDataset.convert_pt_to_hdf5(built)
    with h5py.File(built / "dataset.h5", "r+") as file:
        file["steering/residual"][44, 3] = np.nan
        file["negatives/tiers"][2, 1] = 5
        del file["splits/val"]
    found = {f.file: f for f in validate_dataset(built).findings}
    assert found["dataset.h5:steering/residual"].row == 44
    assert found["dataset.h5:negatives/tiers"].value == 5
    assert "not found" in found["dataset.h5:splits/val"].problem
    assert validate_dataset(built, "pt").ok
