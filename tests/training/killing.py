"""SIGKILL at a chosen file operation of this process: every window between two of them is hit.

Python announces each operation on a file before it does it (``sys.addaudithook``): opening,
renaming, linking, removing. To be killed at the announcement of one is to be killed after the one
before it. Nothing of the program is replaced.
"""

import os
import signal
import sys

OPERATIONS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate")


def kill_at(number, folder):
    """Kill this process at its operation ``number`` (from 0) on a file below ``folder``."""
    folder, seen = f"{folder}{os.sep}", [0]

    def hear(event, arguments):
        if event not in OPERATIONS or not below(arguments):
            return
        if seen[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[0] += 1

    def below(arguments):
        named = [each for each in arguments if isinstance(each, str | os.PathLike)]
        return any(os.path.abspath(os.fspath(each)).startswith(folder) for each in named)

    sys.addaudithook(hear)
