"""The demo: a run is killed, resumed, and compared with an uninterrupted one and with torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Dataset

from penstock.extras import optional
from penstock.loaders.stream import StreamLoader
from penstock.report import write_report
from penstock.tuning.machine import this_machine
from penstock.tuning.monitor import DataLoaderPerformanceMonitor

SAMPLES, FEATURES, BATCH, CHUNK, PASSES, SAVE_EVERY = 24_000, 64, 96, 50, 2, 20

CONFIG = f"""\
train: {{train_chunk_size: {CHUNK}, max_passes: {PASSES}, checkpoint_every: {SAVE_EVERY}}}
loader: {{batch_size: {BATCH}, memory_budget: 8MB}}
dataset:
  train: {{path: train.zarr}}
  val: {{path: val.zarr}}
model: {{_target_: penstock.cli.demo.DemoModel, samples: {SAMPLES}, features: {FEATURES}}}
trainer: {{accelerator: cpu, devices: 1, enable_model_summary: false}}
"""
TORCH_BATCHES = 4  # with what its workers read ahead, a few seconds
KILL_AT = 273  # in the middle of a chunk, of an epoch, and between two checkpoints


def make_project(folder: Path) -> None:
    """Write a configuration and two Zarr groups: a function to learn, and each row's index."""
    zarr = optional("zarr", extra="zarr")
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(FEATURES).astype(np.float32)
    for name, samples in (("train", SAMPLES), ("val", SAMPLES // 10)):
        x = rng.standard_normal((samples, FEATURES)).astype(np.float32)
        y = np.tanh(x @ direction / 8)
        group = zarr.open_group(folder / f"{name}.zarr", mode="w")
        for field, values in (("x", x), ("y", y), ("index", np.arange(samples))):
            stored = group.create_array(
                field, shape=values.shape, dtype=values.dtype, chunks=(256, *values.shape[1:])
            )
            stored[:] = values
    (folder / "demo.yaml").write_text(CONFIG)


def run_in_new_process(folder: Path, *arguments: str) -> int:
    """Run ``penstock`` with these arguments in a directory; return its exit code."""
    program = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(program, cwd=folder, check=False).returncode


def run_demo(
    folder: Path, run: Callable[..., int] = run_in_new_process, page: Path | None = None
) -> int:
    """Run the demo in a directory.

    Args:
        folder: For data and runs.
        run: Runs a command: ``run(folder, "train", "demo.yaml")`` returns its exit code.
        page: Where the report is written; None for the directory of the run.

    Returns:
        0 if all promises hold, else 1.
    """
    console = Console()
    console.print(f"[bold]1 {SAMPLES:,} samples in Zarr, and demo.yaml:[/]")
    folder.mkdir(parents=True, exist_ok=True)
    make_project(folder)
    console.print(CONFIG, style="dim", soft_wrap=True, highlight=False, markup=False)
    step = partial(_step, console, folder, run)
    step(2, "an uninterrupted run", "train", "demo.yaml", "run_dir=whole")
    kill = f"model.kill_at={KILL_AT}"
    step(3, "the same run, killed halfway", "train", "demo.yaml", "run_dir=killed", kill)
    step(4, "the killed run, resumed", "train", "demo.yaml", "run_dir=killed", "--resume")
    code = _promises(console, folder)
    console.print("[bold]5 the same data, read by Penstock and by torch's DataLoader[/]")
    _compare(console, folder / "train.zarr")
    console.print("[bold]6 what the resumed run waited for:[/] penstock report killed")
    console.print(write_report(folder / "killed", page), highlight=False, soft_wrap=True)
    return code


def _step(
    console: Console, folder: Path, run: Callable[..., int], number: int, what: str, *arguments: str
) -> None:
    command = " ".join(["penstock", *arguments])
    console.print(f"[bold]{number} {what}:[/] {command}", highlight=False, soft_wrap=True)
    code = run(folder, *arguments)
    killed = any(argument.startswith("model.kill_at") for argument in arguments)
    if killed:
        console.print(f"  killed (SIGKILL) after step {KILL_AT}, exit code {code}")
    elif code != 0:
        raise SystemExit(code)


def _promises(console: Console, folder: Path) -> int:
    whole, killed = _weights(folder / "whole"), _weights(folder / "killed")
    seen = whole["times_seen"]
    promises = {
        f"{int(seen.sum()):,} samples in the weights, the same in the same order": torch.equal(
            whole["digest"], killed["digest"]
        ),
        f"each of them exactly once in each of {PASSES} passes": bool(
            (killed["times_seen"] == PASSES).all()
        ),
        "final weights equal, bit for bit": all(
            torch.equal(whole[name], killed[name]) for name in whole
        ),
    }
    table = Table("promise", "held", title="killed and resumed, against uninterrupted")
    for promise, held in promises.items():
        table.add_row(promise, "[green]yes[/]" if held else "[red]NO[/]")
    console.print(table)
    return 0 if all(promises.values()) else 1


def _compare(console: Console, path: Path) -> None:
    """Print how fast both loaders read the same shuffled batches."""
    monitor, cores, found = DataLoaderPerformanceMonitor(), this_machine().cores, {}
    with StreamLoader(path, BATCH, memory_budget="8MB") as stream:
        found[f"StreamLoader, {stream.threads} threads"] = monitor.time_batch_loading(stream, 200)
    options: dict[str, Any] = {"num_workers": cores, "shuffle": True}
    rows: DataLoader[Any] = DataLoader(ZarrRows(path), BATCH, **options)
    found[f"DataLoader, {cores} workers"] = monitor.time_batch_loading(rows, TORCH_BATCHES)
    table = Table("loader", "samples/s", "first batch", "after a kill")
    for name, each in found.items():
        again = "the exact next batch" if name.startswith("Stream") else "the epoch from its start"
        speed, first = each["samples_per_second"], each["first_batch_time"]
        table.add_row(name, f"{speed:,.0f}", f"{first * 1e3:,.0f} ms", again)
    console.print(table)
    console.print(
        "The dataset of the DataLoader reads one sample at a time, as most do; Penstock reads "
        "whole storage chunks, and shuffles samples of many of them."
    )


class ZarrRows(Dataset[dict[str, Any]]):
    """A typical map-style dataset, which reads one sample at a time from Zarr.

    Args:
        path: A Zarr group.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._group = path, None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._group is None:  # in each worker
            self._group = optional("zarr", extra="zarr").open_group(self.path, mode="r")
        group: Any = self._group
        return {name: np.asarray(group[name][index]) for name in ("x", "y", "index")}


def _weights(run: Path) -> dict[str, Any]:
    last = max((run / "checkpoints").glob("step-*.ckpt"))
    weights: dict[str, Any] = torch.load(last, weights_only=True)["state_dict"]
    return weights


lightning = optional("lightning.pytorch", extra="train")


class DemoModel(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A small regression that records which samples it was trained on, and in which order.

    Args:
        samples: Size of the dataset.
        features: Width of a sample.
        kill_at: The step after which to kill this process.
    """

    times_seen: torch.Tensor
    digest: torch.Tensor

    def __init__(self, samples: int, features: int, kill_at: int | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 1))
        self.kill_at = kill_at
        self.register_buffer("times_seen", torch.zeros(samples, dtype=torch.int64))
        self.register_buffer("digest", torch.zeros((), dtype=torch.int64))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return self._loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Log the loss."""
        self.log("val/loss", self._loss(batch), batch_size=len(batch["y"]), prog_bar=True)

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch["x"])[:, 0], batch["y"])

    def on_train_batch_end(
        self, outputs: Any, batch: dict[str, torch.Tensor], batch_idx: int
    ) -> None:
        """Record the samples of the batch."""
        index = batch["index"]
        self.times_seen[index] += 1
        weight = torch.arange(1, len(index) + 1)  # another order gives another sum
        self.digest.mul_(1_000_003).add_((weight * index).sum())
        if self.trainer.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
