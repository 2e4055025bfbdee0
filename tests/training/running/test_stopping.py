"""Signals are heard, remembered, and given back."""

import os
import signal
import subprocess
import sys

from penstock.training.running.ranks import Ranks
from penstock.training.running.stopping import SIGNALS, Listener, Stopped

TWICE = """
import os, signal
from penstock.training.running.stopping import Listener
ticks = iter([0.0, 0.2, 5.0])
with Listener(lambda: next(ticks)) as listener:
    listener.listen()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    print("still here", listener.heard, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("never said", flush=True)
"""


def test_a_signal_is_remembered_and_nothing_else_happens():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        with Listener() as listener:
            listener.listen()
            assert listener.heard == 0
            os.kill(os.getpid(), number)
            assert listener.heard == number
            os.kill(os.getpid(), signal.SIGUSR1)
            assert listener.heard == number
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_second_ctrl_c_leaves_at_once_but_not_the_echo_of_the_first():
    done = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert done.stdout == f"still here {int(signal.SIGINT)}\n"
    assert "SIGINT: saving at the end of this batch" in done.stderr and "Trace" not in done.stderr


def test_exit_codes_are_those_of_a_shell():
    codes = {number: Stopped(number).exit_code for number in SIGNALS}
    assert codes == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 138}
    assert not issubclass(Stopped, Exception)


def test_one_rank_agrees_with_itself():
    ranks = Ranks()
    assert not ranks.several and ranks.largest(3, -3) == (3, -3) and ranks.agree(5)
