"""A random sample of the campaigns, their comparison shown to fail, and their page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns import page
from tests.campaigns.results import Outcome, table

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 5  # no trial begins after these


@pytest.mark.timing
def test_a_random_sample_of_the_campaigns_finds_nothing(campaign):
    """Other trials in every run; a failure prints the seed and the command that repeats it."""
    _, sample, code = campaign
    assert code == 0, sample
    print(sample)


def test_the_page_is_what_the_recorded_results_make():
    recorded = json.loads(page.RECORDED.read_text())
    assert page.PAGE.read_text() == page.render(recorded), "run: python -m tests.campaigns page"


# -- the comparison can fail


@pytest.fixture
def outcome():
    return Outcome("loader", "storage", "1", "SIGKILL", "trial")


def write(room, start, rank, resumed, *steps):
    lines = [{"resumed": resumed, "pid": 1}]
    lines += [{"step": resumed + 1 + at, "ids": ids} for at, ids in enumerate(steps)]
    (room / f"diary-{start}-{rank}").write_text("".join(json.dumps(each) + "\n" for each in lines))


def test_starts_are_joined_at_the_checkpoints_they_resumed_from(tmp_path):
    from tests.campaigns.training import delivered

    write(tmp_path, 0, 0, 0, [1, 2], [3, 4], [5, 6])
    write(tmp_path, 2, 0, 2, [5, 6], [7, 8])  # start 1 was killed before it wrote anything
    assert delivered(tmp_path) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    write(tmp_path, 3, 0, 4, [9])
    write(tmp_path, 3, 1, 4, [10], [11])  # rank 0 was killed before this step
    assert delivered(tmp_path)[4:] == [[9, 10]]
    write(tmp_path, 4, 0, 6, [13])  # a step is missing
    with pytest.raises(AssertionError, match="after 5 steps came"):
        delivered(tmp_path)


@pytest.mark.parametrize(
    ("got", "lost", "repeated", "errors"),
    [
        ([[1, 2], [3, 4]], 0, 0, 0),
        ([[1, 2]], 2, 0, 0),
        ([[1, 2], [3, 4], [3, 4]], 0, 2, 0),
        ([[1, 2], [2, 4]], 1, 1, 0),
        ([[3, 4], [1, 2]], 0, 0, 1),
    ],
)
def test_samples_that_are_lost_repeated_or_in_another_order_are_counted(
    outcome, got, lost, repeated, errors
):
    outcome.compare(got, [[1, 2], [3, 4]])
    assert (outcome.lost, outcome.repeated, outcome.errors) == (lost, repeated, errors)
    assert outcome.bad == (lost + repeated + errors > 0)
    assert [row["lost"] for row in table([outcome, outcome])] == [2 * lost]


# one process for both, because its imports cost more than the faults
PROGRAM = """
import os, sys, threading, tempfile, subprocess, time
from pathlib import Path
from tests.campaigns.__main__ import main
from tests.campaigns.kills import Watched, finish
from tests.campaigns.processes import Child, adopt_orphans
from tests.campaigns.results import Outcome

def leaves_a_process():
    subprocess.Popen(["sleep", "60"])

def leaves_a_file():
    tempfile.mkstemp()

def leaves_a_thread():
    threading.Thread(target=time.sleep, args=[60], name="penstock-x", daemon=True).start()

def hangs():
    time.sleep(60)

def fails():
    raise ValueError("a failure")

adopt_orphans()
for fault in (leaves_a_process, leaves_a_file, leaves_a_thread, hangs, fails, int):
    room = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    outcome = Outcome("", "", "", "", "")
    child = Child(fault, room=room, seconds=5.3 if fault is hangs else 30.0)
    finish([child], outcome)
    Watched(outcome, [child], seconds=0.5).ended().settled(wait=True)
    print(fault.__name__, outcome.hangs, outcome.leftovers, outcome.errors, flush=True)
print("SAMPLE", flush=True)
sys.argv[1:] = ["run", "--sample", "--jobs", "2", "--seconds", sys.argv[2]]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The counts of trials with a fault, the output of a sample, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path_factory.mktemp("faults"), str(SAMPLE_SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    faults, _, sample = done.stdout.partition("SAMPLE\n")
    return faults.splitlines(), f"{sample}\n{done.stderr[-3000:]}", done.returncode


@pytest.mark.timing
def test_what_hangs_fails_or_leaves_something_is_counted(campaign):
    assert campaign[0] == [
        "leaves_a_process 0 1 0",
        "leaves_a_file 0 1 0",
        "leaves_a_thread 0 0 1",
        "hangs 1 0 0",
        "fails 0 0 1",
        "int 0 0 0",
    ]


# -- tests that are repeated

SOMETIMES = """
from pathlib import Path
import pytest

pytestmark = pytest.mark.timing

@pytest.mark.parametrize("fails_in", [0, 2])
def test_it(fails_in, tmp_path):
    runs = Path(__file__).with_name(str(fails_in))
    with runs.open("a") as file:
        file.write(".")
    assert len(runs.read_text()) != fails_in
"""


def repeated(folder, times):
    command = [sys.executable, "-m", "tests.campaigns", "flaky", "--times", str(times)]
    command += ["--jobs", "1", "--results", "results", "test_some.py"]
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take seconds to import
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,  # it takes 5 s; it took more than 100 on a machine that was busy otherwise
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.timing
def test_a_test_that_fails_now_and_then_is_found_and_repeated_until_it_passes(tmp_path):
    (tmp_path / "test_some.py").write_text(SOMETIMES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timing cuda proof\n")
    code, said = repeated(tmp_path, 3)
    assert code == 1
    assert any(line.startswith("E   ") and "assert 2 != 2" in line for line in said)
    assert said[-2] == "1 of 3  test_some.py::test_it[2]"
    assert said[-1] == "6 runs, 1 failures; 1 of 2 tests have 3 runs without a failure"
    code, said = repeated(tmp_path, 3)
    assert code == 0
    assert said[-1] == "2 runs, 0 failures; 2 of 2 tests have 3 runs without a failure"
    lines = (tmp_path / "results").read_text().splitlines()
    counts = [json.loads(line).get("count") for line in lines]
    assert counts == [None, 3, 3]  # the failure, and what passed since
