"""A trainer as a program, and its launches in real processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from penstock.errors import PenstockError
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.replay import ReplayLoader
from penstock.ranks import current_topology

SAMPLES: Final = 118
SCORED: Final = range(1000, 1007)  # samples of a validation
GLOBAL_BATCH: Final = 12  # 10 batches an epoch, the last one of 10 samples
CHUNK: Final = 4  # batches; the chunks of an epoch have 4, 4 and 2
TIMEOUT_SECONDS: Final = 240
LOADERS: Final = ("chunked", "stream", "replay")


class Unindexed(IterableDataset[dict[str, int]]):
    """The same samples in an order that cannot be indexed, split over ranks."""

    sharded = True
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, int]]:
        order = np.random.default_rng(self.epoch).permutation(SAMPLES).tolist()
        here = current_topology(None, None)
        return ({"ids": number} for number in order[here.rank :: here.world])


@dataclass(frozen=True)
class Launch:
    """One start of a trainer.

    Args:
        folder: Where its checkpoints go.
        loader: One of `LOADERS`.
        world: Number of ranks.
        batch_size: Samples of a rank's batch.
        until: Batches of a rank after which it ends, counted from the beginning of training.
        accumulate: Batches of an optimizer step.
        save_at: The counts of batches at which it saves a checkpoint.
        killed_at: The batch at which the last rank is killed; None to kill none.
        resume_from: The checkpoint to continue from; None to begin.
        first: The count of batches there.
        chunk_size: Batches of a chunk; None for whole epochs.
    """

    folder: Path
    loader: str
    world: int
    batch_size: int
    until: int = 16
    accumulate: int = 1
    save_at: tuple[int, ...] = ()
    killed_at: int | None = None
    resume_from: Path | None = None
    first: int = 0
    chunk_size: int | None = CHUNK

    def checkpoint(self, batches: int) -> Path:
        """Return the path of a checkpoint.

        Args:
            batches: The count of batches at which it is saved.
        """
        return self.folder / f"checkpoint-{batches // self.accumulate}"

    def record(self, rank: int) -> Path:
        """Return the file in which a rank records what it does; it exists once the rank began.

        Args:
            rank: The number of the rank.
        """
        return self.folder / f"rank-{rank}.jsonl"


class Run:
    """What a program is given on every rank: its task, its loaders, and a record of what it does.

    Args:
        launch: The task.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch, self.batches = launch, launch.first
        self._file: Any = launch.record(current_topology(None, None).rank).open("x")

    def make_loader(self) -> Any:
        """Return the training loader, whose batches are ``{"ids": numbers}``."""
        task = self.launch
        return make_loader(task.loader, task.batch_size, task.chunk_size)

    def make_validation(self) -> Any:
        """Return the loader of the validation."""
        return ChunkedDataLoader(_rows(SCORED), 2, evaluation=True)

    @property
    def done(self) -> bool:
        """Whether the launch has trained all its batches."""
        return self.batches >= self.launch.until

    @property
    def due(self) -> Path | None:
        """The checkpoint to save now; None if there is none."""
        now = self.batches in self.launch.save_at
        return self.launch.checkpoint(self.batches) if now else None

    def trained(self, batch: Any) -> None:
        """Record a batch that is trained on; call it before its optimizer step.

        Args:
            batch: What the loader delivered.
        """
        self.batches += 1
        self._write("train", batch)
        if self.batches == self.launch.killed_at:
            if self.launch.world > 1:
                dist.barrier()  # every rank has recorded this batch
            if current_topology(None, None).rank == self.launch.world - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    def scored(self, batch: Any) -> None:
        """Record a batch of the validation.

        Args:
            batch: What the loader delivered.
        """
        self._write("score", batch)

    def refused(self, error: BaseException) -> None:
        """Record that the trainer refused to begin or to continue.

        Args:
            error: Its reason.
        """
        self._write("refuse", {"ids": []}, " ".join(str(error).split()))

    def ended(self) -> None:
        """Record that the launch came to its end on this rank."""
        self._write("end", {"ids": []})
        self._file.close()

    def _write(self, event: str, batch: Any, text: str = "") -> None:
        ids = np.asarray(batch["ids"]).tolist()
        self._file.write(json.dumps([event, ids, text]) + "\n")
        self._file.flush()


def make_loader(kind: str, batch_size: int, chunk_size: int | None) -> Any:
    """Return a training loader over `SAMPLES` numbers.

    Args:
        kind: One of `LOADERS`.
        batch_size: Samples of a batch on this rank.
        chunk_size: Batches of a chunk; None for whole epochs. ``"replay"`` has no chunks.
    """
    if kind == "replay":
        return ReplayLoader(
            Unindexed(), batch_size=batch_size, num_workers=0, collate_fn=None, seed=7
        )
    if kind == "chunked":
        rows = _rows(range(SAMPLES))
        return ChunkedDataLoader(rows, batch_size, chunk_size, shuffle=True, seed=7)
    blocks = {"block_samples": 4, "window_blocks": 3, "lanes": 6}
    options: dict[str, Any] = {"chunk_size": chunk_size, "drop_last": False, "seed": 7, **blocks}
    return StreamLoader({"ids": np.arange(SAMPLES)}, batch_size, **options)


def _rows(numbers: range) -> list[dict[str, int]]:
    """Return samples that contain their number."""
    return [{"ids": number} for number in numbers]


def forever(loader: Any) -> Iterator[Any]:
    """Yield the batches of all chunks and epochs, without an end.

    Args:
        loader: The loader.
    """
    while True:
        yield from loader


@dataclass(frozen=True)
class Engine:
    """A trainer, described for the conformance tests.

    Args:
        name: Its name in the table.
        program: Called as ``program(run)`` on every rank: trains until ``run.done``, saves to
            ``run.due``, continues from ``run.launch.resume_from``.
        packages: The modules it needs; their versions are in the table.
        chunks: Whether it takes loaders with a chunk size; else a chunk is an epoch.
        start: Called as ``start(engine, launches)``: runs launches on the same number of ranks, one
            after another, of which some are killed; None forks a process per rank and launch.
    """

    name: str
    program: Callable[[Run], None]
    packages: tuple[str, ...] = ("torch",)
    chunks: bool = True
    start: Callable[[Engine, Sequence[Launch]], None] | None = None

    def run(self, tasks: Sequence[Launch]) -> None:
        """Run launches to their ends.

        Args:
            tasks: The launches, all on the same number of ranks.
        """
        for task in tasks:
            task.folder.mkdir(parents=True, exist_ok=True)
        (self.start or fork_ranks)(self, tasks)


# -- real ranks


def fork_ranks(engine: Engine, tasks: Sequence[Launch]) -> None:
    """Run launches in forked processes, with the environment that ``torchrun`` gives to each.

    Forking needs a process without threads. As with ``torchrun``, all ranks end when one fails.

    Args:
        engine: The trainer.
        tasks: The launches.
    """
    fork = multiprocessing.get_context("fork")
    for task in tasks:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [
            fork.Process(target=_forked_rank, args=(engine, task, rank, port))
            for rank in range(task.world)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(process.is_alive() for process in ranks):
            wait([process.sentinel for process in ranks if process.exitcode is None], timeout=1)
            if any(process.exitcode for process in ranks) or time.monotonic() > deadline:
                for process in ranks:
                    process.kill()
                    process.join()


def _forked_rank(engine: Engine, task: Launch, rank: int, port: int) -> NoReturn:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": task.world, "MASTER_PORT": port}
    numbers |= {"LOCAL_WORLD_SIZE": task.world, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": port}
    if task.world > 1:
        os.environ.update({name: str(number) for name, number in numbers.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    run_process(engine, [task], rank)


def run_process(engine: Engine, tasks: Sequence[Launch], rank: int) -> NoReturn:
    """Run launches on a rank, and end the process.

    Args:
        engine: The trainer.
        tasks: The launches.
        rank: The number of this rank.
    """
    code = 1
    try:
        run_rank(engine, tasks, rank)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # gloo's threads sometimes abort an interpreter that ends


def run_rank(engine: Engine, tasks: Sequence[Launch], rank: int) -> None:
    """Run the launches that have not begun on this rank; launchers set its environment.

    A launch that is killed, or fails, is the last one of its process; the next process continues
    after it. What is printed goes to the log of the launch.

    Args:
        engine: The trainer.
        tasks: The launches.
        rank: The number of this rank.
    """
    torch.set_num_threads(1)
    for task in tasks:
        if task.record(rank).exists():
            continue
        with (task.folder / f"rank-{rank}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            if task.world > 1 and not dist.is_initialized():
                dist.init_process_group("gloo")
            run = Run(task)
            try:
                engine.program(run)
            except (PenstockError, RuntimeError, ValueError) as error:
                if (found := _refusal(error)) is None:
                    raise
                run.refused(found)
            if task.world > 1:
                dist.barrier()  # rank 0 keeps the store
            run.ended()
        except BaseException:
            traceback.print_exc()
            raise


def torchrun(address: str) -> Callable[[Engine, Sequence[Launch]], None]:
    """Return a ``start`` of an `Engine` that runs its launches with the real ``torchrun``.

    After a killed launch, ``torchrun`` itself starts the ranks again, for the launches that follow.

    Args:
        address: Where the processes find the engine: its name in the command, or
            ``module:attribute``.
    """

    def start(engine: Engine, tasks: Sequence[Launch]) -> None:
        file = tasks[0].folder / "launches.json"
        file.write_text(json.dumps([asdict(task) for task in tasks], default=str))
        kills = sum(task.killed_at is not None for task in tasks)
        torchrun = ["torch.distributed.run", f"--nproc-per-node={tasks[0].world}", "--standalone"]
        ours = ["-m", "penstock.testing.conformance", address, "--launch", str(file)]
        run = [sys.executable, "-m", *torchrun, f"--max-restarts={kills}", *ours]
        # else ranks that are started again may look for those before them, and wait for ever
        environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with file.with_suffix(".log").open("w") as log:
            agent = subprocess.Popen(run, stdout=log, stderr=log, env=environment)
            try:
                agent.wait(TIMEOUT_SECONDS * (1 + kills))
            except subprocess.TimeoutExpired:
                agent.terminate()  # it ends the ranks, too
                agent.wait()

    return start


def read_launches(file: Path) -> list[Launch]:
    """Return the launches that `torchrun` wrote to a file."""
    launches = []
    for task in json.loads(file.read_text()):
        paths = {name: task[name] and Path(task[name]) for name in ("folder", "resume_from")}
        launches.append(Launch(**task | paths | {"save_at": tuple(task["save_at"])}))
    return launches


def _refusal(error: BaseException | None) -> PenstockError | None:
    """Return the Penstock error in a chain of errors: trainers wrap what a loader raises."""
    while error is not None and not isinstance(error, PenstockError):
        error = error.__cause__ or error.__context__
    return error
