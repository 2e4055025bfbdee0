"""Are shuffled batches streamed at storage speed, and how far ahead of other loaders?

512 MB of float32, 1,024 columns in chunks of 1,024 rows; batches of 256 out of windows of 16
blocks. Ceiling: every chunk read and decompressed by all cores into a reused buffer, nothing else
(for raw storage a plain copy). Control: what others deliver of the same rows. Then the same with
the page cache dropped, and how long the first batch takes.

    python benchmarks/bench_stream.py [--tiny] [--seconds 3] [--rounds 5] [--only npy,gzip,peers]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import (
    Measured,
    arguments,
    claim,
    claim_not_made,
    emit,
    in_new_process,
    interleaved,
    ratio,
    run,
)
from peers_streaming import AHEAD, BATCH, REQUIRED, Peers, RowsAtOnce, peers, torch_loader
from streaming_data import (
    CHUNK_ROWS,
    CORES,
    LAYOUTS,
    WINDOW_BLOCKS,
    Layout,
    ceiling,
    drop_cache,
    files_of,
    write_layouts,
)

from penstock.loaders.stream import StreamLoader

ROUND_BATCHES = WINDOW_BLOCKS * CHUNK_ROWS // BATCH
PARTS = ("peers", "cold", "first")  # that --only may name, beside the layouts


def opened(path: Path, **options: Any) -> StreamLoader:
    blocks = {"block_samples": CHUNK_ROWS} if path.suffix == ".npy" else {}
    return StreamLoader(path, BATCH, window_blocks=WINDOW_BLOCKS, **blocks, **options)


def endless(loader: StreamLoader) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def steady(batches: Callable[[], Iterator[torch.Tensor]], early: int, unit: int) -> Callable:
    """``run(seconds)`` takes batches for that long: seconds a gigabyte.

    ``early`` batches were read ahead while others had their turn: they are not counted. Batches
    come in bursts of ``unit``: whole bursts are counted.
    """
    stream: list[Iterator[torch.Tensor]] = []

    def run(seconds: float) -> float:
        if not stream:
            stream.append(batches())
        for _ in range(early):
            next(stream[0])
        nbytes, begin = 0, time.perf_counter()
        while (taken := time.perf_counter() - begin) < seconds or not nbytes:
            for _ in range(unit):
                nbytes += next(stream[0]).nbytes
        return taken / nbytes * 1e9

    return run


def shares_of_the_ceiling(
    folder: Path, layouts: list[Layout], others: Peers, seconds: float, rounds: int
) -> None:
    """All in one run: ceilings, ours and the others take turns."""
    cases: dict[str, Callable[[], float]] = {}
    cpu: dict[str, list[float]] = {}
    for layout in layouts:
        loader = opened(layout.path(folder))
        first = len(loader) % ROUND_BATCHES  # so that bursts begin where rounds do
        ours = steady(partial(endless, loader), 4 * ROUND_BATCHES + first, ROUND_BATCHES)
        runs = {"ceiling": ceiling(layout, folder), "penstock": ours}
        for who, work in runs.items():
            case = f"{layout.name}, {who}"
            cases[case] = partial(with_cpu, work, seconds, cpu.setdefault(case, []))
    if any(layout.name == "npy" for layout in layouts):  # it has no chunks: what if none are given?
        loader = StreamLoader(folder / "rows.npy", BATCH)
        by_default = steady(partial(endless, loader), 2 * len(loader), len(loader))
        cases["npy, penstock, blocks and window by default"] = partial(by_default, seconds)
    for name, batches in others.items():
        if batches is None:
            emit(case=name, skipped="not installed")
        else:
            cases[name] = partial(steady(batches, AHEAD, 1), seconds)
    taken = interleaved(cases, rounds=rounds)
    for case, each in taken.items():
        emit(case=case, **speeds(Measured.of(case, each)))
    for layout in layouts:
        share = ratio(taken, f"{layout.name}, penstock", f"{layout.name}, ceiling")
        claim(f"share of the ceiling, {layout.name}", share, at_least=layout.share)
        share = ratio(cpu, f"{layout.name}, penstock", f"{layout.name}, ceiling")
        emit(case=f"share of the ceiling in CPU time, {layout.name}", found=share)
    if others:
        against(taken, [f"{layout.name}, penstock" for layout in layouts], others)


def with_cpu(run: Callable[[float], float], seconds: float, cpu: list[float]) -> float:
    """Seconds a gigabyte; ``cpu`` gets CPU seconds a gigabyte: a busy machine changes them less."""
    begin, busy = time.perf_counter(), time.process_time()
    found = run(seconds)
    cpu.append((time.process_time() - busy) / (time.perf_counter() - begin) * found)
    return found


def speeds(measured: Measured) -> dict[str, float]:
    return {
        "median_gb_per_second": 1 / measured.median_seconds,
        "lower_quartile": 1 / measured.upper_quartile_seconds,
        "upper_quartile": 1 / measured.lower_quartile_seconds,
    }


def against(taken: dict[str, list[float]], ours: list[str], others: Peers) -> None:
    """Ours against the fastest of the others on the same kind of storage.

    Without a peer that belongs to the comparison there is none: "the best" would be torch.
    """
    kinds = {".npy and formats of their own": ("npy, penstock", lambda name: "Zarr" not in name)}
    kinds["blosc-lz4 Zarr"] = ("blosc-lz4, penstock", lambda name: "Zarr" in name)
    missing = [name for name in REQUIRED if others.get(name, "there") is None]
    for kind, (case, belongs) in kinds.items():
        rivals = [name for name in others if name in taken and belongs(name)]
        if case not in ours:
            continue
        if missing:
            text = f"times faster than the best of {', '.join(['torch', *REQUIRED])} ({kind})"
            claim_not_made(text, f"not installed: {', '.join(missing)}; pip install '.[bench]'")
            continue
        best = min(rivals, key=lambda name: np.median(taken[name]))
        text = f"times faster than {best}, the best of {len(rivals)} ({kind})"
        claim(text, ratio(taken, case, best), at_least=2)


def cold(folder: Path, layouts: list[Layout], rounds: int) -> None:
    """A whole epoch from the disk; the control reads the bytes of the files, one after another."""
    for layout in layouts:
        path = layout.path(folder)
        size = np.load(folder / "rows.npy", mmap_mode="r").nbytes
        cases = {"epoch": partial(cold_epoch, path), "bytes": partial(bare, path)}
        taken = interleaved(cases, rounds=rounds, warmup=0)
        seconds = {name: float(np.median(each)) for name, each in taken.items()}
        emit(
            case=f"{layout.name}, cold",
            gb_per_second=size / 1e9 / seconds["epoch"],
            stored_share=sum(file.stat().st_size for file in files_of(path)) / size,
            epoch_seconds=seconds["epoch"],
            bare_bytes_seconds=seconds["bytes"],
        )


def cold_epoch(path: Path) -> float:
    drop_cache(path)
    begin = time.perf_counter()
    with opened(path) as loader:
        for _ in loader:
            pass
    return time.perf_counter() - begin


def bare(path: Path) -> float:
    drop_cache(path)
    begin, into = time.perf_counter(), bytearray(1 << 22)
    for file in files_of(path):
        with file.open("rb", buffering=0) as stored:
            while stored.readinto(into):
                pass
    return time.perf_counter() - begin


def seconds_to_first_batch(path: Path, state: dict[str, Any] | None) -> float:
    begin = time.perf_counter()
    loader = opened(path)
    if state is not None:
        loader.load_state_dict(state)
    with loader:
        next(iter(loader))
        return time.perf_counter() - begin


def seconds_to_torchs_first_batch(path: Path, state: None) -> float:
    begin = time.perf_counter()
    next(torch_loader(RowsAtOnce(path), 0)())
    return time.perf_counter() - begin


def first_batches(folder: Path, layouts: list[Layout], rounds: int) -> None:
    """In a new process, the page cache dropped: from construction, and after a resume."""
    for layout in layouts:
        path = layout.path(folder)
        with opened(path) as loader:
            loader.seek(3, len(loader) // 2)
            middle = loader.state_dict()
        del loader  # what is mapped is not dropped
        cases = {
            "cold start": (seconds_to_first_batch, None),
            "resume in the middle": (seconds_to_first_batch, middle),
        }
        if layout.name == "npy":  # a loader without windows has less to read before it begins
            cases["torch, batched reads"] = (seconds_to_torchs_first_batch, None)
        for name, (work, state) in cases.items():
            taken = []
            for _ in range(rounds):
                drop_cache(path)
                taken.append(in_new_process(work, path, state))
            emit(case=f"{layout.name}, first batch, {name}", seconds=float(np.median(taken)))


def main() -> None:
    options = arguments(__doc__, seconds=3.0, rounds=5, only="", directory="")
    wanted = options.only.split(",") if options.only else [*PARTS, *(x.name for x in LAYOUTS)]
    layouts = [layout for layout in LAYOUTS if layout.name in wanted]
    rows, columns = (32 * CHUNK_ROWS, 16) if options.tiny else (128 * CHUNK_ROWS, 1024)
    seconds, rounds = (0.01, 1) if options.tiny else (options.seconds, options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.directory or temporary)
        folder.mkdir(exist_ok=True)
        lz4 = next(layout for layout in LAYOUTS if layout.name == "blosc-lz4")
        write_layouts(folder, [*layouts, lz4], rows=rows, columns=columns)
        emit(cores=CORES, rows=rows, columns=columns, load_average=os.getloadavg()[0])
        if "cold" in wanted:  # before anything is mapped for long: mapped pages are not dropped
            cold(folder, layouts, rounds)
        if "first" in wanted:
            first_batches(folder, layouts[:1] if options.tiny else layouts, rounds)
        others = peers(folder, lz4.path(folder)) if "peers" in wanted else {}
        if options.tiny:  # new processes take longer than all the rest
            others = {name: each for name, each in others.items() if "workers" not in name}
        shares_of_the_ceiling(folder, layouts, others, seconds, rounds)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
