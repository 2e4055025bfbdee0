"""Train a retrieval model with a steering curriculum, and evaluate it with fixed steering.

Makes a small dataset directory, validates all of it, trains by the curriculum (less and less
"zero" steering), and scores the held-out questions once with each fixed steering. Stop it in the
middle of an epoch and run it again: it continues with the next batch.

    python examples/steering.py                     # everything, in a temporary directory
    python examples/steering.py --dir run           # keeps data and checkpoint there
    python examples/steering.py --dir run --stop-at 100   # stops after step 100; run it again
    torchrun --nproc-per-node=2 examples/steering.py --dir run    # the same run on two ranks
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from penstock.checks import checked
from penstock.domains.steering import (
    SteeringLoader,
    build_steering_directory,
    create_loader,
    set_epoch,
    validate_dataset,
    validate_first_batch,
)

EPOCHS, BATCH_SIZE, DIM = 8, 64, 32


class Predictor(nn.Module):
    """Predicts the embedding of the answering source from a question and a steering vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, question: torch.Tensor, steering: torch.Tensor) -> torch.Tensor:
        return question + self.layers(torch.cat([question, steering], dim=1))


def scores(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return how well the target (column 0) and each negative fit the prediction."""
    predicted = model(batch["question_emb"], batch["steering"])
    sources = torch.cat([batch["target_source_emb"].unsqueeze(1), batch["negative_embs"]], dim=1)
    return torch.einsum("bd,bnd->bn", nn.functional.normalize(predicted, dim=1), sources) / 0.1


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = scores(model, batch)
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def log(text: object) -> None:
    if is_first():
        print(text)


def loader_of(directory: Path, split: str, global_batch: int) -> SteeringLoader:
    """Return a loader with the same global batches on any number of ranks that divides them."""
    return create_loader(directory, split, global_batch // ranks(), distributed=ranks() > 1)


def train(directory: Path, checkpoint: Path, stop_at: int | None) -> nn.Module | None:
    torch.manual_seed(0)
    model = Predictor(DIM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = loader_of(directory, "train", BATCH_SIZE)
    validate_first_batch(loader)  # does not change the run
    step, first = 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step, first = saved["step"], saved["loader"]["epoch"]
        log(f"resumed at step {step}, epoch {first}")
    trained = DistributedDataParallel(model) if ranks() > 1 else model
    batches = checked(loader, loader.dataset_obj.schema())  # checks some, in 1 % of the time
    for epoch in range(first, EPOCHS):
        set_epoch(loader, epoch)  # no effect inside a resumed epoch
        losses = []
        for batch in batches:
            loss = loss_of(trained, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
            if step == stop_at:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                if is_first():  # one checkpoint, for any number of ranks
                    torch.save(state | {"loader": loader.state_dict(), "step": step}, checkpoint)
                log(f"stopped after step {step}: run again to continue")
                return None
        zero = loader.dataset_obj.steering_probs["zero"]
        log(f"epoch {epoch:2}  zero steering {zero:.2f}  loss {sum(losses) / len(losses):.4f}")
    if is_first():
        checkpoint.unlink(missing_ok=True)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, loader: SteeringLoader, steering: str) -> float:
    """Return the share of held-out pairs whose target scores higher than all its negatives."""
    loader.dataset_obj.force_steering(steering)
    right = torch.cat([scores(model, batch).argmax(1) == 0 for batch in loader])
    counts = torch.tensor([int(right.sum()), len(right)])
    if ranks() > 1:
        dist.all_reduce(counts)  # sum first: the mean of the ranks' means would differ
    return (counts[0] / counts[1]).item()


def run(directory: Path, stop_at: int | None) -> None:
    data = directory / "data"
    if not (data / "config.json").exists() and is_first():
        curriculum = {"zero_prob_start": 0.6, "zero_prob_end": 0.1, "epochs_total": EPOCHS}
        build_steering_directory(
            data, pairs=1500, embedding_dim=DIM, n_neg=8, config={"curriculum": curriculum}
        )
    if ranks() > 1:
        dist.barrier()
    report = validate_dataset(data)
    report.raise_if_any()
    log(report)
    model = train(data, directory / "checkpoint.pt", stop_at)
    if model is not None:
        val = loader_of(data, "val", 2 * BATCH_SIZE)
        for steering in ("zero", "centroid", "keyword", "residual"):
            log(f"val accuracy with {steering} steering: {accuracy(model, val, steering):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, help="keep data and checkpoint here")
    parser.add_argument("--stop-at", type=int, help="stop after this step, with a checkpoint")
    options = parser.parse_args()
    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
        if options.dir is None:
            parser.error("several ranks need a directory to share: give --dir")
    if options.dir is not None:
        run(options.dir, options.stop_at)
        if dist.is_initialized():
            last = dist.barrier(async_op=True)  # kept, see examples/ddp.py
            last.wait()
            dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), options.stop_at)


if __name__ == "__main__":
    main()
