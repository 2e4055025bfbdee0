"""A child process that has all of this one, to be killed or to leave by itself."""

import os
import sys
import traceback
from contextlib import contextmanager


@contextmanager
def forked(work):
    """A block with a child that runs ``work(say)``: its process id, and the file it says things to.

    Its exit code is there after the block, in the list that is yielded last.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            work(lambda text: os.write(writing, f"{text}\n".encode()))
        except BaseException:  # noqa: BLE001  # else there would be two of pytest
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)
    os.close(writing)
    codes = []
    with os.fdopen(reading) as said:
        yield pid, said, codes
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
