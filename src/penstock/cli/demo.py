"""The demo: train, be killed, resume, and compare with a run that nobody killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from penstock.cli.demo_training import BATCH, CHUNK, CHUNKS, SAMPLES, make_data

KILL_AT = 273  # in the middle of a chunk, of an epoch, and between two checkpoints


def run_demo(folder: Path) -> int:
    """Run the demo in a directory; 0 if everything held."""
    console = Console()
    console.print(f"[bold]1[/] making {SAMPLES:,} samples in Zarr")
    make_data(folder)
    console.print(f"[bold]2[/] training {CHUNKS} chunks of {CHUNK} batches, undisturbed")
    _train(folder, "whole")
    console.print(f"[bold]3[/] the same, killed (SIGKILL) at step {KILL_AT}")
    code = _train(folder, "killed", kill_at=KILL_AT)
    console.print(f"  killed, exit code {code}")
    console.print("[bold]4[/] resumed in a new process")
    _train(folder, "killed")
    return _report(console, folder)


def _train(folder: Path, run: str, kill_at: int = -1) -> int:
    command = [sys.executable, "-m", "penstock", "demo-training", str(folder), str(folder / run)]
    done = subprocess.run([*command, "--kill-at", str(kill_at)], check=False)
    if done.returncode != 0 and kill_at < 0:
        raise SystemExit(done.returncode)
    return done.returncode


def _report(console: Console, folder: Path) -> int:
    whole, killed = _seen(folder / "whole"), _seen(folder / "killed")
    epochs = len(whole) // (SAMPLES // BATCH * BATCH)
    first = whole[: SAMPLES // BATCH * BATCH]
    promises = {
        f"{len(whole):,} samples seen, the same in the same order": np.array_equal(whole, killed),
        f"each sample once in an epoch ({epochs} epochs)": len(np.unique(first)) == len(first),
        "final weights equal, bit for bit": _equal_weights(folder / "whole", folder / "killed"),
    }
    table = Table("promise", "held", title="killed and resumed, against undisturbed")
    for promise, held in promises.items():
        table.add_row(promise, "[green]yes[/]" if held else "[red]NO[/]")
    console.print(table)
    return 0 if all(promises.values()) else 1


def _seen(run: Path) -> npt.NDArray[np.int64]:
    return np.fromfile(run / "seen.bin", np.int64)


def _equal_weights(one: Path, other: Path) -> bool:
    weights = [torch.load(run / "last.pt", weights_only=True)["model"] for run in (one, other)]
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
