"""Signals are heard, remembered, and given back."""

import os
import signal
from pathlib import Path

from penstock.training.run import Outcome
from penstock.training.run.callbacks import (
    SIGNALS,
    SignalListener,
    StopOnSignal,
    StoppedBySignal,
)
from tests.training.run.forking import forked


def test_a_signal_is_remembered_and_nothing_else_happens():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        with SignalListener() as listener:
            listener.listen()
            assert listener.received == 0
            os.kill(os.getpid(), number)
            assert listener.received == number
            os.kill(os.getpid(), signal.SIGUSR1)
            assert listener.received == number
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_a_second_ctrl_c_leaves_at_once_but_not_the_echo_of_the_first():
    ticks = iter([0.0, 0.2, 5.0])

    def handle(say):
        with SignalListener(lambda: next(ticks)) as listener:
            listener.listen()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            say(f"still here, heard {listener.received}")
            os.kill(os.getpid(), signal.SIGINT)
            say("never said")

    with forked(handle) as (_, said, codes):
        assert said.read() == "still here, heard 2\n"
    assert codes == [130]


def test_exit_codes_are_those_of_a_shell():
    codes = {number: Outcome(Path("run"), stopped_by=number).exit_code for number in SIGNALS}
    assert codes == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGUSR1: 138}
    assert Outcome(Path("run")).exit_code == 0


def test_no_except_exception_of_a_user_keeps_a_run_from_stopping():
    assert not issubclass(StoppedBySignal, Exception)


def test_one_rank_agrees_with_itself():
    stop = StopOnSignal(SignalListener(), save=print)
    assert stop._largest(3, -3) == [3, -3]
