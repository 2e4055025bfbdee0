"""However a program with worker processes ends, nothing of it stays, and it ends soon."""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.loaders import worker_programs
from tests.loaders.worker_programs import BEHAVIOURS, UNGUARDED

START_SECONDS = 120  # of a program and its workers, on a busy machine
GONE_SECONDS = 20  # for everything of a killed program to be gone; takes about one


@pytest.fixture
def run(commands, tmp_path):
    """Start programs; at the end, everything of them is killed."""
    started = []

    def start(*arguments, program=worker_programs.__file__):
        started.append(commands.start(tmp_path, program, *arguments))
        return started[-1]

    yield start
    for program in started:
        for process in processes_of(program):
            process.kill()
        program.wait(GONE_SECONDS)
        program.stdout.close()


def processes_of(program):
    """Return all processes of its session."""
    found = []
    for pid in psutil.pids():
        try:
            process = psutil.Process(pid)
            if os.getsid(pid) == program.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def check_nothing_stays(program, semaphores):
    """No process, named semaphore or shared memory of a program is there soon after."""
    pids = {program.pid, *(process.pid for process in processes_of(program))}
    deadline = time.monotonic() + GONE_SECONDS
    while (alive := processes_of(program)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [(process.pid, process.cmdline()) for process in alive]
    names = os.listdir("/dev/shm")
    assert not {f"sem.{name.lstrip('/')}" for name in semaphores} & set(names)
    assert not [name for name in names if any(f"_{pid}_" in name for pid in pids)]


@pytest.mark.parametrize(
    ("method", "behaviours"),
    [
        ("fork", BEHAVIOURS),
        ("forkserver", BEHAVIOURS),
        pytest.param("spawn", BEHAVIOURS, marks=pytest.mark.proof),
    ],
)
def test_a_program_that_is_killed_leaves_nothing(run, method, behaviours):
    program = run("killed", method, *behaviours)
    semaphores = json.loads(program.stdout.readline())
    assert len(processes_of(program)) > len(behaviours)
    program.kill()
    program.wait(GONE_SECONDS)
    check_nothing_stays(program, semaphores)


@pytest.mark.proof
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("seed", range(20))
def test_a_program_that_is_killed_as_workers_start_leaves_nothing(run, method, seed):
    program = run("starting", method)
    assert program.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 2))
    program.kill()
    program.wait(GONE_SECONDS)
    check_nothing_stays(program, [])


def test_a_program_that_is_killed_while_a_stream_is_read_leaves_nothing(run):
    program = run("replay", "fork")
    assert program.wait(START_SECONDS) == -signal.SIGKILL
    check_nothing_stays(program, [])


@pytest.mark.parametrize(
    ("how", "method", "behaviours"),
    [
        ("dropped", "fork", ["idle"] * 2),
        ("broken off", "fork", BEHAVIOURS),
        ("alive", "fork", BEHAVIOURS),
        pytest.param("dropped", "fork", BEHAVIOURS, marks=pytest.mark.proof),
        *(
            pytest.param(how, method, ["idle", "busy"], marks=pytest.mark.proof)
            for how in ("dropped", "broken off", "alive")
            for method in ("forkserver", "spawn")
        ),
    ],
)
def test_a_program_that_closes_nothing_ends_soon(run, how, method, behaviours):
    program = run("leaves", how, method, *behaviours)
    assert program.stdout.readline() == b"leaving\n"
    begin = time.monotonic()
    _, errors = program.communicate(timeout=60)
    # torch takes a second; it was 20 before. A loader that is dropped waits as `close` does
    assert time.monotonic() - begin < (10 if how != "dropped" else 20)
    assert program.returncode == 0 and errors == ""
    check_nothing_stays(program, [])


GUARD = 'if __name__ == "__main__":\n    '
WORKERS = {"options": "num_workers=2", "first": "pass", "guard": ""}
FORK = ", multiprocessing_context='fork'" if sys.version_info >= (3, 14) else ""


def write(folder: Path, **parts):
    path = folder / "script.py"
    path.write_text(UNGUARDED.format(**{**WORKERS, **parts}))
    return path


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        (None, "close the loaders that read in threads before workers start"),
        ("forkserver", "multiprocessing_context"),
        pytest.param("spawn", "multiprocessing_context", marks=pytest.mark.proof),
    ],
)
def test_a_script_without_a_guard_is_told_so_in_one_sentence(run, tmp_path, method, advice):
    options = f"num_workers=2, multiprocessing_context={method!r}"
    program = run(program=write(tmp_path, options=options))
    output, errors = program.communicate(timeout=START_SECONDS)
    assert program.returncode == 1 and output == ""
    assert errors.count("Traceback") == 1  # of the program itself
    last = errors.splitlines()[-1]
    assert re.search(f"start by {method or 'forkserver'} here", last)
    for words in ('if __name__ == "__main__":', advice, "num_workers=0", "executor='threads'"):
        assert words in last
    check_nothing_stays(program, [])


@pytest.mark.parametrize(
    "followed",
    [
        {"guard": GUARD},
        {"first": "train.close()", "options": f"num_workers=2{FORK}"},
        {"options": "num_workers=0"},
        {"options": "num_workers=0, executor='threads'"},
    ],
    ids=["guard", "close first", "no workers", "threads"],
)
def test_what_the_sentence_advises_works(run, tmp_path, followed):
    program = run(program=write(tmp_path, **followed))
    said = program.communicate(timeout=START_SECONDS)
    assert (*said, program.returncode) == ("validated 100\n", "", 0)


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        pytest.param("fork", 30, marks=pytest.mark.proof),
        pytest.param("forkserver", 8, marks=pytest.mark.proof),
        pytest.param("fork", 1000, marks=pytest.mark.proof),
        pytest.param("forkserver", 100, marks=pytest.mark.proof),
        pytest.param("spawn", 50, marks=pytest.mark.proof),
    ],
)
def test_ctrl_c_at_any_moment_comes_out_soon_and_leaves_nothing(run, method, rounds):
    program = run("interrupts", method, rounds, 1)
    output, errors = program.communicate(timeout=100 + 10 * rounds)
    found = json.loads(output)
    assert found["slow"] == [] and found["children"] == [] and found["threads"] == []
    assert found["lost"] == []
    assert program.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("fork", 12),
        pytest.param("fork", 1000, marks=pytest.mark.proof),
        pytest.param("forkserver", 100, marks=pytest.mark.proof),
    ],
)
def test_cycles_of_open_break_and_close_leak_nothing(run, method, count):
    program = run("cycles", method, count)
    output, errors = program.communicate(timeout=100 + 5 * count)
    early, late = json.loads(output)
    assert late == early, errors
    assert late["children"] == late["threads"] == late["memory"] == []


def test_ctrl_c_of_a_terminal_reaches_everything_and_ends_it(run):
    """A terminal sends it to workers too, which must not die of it before they are ended."""
    program = run("killed", "fork", *BEHAVIOURS)
    assert program.stdout.readline()
    for process in processes_of(program):
        process.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert errors.count("Traceback") == 1 and "KeyboardInterrupt" in errors
    check_nothing_stays(program, [])
