"""Train on several ranks from one Zarr store, stop, and continue on a different number of ranks.

Every rank reads its own share of a shuffle of the whole dataset. Rank 0 writes one checkpoint, with
one state of the loader, which fits any number of ranks. The global batch stays the same, so the
samples of each step stay the same, and the weights too, up to rounding.

    torchrun --nproc-per-node=2 examples/ddp.py --dir run
    torchrun --nproc-per-node=2 examples/ddp.py --dir run2 --stop-at 50   # stops after step 50
    torchrun --nproc-per-node=3 examples/ddp.py --dir run2                # continues on three

With ``torchrun --nnodes=1:4 --max-restarts=3 ...``, torchrun does this when a machine is lost; set
``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` (docs/distributed.md explains why).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import zarr
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from penstock import StreamLoader
from penstock.distributed import agreed, together

SAMPLES, INPUTS, GLOBAL_BATCH, EPOCHS, SAVE_EVERY = 3_000, 16, 60, 3, 20


def make_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(INPUTS).astype(np.float32)
    for name, rows in (("train", SAMPLES), ("val", 501)):
        x = rng.standard_normal((rows, INPUTS), np.float32)
        group = zarr.create_group(folder / f"{name}.zarr")
        group.create_array("x", data=x, chunks=(64, INPUTS))
        group.create_array("y", data=np.tanh(x @ weights), chunks=(64,))


def device_and_backend() -> tuple[torch.device, str]:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        return device, "nccl"
    return torch.device("cpu"), "gloo"


def train(folder: Path, device: torch.device, stop_at: int | None) -> nn.Module | None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # lanes: the number of readers that share the data; fixed, so that all numbers of ranks agree
    loader = agreed(
        lambda: StreamLoader(
            folder / "train.zarr", GLOBAL_BATCH // world, lanes=4, window_blocks=4, device=device
        )
    )
    step, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        if rank == 0:
            print(f"resumed at step {step} on {world} ranks")
    with loader:
        while loader.state_dict()["epoch"] < EPOCHS:
            for batch in loader:
                loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if rank == 0 and (step % SAVE_EVERY == 0 or step == stop_at):
                    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                    save(checkpoint, state | {"loader": loader.state_dict(), "step": step})
                if step == stop_at:
                    return None
    return model


def save(checkpoint: Path, state: dict) -> None:
    """Write a new file and rename it, so that a kill leaves the last complete one."""
    new = checkpoint.with_suffix(".new")
    torch.save(state, new)
    new.replace(checkpoint)


@torch.no_grad()
def evaluate(model: nn.Module, folder: Path, device: torch.device) -> tuple[int, float]:
    """Return the number of samples and the mean loss over all ranks; each sample counts once."""
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    batch_size = GLOBAL_BATCH // dist.get_world_size()
    with StreamLoader(folder / "val.zarr", batch_size, evaluation=True, device=device) as val:
        for batch in val:
            errors = (model(batch["x"]).squeeze(1) - batch["y"]).pow(2)
            sums += torch.stack([torch.tensor(len(errors), device=device), errors.double().sum()])
    dist.all_reduce(sums)
    return int(sums[0]), (sums[1] / sums[0]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="for data and checkpoint")
    parser.add_argument("--stop-at", type=int, help="stop after this step, with a checkpoint")
    options = parser.parse_args()
    device, backend = device_and_backend()
    dist.init_process_group(backend)
    rank = dist.get_rank()
    if rank == 0 and not options.dir.exists():
        make_data(options.dir)
    dist.barrier()
    with together():  # a failure on one rank ends all of them, with its reason
        model = train(options.dir, device, options.stop_at)
        if model is None:
            if rank == 0:
                print(f"stopped after step {options.stop_at}: run again to continue")
        else:
            samples, loss = evaluate(model, options.dir, device)
            if rank == 0:
                print(f"val loss {loss:.6f} of {samples} samples, each once")
    # a thread of gloo needs the interpreter to release the tensor of a finished operation, and a
    # group that is destroyed at that moment waits for the thread forever. Earlier tensors are
    # released when all ranks have reached this barrier; `last` keeps the tensor of the barrier
    last = dist.barrier(async_op=True)
    last.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
