"""The command names every fault of a directory, for people and machines, by its exit code too."""

import json
import subprocess
import sys

import pytest
import torch

from penstock.domains.steering import build_steering_directory
from penstock.domains.steering.command import run_validate

VECTORS = (
    *("question_embs", "source_embs", "keyword_embs", "centroid_embs"),
    *("steering_centroid", "steering_keyword_weighted", "steering_residual"),
)


@pytest.fixture
def directory(tmp_path):
    return build_steering_directory(tmp_path / "data", pairs=60, embedding_dim=8)


def validated(capsys, directory, as_json=False):
    with pytest.raises(SystemExit) as left:
        run_validate(directory, as_json=as_json)
    return left.value.code, capsys.readouterr()


def test_a_sound_directory_is_told_so(directory, capsys):
    code, said = validated(capsys, directory)
    assert code == 0 and "is valid: 60 pairs" in said.out
    code, said = validated(capsys, directory, as_json=True)
    found = json.loads(said.out)
    assert code == 0 and found["ok"] and found["facts"]["pairs"] == 60


def test_every_finding_is_named_with_file_row_and_value(directory, capsys):
    for name in VECTORS:
        tensor = torch.load(directory / f"{name}.pt")
        tensor[1, :2] = torch.tensor([float("nan"), float("inf")])
        torch.save(tensor, directory / f"{name}.pt")
    code, said = validated(capsys, directory)
    lines = said.out.splitlines()
    assert code == 1 and len(lines) >= 15  # more than an error message would show
    assert any("question_embs.pt row 1: NaN detected in question_embs" in line for line in lines)
    code, said = validated(capsys, directory, as_json=True)
    findings = json.loads(said.out)["findings"]
    assert code == 1 and len(findings) == len(lines) - 1
    assert {"file", "row", "value", "problem", "rows"} <= set(findings[0])


def test_the_command_refuses_what_is_no_directory(tmp_path, directory):
    def penstock(*arguments):
        command = [sys.executable, "-m", "penstock", "validate", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = penstock(tmp_path / "nowhere")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"penstock: there is no directory {tmp_path / 'nowhere'}\n"
    (tmp_path / "rows.zarr").mkdir()
    done = penstock(tmp_path / "rows.zarr")
    assert done.returncode == 2 and "is no steering dataset" in done.stderr
    (directory / "val_idx.pt").unlink()
    done = penstock(directory, "--json")
    assert done.returncode == 1 and "val_idx.pt" in json.loads(done.stdout)["findings"][0]["file"]
