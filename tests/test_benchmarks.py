"""Every benchmark runs, tiny: a smoke test. Figures come from ``make bench``."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[1] / "benchmarks"
BENCHMARKS = sorted(ROOM.glob("bench_*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_asks_a_question_first(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text.splitlines()[0].endswith("?")


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_runs_tiny_and_prints_json_lines(path, tmp_path):
    result = subprocess.run(
        [sys.executable, str(path), "--tiny"],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines and all(isinstance(line, dict) for line in lines)
