"""The CSV log of a run that is killed and resumed is that of one that was not."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.training.run.directory import CsvLog

names = st.sampled_from(["loss", "val/loss", "epoch", 'odd,"name"'])
lines = st.lists(st.dictionaries(names, st.floats(-1e3, 1e3), min_size=1), min_size=1, max_size=6)


def log(root, rows, start=0, keep_below=0):
    logger = CsvLog(root, keep_below)
    assert logger.experiment is not None  # Lightning asks for it before anything is logged
    for step, row in enumerate(rows, start):
        logger.log_metrics(row, step)
        logger.save()
    logger.finalize("success")
    return root / "csv" / "metrics.csv"


def read(path):
    with path.open(newline="") as file:
        return [{k: v for k, v in line.items() if v} for line in csv.DictReader(file)]


@settings(max_examples=25)
@given(lines, st.data())
def test_no_line_is_lost_and_none_is_there_twice(tmp_path_factory, rows, data):
    whole = log(tmp_path_factory.mktemp("whole"), rows)
    killed = tmp_path_factory.mktemp("killed")
    saved = data.draw(st.integers(0, len(rows)))
    reached = data.draw(st.integers(saved, len(rows)))
    path = log(killed, rows[:reached])
    if reached and data.draw(st.booleans()):  # killed as it wrote the next line
        with path.open("a") as file:
            file.write("0.1")
    assert read(log(killed, rows[saved:], saved, keep_below=saved)) == read(whole)


def test_a_log_that_begins_anew_forgets_the_one_before(tmp_path):
    log(tmp_path, [{"loss": 1.0}] * 3)
    assert read(log(tmp_path, [{"loss": 2.0}])) == [{"loss": "2.0", "step": "0"}]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_writes(tmp_path, monkeypatch, rank):
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", rank)
    logger = CsvLog(tmp_path)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.finalize("success")
    assert (tmp_path / "csv").exists() == (rank == 0)
