"""`penstock validate` reports every fault of a directory, as text, as JSON and by its exit code."""

import json
import sys

import pytest
import torch

from penstock.cli import main
from penstock.domains.steering import build_steering_directory
from penstock.domains.steering.command import run_validate

VECTORS = (
    *("question_embs", "source_embs", "keyword_embs", "centroid_embs"),
    *("steering_centroid", "steering_keyword_weighted", "steering_residual"),
)


@pytest.fixture
def directory(tmp_path):
    return build_steering_directory(tmp_path / "data", pairs=60, embedding_dim=8)


def test_a_valid_directory_is_reported_as_valid(directory):
    text, code = run_validate(directory, as_json=False)
    assert code == 0 and "is valid: 60 pairs" in text
    text, code = run_validate(directory, as_json=True)
    found = json.loads(text)
    assert code == 0 and found["ok"] and found["facts"]["pairs"] == 60


def test_every_finding_is_named_with_file_row_and_value(directory):
    for name in VECTORS:
        tensor = torch.load(directory / f"{name}.pt")
        tensor[1, :2] = torch.tensor([float("nan"), float("inf")])
        torch.save(tensor, directory / f"{name}.pt")
    text, code = run_validate(directory, as_json=False)
    lines = text.splitlines()
    assert code == 1 and len(lines) >= 15  # more than an error message would show
    assert any("question_embs.pt row 1: NaN detected in question_embs" in line for line in lines)
    text, code = run_validate(directory, as_json=True)
    findings = json.loads(text)["findings"]
    assert code == 1 and len(findings) == len(lines) - 1
    assert {"file", "row", "value", "problem", "rows"} <= set(findings[0])


def penstock(monkeypatch, capsys, *arguments):
    """Exit code and output of `penstock validate`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["penstock", "validate", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr()


def test_the_command_refuses_anything_but_a_dataset(tmp_path, directory, monkeypatch, capsys):
    code, output = penstock(monkeypatch, capsys, tmp_path / "nowhere")
    assert code == 2 and output.out == ""
    assert output.err == f"penstock: there is no directory {tmp_path / 'nowhere'}\n"
    (tmp_path / "rows.zarr").mkdir()
    code, output = penstock(monkeypatch, capsys, tmp_path / "rows.zarr")
    assert code == 2 and "is not a steering dataset" in output.err


def test_the_command_prints_findings_and_exits_with_1(directory, monkeypatch, capsys):
    (directory / "val_idx.pt").unlink()
    code, output = penstock(monkeypatch, capsys, directory, "--json")
    assert code == 1 and "val_idx.pt" in json.loads(output.out)["findings"][0]["file"]
