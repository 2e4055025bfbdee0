"""Projects of a user's own, and commands run in them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
PENSTOCK = Path(sys.executable).with_name("penstock")


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str


class Running:
    """A program in a session of its own, used as `subprocess.Popen` is; ``stdout`` has bytes."""

    def __init__(self, commands, pid, stdout, err):
        self._commands, self.pid, self.stdout, self._err = commands, pid, stdout, err
        self.returncode = None

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout):
        """Return its exit code; kill it and fail if it does not end in time."""
        if self.returncode is None:
            handle = os.pidfd_open(self.pid)
            try:
                late = not select.select([handle], [], [], timeout)[0]
            finally:
                os.close(handle)
            if late:
                self.kill()
            self.returncode = int(self._commands._ask({"reap": self.pid}))
            assert not late, f"it did not end in {timeout} s: {self._err.read_text()}"
        return self.returncode

    def communicate(self, timeout):
        """Return what it printed until its end, as output and errors."""
        self.wait(timeout)
        printed = b""
        with self.stdout as output, suppress(BlockingIOError):
            os.set_blocking(output.fileno(), False)  # a child of it may be alive
            while part := os.read(output.fileno(), 4096):
                printed += part
        return printed.decode(), self._err.read_text()


class Commands:
    """`penstock ...` as processes of their own, forked from one that has imported it all."""

    def __init__(self):
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._server.stdout.readline() == "ready\n"

    def __call__(self, cwd, *args, **env):
        """Run `penstock` with these arguments in a directory, and wait for its end."""
        return self._run(cwd, [PENSTOCK, *args], env, program=False)

    def program(self, cwd, *args, **env):
        """Run a Python file with these arguments in a directory, and wait for its end."""
        return self._run(cwd, args, env, program=True)

    def ranks(self, count, cwd, *args, **env):
        """Run a Python file once for every rank, as torchrun does, and wait for rank 0."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        env = {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_RESTART_COUNT": "0"} | env
        env |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0"}
        for rank in reversed(range(count)):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            done = self._run(cwd, args, env | own, program=True, wait=rank == 0)
        others = "".join(error.read_text() for error in sorted(cwd.glob(".err.*")))
        return Done(done.code, done.out, done.err + others)

    def start(self, cwd, *args, **env):
        """Start a Python file that ends as an interpreter does, and do not wait for its end."""
        fifo, err = cwd / f".out-{uuid.uuid4().hex}", cwd / f".err-{uuid.uuid4().hex}"
        os.mkfifo(fifo)
        err.write_text("")
        job = {"argv": [*map(str, args)], "cwd": str(cwd), "env": env, "wait": False, "ends": True}
        job |= {"out": str(fifo), "err": str(err), "program": True, "rank": False}
        return Running(self, int(self._ask(job)), fifo.open("rb", buffering=0), err)

    def _ask(self, job):
        print(json.dumps(job), file=self._server.stdin)
        self._server.stdin.flush()
        return self._server.stdout.readline()

    def _run(self, cwd, args, env, *, program, wait=True):
        name = "" if wait else f".{env['RANK']}"
        out, err = cwd / f".out{name}", cwd / f".err{name}"
        for output in (out, err):
            output.write_text("")  # it may be killed before it begins
        job = {"argv": [*map(str, args)], "cwd": str(cwd), "env": env, "wait": wait}
        job |= {"out": str(out), "err": str(err), "program": program, "rank": not wait}
        self._ask(job | {"ends": False})  # returns its process id
        if not wait:
            return None
        code = int(self._server.stdout.readline())
        return Done(code, out.read_text(), err.read_text())

    def close(self):
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


def new_project(path):
    shutil.copytree(HERE / "training_project", path, ignore=shutil.ignore_patterns("__pycache__"))
    return path


def final_state(run):
    """What the last checkpoint of a run holds."""
    last = max((run / "checkpoints").glob("step-*.ckpt"))
    return torch.load(last, weights_only=True)
