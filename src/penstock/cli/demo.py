"""The demo: train, be killed, resume, and compare with a run that nobody killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from penstock.extras import optional

SAMPLES, FEATURES, BATCH, CHUNK, PASSES, SAVE_EVERY = 24_000, 64, 96, 50, 2, 20

CONFIG = f"""\
train: {{train_chunk_size: {CHUNK}, max_passes: {PASSES}, checkpoint_every: {SAVE_EVERY}}}
loader: {{batch_size: {BATCH}, memory_budget: 8MB}}
dataset:
  train: {{path: train.zarr}}
  val: {{path: val.zarr}}
model: {{_target_: penstock.cli.demo_model.DemoModel, samples: {SAMPLES}, features: {FEATURES}}}
trainer: {{accelerator: cpu, devices: 1, enable_model_summary: false}}
"""
KILL_AT = 273  # in the middle of a chunk, of an epoch, and between two checkpoints


def make_project(folder: Path) -> None:
    """A configuration, and two Zarr groups: a function to learn, and each row's index."""
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


def run_demo(folder: Path) -> int:
    """Run the demo in a directory; 0 if everything held."""
    console = Console()
    console.print(f"[bold]1[/] making {SAMPLES:,} samples in Zarr, and demo.yaml:")
    folder.mkdir(parents=True, exist_ok=True)
    make_project(folder)
    console.print(CONFIG, style="dim", soft_wrap=True, highlight=False, markup=False)
    _step(console, 2, folder, "train", "run_dir=whole")
    _step(console, 3, folder, "train", "run_dir=killed", f"model.kill_at={KILL_AT}")
    _step(console, 4, folder, "train", "run_dir=killed", "--resume")
    return _report(console, folder)


def _step(console: Console, number: int, folder: Path, command: str, *arguments: str) -> None:
    said = " ".join(["penstock", command, "demo.yaml", *arguments])
    console.print(f"[bold]{number} {said}[/]", highlight=False)
    program = [sys.executable, "-m", "penstock", command, "demo.yaml", *arguments]
    code = subprocess.run(program, cwd=folder, check=False).returncode
    killed = any(argument.startswith("model.kill_at") for argument in arguments)
    if killed:
        console.print(f"  killed (SIGKILL) after step {KILL_AT}, exit code {code}")
    elif code != 0:
        raise SystemExit(code)


def _report(console: Console, folder: Path) -> int:
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
    table = Table("promise", "held", title="killed and resumed, against undisturbed")
    for promise, held in promises.items():
        table.add_row(promise, "[green]yes[/]" if held else "[red]NO[/]")
    console.print(table)
    return 0 if all(promises.values()) else 1


def _weights(run: Path) -> dict[str, Any]:
    last = max((run / "checkpoints").glob("step-*.ckpt"))
    weights: dict[str, Any] = torch.load(last, weights_only=True)["state_dict"]
    return weights
