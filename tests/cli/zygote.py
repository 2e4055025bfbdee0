"""Commands in processes of their own, without their seconds of imports: started by tests.

Everything is imported once; each command is then a fork, with its own directory, environment
and output, that can be killed like any other process.
"""

import gc
import json
import math
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

IMPORTS = (
    *("torch.utils.tensorboard", "torch.utils.serialization", "penstock.loaders"),
    *("penstock.cli.commands", "penstock.training.run", "penstock.training.config"),
)


def serve():
    sys.path.insert(0, str(Path(__file__).parents[2]))  # programs import parts of the tests
    for module in IMPORTS:
        import_module(module)
    with suppress(ImportError):  # Typer imports it, and pydantic, as it reads its first option
        import_module("typer._adapters")
    with tempfile.TemporaryDirectory() as folder:  # Hydra imports its plugins at the first use
        path = Path(folder, "config.yaml")
        path.write_text("run_dir: x\n")
        import_module("penstock.training.config.compose").compose(path, ["seed=1"], None)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all of these pages
    print("ready", flush=True)
    ranks = []  # processes that end with the next one that is waited for
    for line in sys.stdin:
        job = json.loads(line)
        if "reap" in job:
            print(os.waitstatus_to_exitcode(os.waitpid(job["reap"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            become(job)
            break  # to the end of the interpreter
        print(pid, flush=True)
        if job["wait"]:
            code = wait(pid, ranks)
            end_all(ranks)
            print(code, flush=True)
        elif job["rank"]:
            ranks.append(pid)


def wait(pid, ranks):
    """Return the exit code of a process; kill it when another rank has failed, as torchrun does."""
    while ranks:
        done, status = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(status)
        if done == pid:
            return code
        ranks.remove(done)
        if code:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_all(pids, seconds=20.0):
    """Wait for processes to end; kill those that do not in time."""
    deadline = time.monotonic() + seconds
    while pids:
        pids[:] = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
        if time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            deadline = math.inf
        time.sleep(0.02)


def become(job):
    """Be the command from here on, in a session of its own, as a terminal would start it."""
    os.setsid()
    signal.alarm(1800)  # else one that hangs would stay when the test that waits for it is killed
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115  # for as long as the process lives
    sys.argv = job["argv"]
    if "KILL_AT_FILE" in job["env"]:
        from tests.training.killing import kill_at

        kill_at(int(job["env"]["KILL_AT_FILE"]), Path(job["cwd"], "run"))
    if job["program"]:
        sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a script
    if job["ends"]:
        sys.modules["__main__"] = main = ModuleType("__main__")  # it lives until the very end
        main.__file__ = sys.argv[0]
        exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), vars(main))
        return  # what it raises ends the interpreter
    code = 70
    try:
        if job["program"]:
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            from penstock.cli import main

            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # else the fork would go on to serve
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
