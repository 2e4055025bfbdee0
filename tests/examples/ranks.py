"""Runs an example on several ranks that are forks of one process, as torchrun would start them.

    python tests/examples/ranks.py examples/ddp.py

Reads jobs from standard input, one JSON line ``{"world": 2, "argv": [...], "group": true}`` each,
and answers with ``{"code": 0, "out": ..., "err": ...}``. Libraries are
imported once for all of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


class Ranks:
    """A prepared process that runs one example; used as a context manager."""

    def __init__(self, example: Path, *, group: bool = False) -> None:
        self._group = group  # whether a single rank has the environment of a group as well
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(example)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def __call__(self, world: int, *argv: object) -> str:
        """Run the example on ``world`` ranks and return what they printed; they must succeed."""
        job = {"world": world, "argv": [*map(str, argv)], "group": self._group or world > 1}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        assert done["code"] == 0, done["err"][-3000:]
        return done["out"]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


def serve(example: str) -> None:
    """Import the example, then run one job after the other."""
    spec = importlib.util.spec_from_file_location("example", example)
    module = importlib.util.module_from_spec(spec)
    sys.modules["example"] = module
    spec.loader.exec_module(module)
    importlib.import_module("torch._dynamo")  # else every rank imports it with its first optimizer
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            pids = []
            for rank in range(job["world"]):
                pid = os.fork()
                if pid == 0:
                    os.dup2(out.fileno(), 1)
                    os.dup2(err.fileno(), 2)
                    run_rank(module, example, job, rank, port)
                pids.append(pid)
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            out.seek(0)
            err.seek(0)
            answer = {"code": max(map(abs, codes)), "out": out.read(), "err": err.read()}
        print(json.dumps(answer), flush=True)


def run_rank(module: object, example: str, job: dict, rank: int, port: int) -> None:
    """Be one rank, and end."""
    code = 1
    try:
        if job["group"]:
            size, number = str(job["world"]), str(rank)
            os.environ |= {"RANK": number, "LOCAL_RANK": number, "GROUP_RANK": "0"}
            os.environ |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ["TORCHELASTIC_RUN_ID"] = "ranks"
        sys.argv = [example, *job["argv"]]
        module.main()
        code = 0
    except BaseException:  # noqa: BLE001  # else the fork would return into `serve`
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
