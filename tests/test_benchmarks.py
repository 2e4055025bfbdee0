"""Every benchmark runs, tiny, and a claim that does not hold makes it fail."""

import ast
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # so that forks need not import it
import zarr  # noqa: F401

from penstock import StreamLoader  # noqa: F401
from tests.missing_domains import names_a_missing_domain

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
BENCHMARKS = sorted(
    path.stem for path in FOLDER.glob("bench_*.py") if not names_a_missing_domain(path.read_text())
)


def python(*arguments, cwd, timeout=110):
    """Run a new interpreter."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment
    )


def forked(program, *arguments, cwd):
    """Run a file, or the program in a folder, in a fork of this process, which has torch already.

    Returns what `python` returns.
    """
    files = [cwd / "stdout", cwd / "stderr"]
    process = multiprocessing.get_context("fork").Process(
        target=run_as_script, args=(program, arguments, cwd, files)
    )
    process.start()
    process.join(110)
    output = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    return subprocess.CompletedProcess([program, *arguments], process.exitcode, *output)


def run_as_script(program, arguments, cwd, files):
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
    os.chdir(cwd)
    sys.argv, sys.path[:0] = [str(program), *map(str, arguments)], [str(FOLDER)]
    runpy.run_path(str(program), run_name="__main__")  # its SystemExit ends the process


@pytest.fixture(scope="module")
def tiny(commands, tmp_path_factory):
    """The output of all of them, by name: they run one after the other in one process."""
    folder = tmp_path_factory.mktemp("tiny")
    results = {path: path.stat().st_mtime_ns for path in (FOLDER / "results").glob("*")}
    run = commands.program(folder, FOLDER / "__main__.py", "--tiny", *BENCHMARKS)
    assert run.code == 0, run.err[-4000:]
    after = {path: path.stat().st_mtime_ns for path in (FOLDER / "results").glob("*")}
    assert after == results  # figures of a tiny run are not kept
    assert {path.name for path in folder.iterdir()} == {".out", ".err"}
    found, current = {}, []
    for line in map(json.loads, run.out.splitlines()):
        if "machine" in line:
            current = found[line["benchmark"]] = []
        current.append(line)
    return found


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_starts_with_a_question(name):
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    assert text.splitlines()[0].endswith("?")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_tiny_and_makes_claims_with_bounds(name, tiny):
    first, *lines, last = tiny[name]
    assert first["machine"]["cores"] >= 1 and first["date"]
    claims = [line for line in lines if "claim" in line]
    assert claims and last["claims"] == len(claims)
    assert last["failed"] == [line["claim"] for line in claims if not line["holds"]]
    for line in claims:
        assert {"at_least", "at_most", "not_measured"} & line.keys(), line


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_leaves_its_exit_code_to_measure(name):
    text = (FOLDER / f"{name}.py").read_text()
    assert text.endswith('if __name__ == "__main__":\n    sys.exit(run(main, __file__))\n')
    assert text.count("sys.exit") == 1
    assert not re.search(r"\bprint\(", text)


def test_the_machine_is_described_without_a_name(tiny):
    text = json.dumps([lines[0] for lines in tiny.values()])
    assert os.uname().nodename not in text or os.uname().nodename in "Linux x86_64"


# -- the mechanism, in a benchmark of its own

BENCHMARK = """
import sys
from measure import arguments, claim, claim_not_made, emit, run

def main():
    arguments("Is it so?", size=3)
    emit(case="a", seconds=1.0)
    {claims}

if __name__ == "__main__":
    sys.exit(run(main, __file__))
"""


def run_one(tmp_path, claims, *options, run=forked):
    path = tmp_path / "bench_own.py"
    path.write_text(BENCHMARK.format(claims=claims))
    return run(path, "--results", tmp_path / "results", *options, cwd=tmp_path)


def test_a_failed_claim_ends_the_interpreter_with_1(tmp_path):
    run = run_one(tmp_path, "claim('fast', 2.0, at_least=3)", run=python)
    assert run.returncode == 1, run.stderr


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ("claim('fast', 2.0, at_least=1)", 0),
        ("claim('fast', 2.0, at_least=2, at_most=2)", 0),
        ("claim('fast', 2.0, at_least=3)", 1),
        ("claim('slow', 2.0, at_most=1)", 1),
        ("claim('none', float('nan'), at_least=1)", 1),
        ("claim('no', 2.0, at_most=1); claim('yes', 2.0, at_least=1)", 1),
        ("claim_not_made('twice the best', 'not installed: a peer')", 1),
        ("emit(case='no claim')", 0),
    ],
)
def test_the_exit_code_shows_whether_all_claims_hold(tmp_path, claims, code):
    run = run_one(tmp_path, claims, "--size", "7")
    assert run.returncode == code, run.stderr
    found = json.loads((tmp_path / "results" / "bench_own.json").read_text())
    assert found["benchmark"] == "bench_own" and found["options"] == {"size": 7}
    assert found["date"][:2] == "20" and {"processor", "cores", "torch"} <= found["machine"].keys()
    assert found["lines"][0] == {"case": "a", "seconds": 1.0}
    assert bool(found["failed"]) is bool(code)


@pytest.mark.parametrize("bounds", ["", ", at_least=None", ", at_most=float('inf')"])
def test_a_claim_without_a_bound_cannot_be_made(tmp_path, bounds):
    run = run_one(tmp_path, f"claim('fast', 2.0{bounds})")
    assert run.returncode == 1 and "has no bound: give at_least= or at_most=" in run.stderr


def test_an_unknown_benchmark_is_refused(tmp_path):
    run = forked(FOLDER, "bench_nothing", cwd=tmp_path)
    assert run.returncode == 2 and "no such benchmark: bench_nothing" in run.stderr


# -- peers

AGAINST = """
import sys
from bench_stream import against
from measure import run
taken = {"npy, penstock": [1.0], "blosc-lz4, penstock": [1.0], "torch, .npy": [9.0],
         "torch, Zarr": [9.0]}

def main():
    against(taken, ["npy, penstock", "blosc-lz4, penstock"], OTHERS)

sys.argv = ["x"]
sys.exit(run(main, "bench_x.py"))
"""


@pytest.mark.parametrize("missing", ["scdataset", "grain"])
def test_twice_the_best_is_not_claimed_against_torch_alone(tmp_path, missing):
    others = {"torch, .npy": 1, "torch, Zarr": 1, missing: None}
    text = AGAINST.replace("OTHERS", repr(others)).replace(
        'sys.argv = ["x"]', "import measure; measure.RESULTS = measure.Path('results')"
    )
    (tmp_path / "against.py").write_text(text)
    run = forked(tmp_path / "against.py", cwd=tmp_path)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    claims = [line for line in lines if "claim" in line]
    assert run.returncode == 1 and len(claims) == 2
    for line in claims:
        assert line["holds"] is False and f"not installed: {missing}" in line["not_measured"]


def test_the_peers_are_in_an_extra_and_pinned():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    bench = " ".join(extras["bench"])
    pins = (ROOT / "constraints.txt").read_text().lower()
    for peer in ("scdataset", "grain"):
        assert peer in bench and f"\n{peer}==" in pins
    assert "torchvision" not in pins and "torch==2.13.0" in pins
