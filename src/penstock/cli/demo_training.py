"""The demo's training program: a plain PyTorch loop over a streamed Zarr, in chunks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import nn

from penstock.extras import optional
from penstock.loaders.stream import StreamLoader

SAMPLES, FEATURES, BATCH, CHUNK, CHUNKS, SAVE_EVERY = 24_000, 64, 96, 50, 10, 20


def make_data(folder: Path) -> None:
    """Two Zarr groups, for training and validation: a function to learn, and each row's index."""
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


class Run:
    """A run directory: the last checkpoint, and which samples went into the weights."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint, self.seen = folder / "last.pt", folder / "seen.bin"
        self.seen.touch()

    def save(self, state: dict[str, Any]) -> None:
        """Write beside, then rename: killed at any moment, a whole checkpoint is there."""
        partial = self.checkpoint.with_suffix(".tmp")
        with partial.open("wb") as file:
            torch.save({**state, "seen_bytes": self.seen.stat().st_size}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.checkpoint)

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint; what was seen after it is not in the weights, and is forgotten."""
        if not self.checkpoint.exists():
            return None
        state: dict[str, Any] = torch.load(self.checkpoint, weights_only=True)
        os.truncate(self.seen, state["seen_bytes"])
        return state

    def record(self, samples: torch.Tensor) -> None:
        """These samples are in the weights."""
        with self.seen.open("ab") as file:
            file.write(samples.numpy().tobytes())


def train(data: Path, folder: Path, *, kill_at: int = -1) -> None:
    """Train in chunks, validate after each, checkpoint on the way; go on where it was killed."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run = Run(folder)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    options: dict[str, Any] = {"memory_budget": "8MB"}
    with (
        StreamLoader(data / "train.zarr", BATCH, chunk_size=CHUNK, **options) as loader,
        StreamLoader(data / "val.zarr", 256, evaluation=True, **options) as val_loader,
        Progress(
            TextColumn("{task.description}"),
            *(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")),
            console=Console(force_terminal=None),
        ) as progress,
    ):
        step = 0
        if (state := run.load()) is not None:
            step = state["step"]
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            loader.load_state_dict(state["loader"])
            progress.console.print(
                f"  resumed at step {step}: epoch {state['loader']['epoch']}, "
                f"position {state['loader']['position']:,}"
            )
        bar = progress.add_task("  training", total=CHUNK * CHUNKS, completed=step, note="")
        while step < CHUNK * CHUNKS:
            for batch in loader:
                loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                run.record(batch["index"])
                step += 1
                progress.update(bar, completed=step)
                if step % SAVE_EVERY == 0:
                    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    run.save({"step": step, "loader": loader.state_dict(), **saved})
                if step == kill_at:
                    progress.stop()
                    os.kill(os.getpid(), signal.SIGKILL)
            progress.update(
                bar, note=f"chunk {step // CHUNK}, val loss {validate(model, val_loader):.4f}"
            )
        run.save({"step": step, "model": model.state_dict()})


@torch.no_grad()
def validate(model: nn.Module, loader: StreamLoader) -> float:
    """Mean squared error over the whole validation part."""
    total = sum(
        nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"], reduction="sum").item()
        for batch in loader
    )
    return float(total / loader.samples)
