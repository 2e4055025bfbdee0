"""The fixture that fails what leaves something running, shown to fail."""

import signal
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

FIXTURE = Path(__file__).with_name("left_running.py").read_text()


@pytest.fixture(autouse=True)
def only_our_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins of installed libraries take seconds to import."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    "leaver",
    [
        "threading.Thread(target=threading.Event().wait, name='penstock-x', daemon=True).start()",
        "subprocess.Popen(['sleep', '60'])",
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=[60]).start()",
    ],
)
def test_a_test_that_leaves_something_running_fails(pytester: pytest.Pytester, leaver: str) -> None:
    pytester.makeconftest(FIXTURE.replace("PATIENCE_SECONDS = 5.0", "PATIENCE_SECONDS = 0.2"))
    pytester.makepyfile(
        f"""
        import multiprocessing, subprocess, threading, time

        def test_leaves():
            {leaver}
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*left running: *"])


def test_a_test_that_cleans_up_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(FIXTURE)
    pytester.makepyfile(
        """
        import multiprocessing, os, threading

        def test_cleans_up():
            thread = threading.Thread(target=int, name="penstock-x")
            thread.start()
            child = multiprocessing.get_context("forkserver").Process(target=os.getpid)
            child.start()
            child.join()
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_a_rank_that_fails_ends_the_others(commands: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise SystemExit('rank 1 failed')\n"
        "time.sleep(600)\n"
    )
    done = commands.ranks(2, tmp_path, program)
    assert done.code == -signal.SIGKILL
