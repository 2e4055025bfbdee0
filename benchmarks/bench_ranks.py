"""Do ranks share the reading of one Zarr, and how soon do a thousand of them begin?

An epoch on one rank and on two, real processes that start together: samples a second of all ranks,
and the bytes that each read (a little of the next epoch, ahead, among them). On a machine whose
cores one rank keeps busy two cannot be faster: there the ceiling is one rank, and the question is
what dividing the work costs. Control for the bytes: all of the data, which every rank would read
that picks its share from a common stream.

Then 10^9 samples on 1,024 ranks, one after the other in this process: how long a rank takes until
it knows its batch at any step. Control: torch's ``DistributedSampler``, on far fewer samples.

    python benchmarks/bench_ranks.py [--tiny] [--rounds 5] [--rows 400000] [--columns 64]
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from measure import arguments, claim, emit, interleaved, ratio, report, run
from torch.utils.data import DistributedSampler
from zarr.codecs import BloscCodec

from penstock import StreamLoader
from penstock.sources import Arrays, Field

FORK = multiprocessing.get_context("fork")  # the parent runs no thread before
CHUNK_ROWS, GLOBAL_BATCH, LANES, WINDOW_BLOCKS = 1024, 512, 2, 8


# -- ranks of this machine


def read_epoch(path: Path, rank: int, world: int, start: Any, said: Any) -> None:
    """One rank: an epoch, once everyone is ready, and the blocks that its samples are in."""
    torch.set_num_threads(1)
    ours = {"rank": rank, "world_size": world, "lanes": LANES, "window_blocks": WINDOW_BLOCKS}
    with StreamLoader(path, GLOBAL_BATCH // world, **ours) as loader:
        start.wait()
        before, begin = bytes_read(), time.perf_counter()
        samples = sum(len(batch) for batch in loader)
        taken, nbytes = time.perf_counter() - begin, bytes_read() - before
        blocks = {
            int(block)
            for step in range(len(loader))
            for block in np.unique(loader.samples_at(step, epoch=0) // CHUNK_ROWS)
        }
    said.send((taken, samples, nbytes, blocks))
    os._exit(0)


def bytes_read() -> int:
    """By this process so far, from files or their cache."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


def epoch_on(path: Path, world: int, kept: dict[int, list[tuple]]) -> float:
    """Seconds of the slowest of ``world`` ranks; what each said is kept."""
    start, pipes = FORK.Barrier(world), [FORK.Pipe(duplex=False) for _ in range(world)]
    ranks = [
        FORK.Process(target=read_epoch, args=(path, rank, world, start, pipe[1]))
        for rank, pipe in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    kept[world] = [pipe[0].recv() for pipe in pipes]
    for process in ranks:
        process.join()
    return float(max(taken for taken, *_ in kept[world]))


def shared_reading(path: Path, rows: int, rounds: int) -> None:
    kept: dict[int, list[tuple]] = {}
    cases = {f"{w} ranks" if w > 1 else "1 rank": partial(epoch_on, path, w, kept) for w in (1, 2)}
    seconds = interleaved(cases, rounds=rounds)
    report(seconds, rows=rows, batch=GLOBAL_BATCH)
    for (case, taken), world in zip(seconds.items(), (1, 2), strict=True):
        samples = sum(said[1] for said in kept[world])
        emit(case=case, samples_per_second=samples / sorted(taken)[len(taken) // 2])
        emit(case=case, bytes_per_rank=[said[2] for said in kept[world]])
    emit(case="2 ranks", times_the_samples_a_second_of_one=ratio(seconds, "2 ranks", "1 rank"))
    alone = kept[1][0][2]
    most = max(said[2] for said in kept[2])
    claim("share of all bytes that a rank of two reads", most / alone, at_most=0.55)
    times = Counter(block for said in kept[2] for block in said[3])
    shared = sum(count > 1 for count in times.values())
    emit(case="2 ranks", blocks=len(times), blocks_read_by_both=shared)
    claim("blocks read by both: the ragged end", shared, at_most=LANES)


# -- a thousand ranks


class Numbers:
    """10^9 samples that take no room: each is its own number."""

    fields: Mapping[str, Field] = {"": Field((), np.dtype(np.int64))}
    block_samples = 1024

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def fingerprint(self) -> str:
        return f"numbers below {self.samples}"

    def read(self, start: int, stop: int, out: Arrays) -> None:
        out[""][: stop - start] = np.arange(start, stop)

    def take(self, indices: np.ndarray, out: Arrays) -> None:
        out[""][: len(indices)] = indices


def many_ranks(samples: int, world: int, control: int) -> None:
    began, batches = [], []
    for rank in range(world):
        begin = time.perf_counter()
        loader = StreamLoader(Numbers(samples), 64, rank=rank, world_size=world, window_blocks=4)
        loader.seek(3, step=len(loader) // 2)
        batches.append(loader.samples_at(len(loader) // 2))
        began.append(time.perf_counter() - begin)
    report({"a rank knows its batch": began}, samples=samples, world=world)
    claim("milliseconds until a rank knows its batch", sorted(began)[world // 2] * 1e3, at_most=20)
    distinct = len(np.unique(np.concatenate(batches)))
    claim("samples of the step on all ranks, each once", distinct / (64 * world), at_least=1)
    begin = time.perf_counter()
    with loader:
        next(iter(loader))
    emit(case="first batch of one rank", seconds=time.perf_counter() - begin)
    begin = time.perf_counter()
    sampler = DistributedSampler(range(control), num_replicas=world, rank=1, shuffle=True)
    next(iter(sampler))
    emit(case="DistributedSampler", samples=control, seconds=time.perf_counter() - begin)


def main() -> None:
    options = arguments(__doc__, rounds=5, rows=400_000, columns=64)
    rows, columns = (20_000, 8) if options.tiny else (options.rows, options.columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.zarr"
        codec = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=4)
        array = zarr.create_array(
            path, shape=(rows, columns), dtype="f4", chunks=(CHUNK_ROWS, columns), compressors=codec
        )
        for first in range(0, rows, 64 * CHUNK_ROWS):
            part = np.random.default_rng(first).standard_normal(
                (min(64 * CHUNK_ROWS, rows - first), columns), np.float32
            )
            array[first : first + len(part)] = np.round(part * 32) / 32
        shared_reading(path, rows, 1 if options.tiny else options.rounds)
    sizes = (10**6, 16, 10**4) if options.tiny else (10**9, 1024, 10**7)
    many_ranks(*sizes)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
