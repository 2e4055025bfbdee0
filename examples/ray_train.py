"""Train with Ray Train: workers may fail or change in number, and the driver may be killed.

    python examples/ray_train.py --dir run --workers 2
    python examples/ray_train.py --dir run --workers 1   # continues with fewer workers

The global batch stays the same, so every step has the same samples. With
``--fail-at 30`` a worker is killed after that step; Ray starts the workers again, and the loop
continues at the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import numpy as np
import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

from penstock import StreamLoader
from penstock.integrations.ray import RayTraining, recoverable

SAMPLES, INPUTS, GLOBAL_BATCH, SAVE_EVERY = 1_200, 8, 60, 5


def make_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, INPUTS), np.float32)
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.column_stack([x, np.tanh(x.sum(1))]))


def train_loop(config: dict) -> None:
    """Run on every worker, again after a failure."""
    world = train.get_context().get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 1))
    model, step = prepare_model(net), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # lanes: the number of readers that share the data; fixed, so that all numbers of workers agree
    with StreamLoader(Path(config["dir"]) / "rows.npy", GLOBAL_BATCH // world, lanes=4) as loader:
        training = RayTraining(loader)
        with training.resume() as folder:
            if folder is not None:
                saved = torch.load(folder / "model.pt", weights_only=True)
                net.load_state_dict(saved["model"])
                step = saved["step"]
                print(f"resumed at step {step} on {world} workers", flush=True)
        resumed = step > 0

        def save(folder: Path) -> None:
            torch.save({"model": net.state_dict(), "step": step}, folder / "model.pt")

        while step < config["steps"]:
            for batch in loader:
                loss = nn.functional.mse_loss(model(batch[:, :-1]).squeeze(1), batch[:, -1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % SAVE_EVERY == 0:
                    training.report({"loss": loss.item(), "step": step, "workers": world}, save)
                if step == config["fail_at"] and not resumed:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == config["steps"]:
                    break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="for data and checkpoints")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fail-at", type=int, help="kill the workers once, after this step")
    options = parser.parse_args()
    folder = options.dir.resolve()
    if not folder.exists():
        make_data(folder)
    ray.init(num_cpus=2, include_dashboard=False)
    settings = {"dir": str(folder), "steps": options.steps, "fail_at": options.fail_at}
    result = TorchTrainer(
        train_loop,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=options.workers),
        # with the same name and storage, a new driver continues at the last checkpoint
        run_config=recoverable(
            train.RunConfig(
                name="run",
                storage_path=str(folder),
                failure_config=train.FailureConfig(max_failures=1),
            )
        ),
    ).fit()
    found = result.metrics
    print(
        f"step {found['step']} on {found['workers']} workers: loss {found['loss']:.6f}, "
        f"{found['penstock/waiting_share']:.0%} of the time waiting for data"
    )


if __name__ == "__main__":
    main()
