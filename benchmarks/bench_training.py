"""What does it cost to train from storage instead of from memory, in time and in memory?

Control: the same epoch from tensors in memory, shuffled. Ceiling: the steps alone. Each run is a
process of its own, so that its peak memory is its own. First a model on the CPU, which decoding
competes with; then a device step that takes 20 ms and leaves the CPU alone; last the loop of the
guide to chunked streaming at the width of a real recording, 13,741 neurons and 1,736 stimuli.

    python benchmarks/bench_training.py [--tiny] [--rounds 3] [--timesteps 120000]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import zarr
from measure import arguments, claim, emit, in_new_process, interleaved, ratio, report, run
from numcodecs import Blosc
from streaming_data import CHUNK_ROWS, LAYOUTS, write_layouts

from penstock import (
    FlyVisSim,
    RandomChunkLoader,
    StreamLoader,
    calculate_chunk_params,
    create_zarr_loader,
    keyed_generator,
    sample_batch_within_chunk,
)

BATCH = 256
STEP_SECONDS = 0.02
STORED_TIMESTEPS = 2000  # of a storage chunk, as recordings have it
TOTAL_STEPS = 100


# -- one process, its seconds and its peak memory


def peak_bytes() -> int:
    """Most memory this process ever had. (getrusage also counts its parent's.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def alone(work: Callable[..., Any], *args: Any) -> tuple[float, int]:
    """Seconds and peak bytes of ``work`` in a new process."""
    return in_new_process(weighed, work, *args)


def weighed(work: Callable[..., float], *args: Any) -> tuple[float, int]:
    before = peak_bytes()
    seconds = work(*args)
    return seconds, max(1, peak_bytes() - before)  # a tiny run may add nothing


def compare(cases: dict[str, Callable[[], tuple[float, int]]], rounds: int) -> dict[str, Any]:
    """Seconds of each case and round; the median peak is printed too."""
    os.sync()  # what was just written is not measured
    peaks: dict[str, list[int]] = {name: [] for name in cases}

    def run(name: str) -> float:
        seconds, peak = cases[name]()
        peaks[name].append(peak)
        return seconds

    seconds = interleaved({name: partial(run, name) for name in cases}, rounds=rounds, warmup=0)
    report(seconds)
    for name, each in peaks.items():
        emit(case=name, peak_megabytes=median(each) / 1e6)
    return {"seconds": seconds, "peaks": peaks}


# -- an epoch of batches


class Autoencoder(torch.nn.Sequential):
    def __init__(self, columns: int) -> None:
        hidden = [torch.nn.Linear(columns, 256), torch.nn.GELU(), torch.nn.Linear(256, columns)]
        super().__init__(*hidden)


def on_the_cpu(batches: Iterator[torch.Tensor], columns: int) -> None:
    model = Autoencoder(columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()


def on_a_device(batches: Iterator[torch.Tensor], columns: int) -> None:
    for _ in batches:
        time.sleep(STEP_SECONDS)


STEPS = {"a model on the CPU": on_the_cpu, "a device step of 20 ms": on_a_device}


def epoch_streamed(path: Path, step: str) -> float:
    with StreamLoader(path, BATCH, memory_budget="256MB") as loader:
        begin = time.perf_counter()
        STEPS[step](iter(loader), loader.source.fields[""].shape[0])
        return time.perf_counter() - begin


def epoch_in_memory(path: Path, step: str) -> float:
    data = torch.from_numpy(np.asarray(zarr.open_array(path, mode="r")[...]))
    begin = time.perf_counter()
    order = torch.randperm(len(data))[: len(data) // BATCH * BATCH].split(BATCH)
    STEPS[step]((data.index_select(0, rows) for rows in order), data.shape[1])
    return time.perf_counter() - begin


def epoch_of_nothing(path: Path, step: str) -> float:
    """The steps alone, with one batch again and again."""
    rows, columns = zarr.open_array(path, mode="r").shape
    batch, begin = torch.zeros(BATCH, columns), time.perf_counter()
    STEPS[step]((batch for _ in range(rows // BATCH)), columns)
    return time.perf_counter() - begin


def epochs(folder: Path, rows: int, columns: int, rounds: int) -> None:
    lz4 = next(layout for layout in LAYOUTS if layout.name == "blosc-lz4")
    write_layouts(folder, [lz4], rows=rows, columns=columns)
    path = lz4.path(folder)
    for step in STEPS:
        ways = {
            "streamed": epoch_streamed,
            "in memory": epoch_in_memory,
            "steps alone": epoch_of_nothing,
        }
        cases = {f"{step}, {way}": partial(alone, run, path, step) for way, run in ways.items()}
        found = compare(cases, rounds)
        for control in ("from memory", "the steps alone"):
            case = {"from memory": "in memory", "the steps alone": "steps alone"}[control]
            longer = ratio(found["seconds"], f"{step}, {case}", f"{step}, streamed")
            text = f"{step}: times as long as {control}"
            if step == "a device step of 20 ms":
                claim(text, longer, at_most=1.03)
            else:  # decoding takes cores from the model: no promise
                emit(case=text, found=longer)


# -- the guide's loop over a recording


def write_wide(folder: Path, timesteps: int, neurons: int, stored: int) -> Path:
    """A recording whose storage chunks are all alike: made in seconds, read like any other."""
    path = folder / "x_list_0"
    layout = {
        "dtype": "<f4", "compressors": Blosc(cname="zstd", clevel=3, shuffle=2, blocksize=0),
        "fill_value": None, "filters": None, "zarr_format": 2,
        "chunk_key_encoding": {"name": "v2", "separator": "."},
    }  # fmt: skip
    series = zarr.create_array(
        path / "timeseries.zarr", shape=(timesteps, neurons, 4), chunks=(stored, neurons, 1),
        **layout,
    )  # fmt: skip
    static = np.zeros((neurons, 5), np.float32)
    zarr.create_array(path / "metadata.zarr", data=static, chunks=static.shape, **{
        name: value for name, value in layout.items() if name != "dtype"
    })  # fmt: skip
    noise = np.random.default_rng(0).standard_normal((stored, neurons), np.float32)
    for column in range(2):
        series[:stored, :, column] = np.round(noise * 32) / 32
        first = path / "timeseries.zarr" / f"0.0.{column}"
        for chunk in range(1, timesteps // stored):
            shutil.copyfile(first, first.with_name(f"{chunk}.0.{column}"))
    return path


def step_on(data: torch.Tensor, stim: torch.Tensor, seed: tuple[int, ...]) -> None:
    """A batch of rollouts is chosen and gathered; the device is busy for 20 ms with it."""
    starts, _, _ = sample_batch_within_chunk(
        data, stim, torch.zeros(0), torch.zeros(data.shape[1] + 1), BATCH,
        min(TOTAL_STEPS, len(data) - 1), 0, "cpu", generator=keyed_generator(*seed),
    )  # fmt: skip
    data[starts], stim[starts]
    time.sleep(STEP_SECONDS)


def guide_streamed(path: Path, timesteps: int, chunk: int, stimuli: int, epoch: int = 0) -> float:
    """Seconds of that epoch; those before it are trained on too."""
    load = create_zarr_loader(path, FlyVisSim.VOLTAGE, FlyVisSim.STIMULUS, stimuli)
    chunks, batches, _ = calculate_chunk_params(timesteps, chunk, BATCH, 1)
    chunk_loader = RandomChunkLoader(
        load_fn=lambda start, end: load(start, end), total_timesteps=timesteps, chunk_size=chunk,
        align=load.chunk_timesteps, seed=234,
    )  # fmt: skip
    for _ in range(epoch + 1):
        begin = time.perf_counter()
        chunk_loader.start_epoch(num_chunks=chunks)
        for chunk_idx in range(chunks):
            chunk_data, chunk_stim = chunk_loader.get_next_chunk()
            assert chunk_data is not None and chunk_stim is not None
            for batch in range(batches):
                step_on(chunk_data, chunk_stim, (234, chunk_idx, batch))
        seconds = time.perf_counter() - begin
    chunk_loader.cleanup()
    return seconds


def guide_in_memory(path: Path, timesteps: int, chunk: int, stimuli: int) -> float:
    load = create_zarr_loader(path, FlyVisSim.VOLTAGE, FlyVisSim.STIMULUS, stimuli)
    data, stim = (torch.from_numpy(array) for array in load(0, timesteps))
    begin = time.perf_counter()
    for batch in range(calculate_chunk_params(timesteps, chunk, BATCH, 1)[2]):
        step_on(data, stim, (234, batch))
    return time.perf_counter() - begin


def guide(folder: Path, timesteps: int, neurons: int, stimuli: int, rounds: int) -> None:
    stored = min(STORED_TIMESTEPS, timesteps // 4)
    path = write_wide(folder, timesteps, neurons, stored)
    ways = {
        "streamed": guide_streamed,
        "streamed, second epoch": partial(guide_streamed, epoch=1),
        "in memory": guide_in_memory,
    }
    size = (path, timesteps, 2 * stored, stimuli)
    found = compare({f"guide, {way}": partial(alone, f, *size) for way, f in ways.items()}, rounds)
    for way in ("streamed", "streamed, second epoch"):
        longer = ratio(found["seconds"], "guide, in memory", f"guide, {way}")
        claim(f"guide, {way}: times as long as from memory", longer, at_most=1.05)
    ours, theirs = (median(found["peaks"][f"guide, {way}"]) for way in ("streamed", "in memory"))
    claim("guide: share of the memory saved", 1 - ours / theirs, at_least=0.87)


def main() -> None:
    options = arguments(__doc__, rounds=3, timesteps=120_000)
    rows, columns = (16 * CHUNK_ROWS, 16) if options.tiny else (128 * CHUNK_ROWS, 1024)
    rounds = 1 if options.tiny else options.rounds
    emit(load_average=os.getloadavg()[0])
    with tempfile.TemporaryDirectory() as folder:
        epochs(Path(folder), rows, columns, rounds)
        if options.tiny:
            guide(Path(folder), 2_000, 32, 8, rounds)
        else:
            guide(Path(folder), options.timesteps, 13_741, 1_736, rounds)
    emit(load_average=os.getloadavg()[0])


if __name__ == "__main__":
    sys.exit(run(main, __file__))
