"""Real ranks: forked from one program that imported everything, joined by gloo over TCP."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import socket
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")  # nothing runs in the program before: forking is safe
TIMEOUT_SECONDS = 60


def run_ranks(world, target, *args, before=None):
    """Exit codes of ``target(rank, world, *args)`` on every rank, once all of them ended.

    ``before()`` is called on every rank before there is a process group; what it gives comes first
    in ``args``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        FORK.Process(target=rank_main, args=(rank, world, port, target, args, before))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(TIMEOUT_SECONDS)
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for rank in late:
        ranks[rank].kill()
    if late:
        raise SystemExit(f"ranks {late} of {world} hang in {target.__name__}")
    return [process.exitcode for process in ranks]


def rank_main(rank, world, port, target, args, before):
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(TIMEOUT_SECONDS - 10)  # where a rank hangs
    args = args if before is None else (before(), *args)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    code = 1
    try:
        target(rank, world, *args)
        dist.barrier()  # rank 0 keeps the store
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads sometimes abort an interpreter that ends
