"""The machine as a container lets it be seen."""

import os

import pytest

from penstock.streaming.budget import UNLIMITED, quota_cores
from penstock.tuning.machine import limit_bytes, this_machine


@pytest.mark.parametrize(
    ("text", "cores"),
    [("400000 100000", 4), ("50000 100000", 1), ("max 100000", UNLIMITED), ("?", UNLIMITED)],
)
def test_a_quota_limits_the_cores(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path) == cores


@pytest.mark.parametrize(("text", "limit"), [("1000000\n", 10**6), ("max\n", UNLIMITED)])
def test_a_limit_bounds_the_memory(tmp_path, text, limit):
    (tmp_path / "memory.max").write_text(text)
    assert limit_bytes(tmp_path) == limit


def test_no_files_are_no_limits(tmp_path):
    assert quota_cores(tmp_path) == limit_bytes(tmp_path) == UNLIMITED


def test_this_machine_has_no_more_than_affinity_allows():
    machine = this_machine()
    assert 1 <= machine.cores <= len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes < UNLIMITED
