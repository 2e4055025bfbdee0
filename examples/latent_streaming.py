"""Train a latent model on a recording that is too large for memory, and resume it exactly.

The program writes a small recording, trains on it chunk by chunk, validates after each epoch, and
saves checkpoints in the middle of chunks. A run that was killed continues with the same batches
and ends with the same weights as a run that was not.

    python examples/latent_streaming.py                  # stream the recording in chunks
    python examples/latent_streaming.py --in-memory      # for comparison: all of it in memory
    python examples/latent_streaming.py --kill-at 130    # stop by SIGKILL after 130 steps, then:
    python examples/latent_streaming.py                  # continue from the last checkpoint
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from penstock import (
    ChunkLatencyStats,
    DataSplit,
    FlyVisSim,
    NeuronData,
    RandomChunkLoader,
    calculate_chunk_params,
    create_zarr_loader,
    keyed_generator,
    load_column_slice,
    load_metadata,
    sample_batch_within_chunk,
    write_recording,
)

NEURONS, STIMULUS_NEURONS, TIMESTEPS = 128, 32, 26_112
SPLIT = DataSplit(512, 25_088, validation_start=25_088, validation_end=TIMESTEPS)
SEED, EPOCHS, BATCH_SIZE = 234, 2, 256
CHUNK_TIMESTEPS = 4096  # for a recording of a million timesteps, 65,536 is a good size
ROLLOUT_STEPS, STEP_TIMESTEPS = 2, 5  # a rollout has 2 steps of 5 timesteps each
ROLLOUT_TIMESTEPS = ROLLOUT_STEPS * STEP_TIMESTEPS
SILENCED_NEURONS = 4
SAVE_EVERY = 50  # steps


def make_recording(path: Path) -> None:
    """Write neurons that follow a few slow waves with noise, and a stimulus."""
    rng = np.random.default_rng(0)
    t = np.arange(TIMESTEPS, dtype=np.float32)[:, None]
    waves = np.sin(t / np.linspace(20, 200, 8, dtype=np.float32))
    voltage = np.tanh(waves @ rng.standard_normal((8, NEURONS), np.float32))
    voltage += 0.1 * rng.standard_normal(voltage.shape, np.float32)
    stimulus = np.sin(t / 50 + np.arange(NEURONS, dtype=np.float32))
    write_recording(path, {"VOLTAGE": voltage, "STIMULUS": stimulus}, chunk_timesteps=1024)


@cache
def connectome() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 8 presynaptic partners for each neuron, as a CSR matrix."""
    rng = keyed_generator(SEED, "connectome")
    indices = torch.randint(NEURONS, (NEURONS * 8,), generator=rng)
    return indices, torch.arange(0, len(indices) + 1, 8)


# -- model


class Latent(torch.nn.Module):
    """Encodes the neurons, evolves the latent state with the stimulus, and decodes each step."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(NEURONS, size)
        self.evolve = torch.nn.Linear(size + STIMULUS_NEURONS, size)
        self.decode = torch.nn.Linear(size, NEURONS)

    def forward(self, x: torch.Tensor, stimuli: list[torch.Tensor]) -> list[torch.Tensor]:
        z, predicted = self.encode(x), []
        for stimulus in stimuli:
            z = torch.tanh(self.evolve(torch.cat([z, stimulus], -1)))
            predicted.append(self.decode(z))
        return predicted


Tensors = tuple[torch.Tensor, ...]


def rollout_loss(model: Latent, data: Tensors, batch: Tensors) -> Tensors:
    """Return the loss of a batch of rollouts: the total and the loss of all neurons."""
    (values, stimulus), (starts, silenced, needed) = data, batch
    at = [starts + i * STEP_TIMESTEPS for i in range(ROLLOUT_STEPS + 1)]
    begin = values[starts].index_fill(1, silenced, 0.0)
    predicted = model(begin, [stimulus[i] for i in at[:-1]])
    errors = [p - values[i] for p, i in zip(predicted, at[1:], strict=True)]
    everywhere = torch.stack([error.square().mean() for error in errors]).sum()
    if not len(needed):
        return everywhere, everywhere
    return everywhere + 0.1 * errors[-1][:, needed].square().mean(), everywhere


def new_model(device: torch.device) -> tuple[Latent, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = Latent().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def update(
    model: Latent,
    optimizer: torch.optim.Optimizer,
    data: Tensors,
    batch: Tensors,
    stats: ChunkLatencyStats | None = None,
) -> float:
    """Do one training step and return its loss; record its times in ``stats``."""
    marks = [perf_counter()]
    total = rollout_loss(model, data, batch)[0]
    marks.append(perf_counter())
    optimizer.zero_grad()
    total.backward()
    marks.append(perf_counter())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    marks.append(perf_counter())
    if stats is not None:
        stats.record_batch_times(*(end - begin for begin, end in pairwise(marks)))
    return total.item()


# -- data


def slices(path: Path, start: int, end: int, device: torch.device) -> Tensors:
    """Return the voltage and the stimulus of a range of timesteps, as a whole."""
    voltage = load_column_slice(path, FlyVisSim["VOLTAGE"].value, start, end)
    stimulus = load_column_slice(
        path, FlyVisSim.STIMULUS.value, start, end, neuron_limit=STIMULUS_NEURONS
    )
    return torch.from_numpy(voltage).to(device), torch.from_numpy(stimulus).to(device)


def describe_neurons(path: Path) -> str:
    neurons = NeuronData.from_metadata(load_metadata(path))
    return f"{len(neurons.ix)} neurons of {len(neurons.indices_per_type)} types"


def training_chunks(path: Path, device: torch.device) -> RandomChunkLoader:
    """Return a loader of the training range; its timestep 0 is ``SPLIT.train_start``."""
    read = create_zarr_loader(
        data_path=path,
        column_idx=FlyVisSim["VOLTAGE"].value,
        stim_column_idx=FlyVisSim.STIMULUS.value,
        num_stim_dims=STIMULUS_NEURONS,
    )

    def load(start: int, end: int) -> Any:
        return read(SPLIT.train_start + start, SPLIT.train_start + end)

    return RandomChunkLoader(
        load_fn=load, total_timesteps=SPLIT.train_timesteps, chunk_size=CHUNK_TIMESTEPS,
        device=device, prefetch=2, seed=SEED,
    )  # fmt: skip


def sampled(data: Tensors, device: torch.device, *key: int) -> Tensors:
    """Return a batch of rollouts that depends only on the seed and ``key``."""
    indices, indptr = connectome()
    voltage, stimulus = data
    return sample_batch_within_chunk(
        chunk_data=voltage, chunk_stim=stimulus, wmat_indices=indices, wmat_indptr=indptr,
        batch_size=BATCH_SIZE, total_steps=ROLLOUT_TIMESTEPS,
        num_neurons_to_zero=SILENCED_NEURONS, device=device,
        generator=keyed_generator(SEED, *key),
    )  # fmt: skip


def validation_loss(model: Latent, data: Tensors) -> float:
    """Return the loss of rollouts from all over the validation range, the same each time."""
    starts = torch.arange(0, len(data[0]) - ROLLOUT_TIMESTEPS, 7, device=data[0].device)
    with torch.no_grad():
        return rollout_loss(model, data, (starts, starts[:0], starts[:0]))[1].item()


# -- checkpoints


@dataclass
class Run:
    """A training run in a directory: the latest checkpoint, and a record of every step.

    ``position`` is (epoch, chunk, batch) of the next step, and ``chunks`` the loader's state
    *before* it returned that chunk, so that a resumed run gets the same chunk again.
    """

    folder: Path
    model: Latent
    optimizer: torch.optim.Optimizer
    steps: int = 0
    position: tuple[int, int, int] = (0, 0, 0)
    chunks: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        if (self.folder / "checkpoint.pt").exists():
            saved = torch.load(self.folder / "checkpoint.pt", weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.steps, self.chunks = saved["steps"], saved["chunks"]
            self.position = tuple(saved["position"])
            print(f"resumed at step {self.steps}, (epoch, chunk, batch) {self.position}")
        self.record = (self.folder / "record.bin").open("ab")
        self.record.truncate(self.steps * 8 * (BATCH_SIZE + 4))  # steps after the checkpoint

    def note(self, position: tuple[int, int, int], start: int, starts: torch.Tensor) -> None:
        """Append a step to the record: its position, its chunk and its rollouts."""
        np.array([*position, start, *starts.tolist()], np.int64).tofile(self.record)
        self.steps += 1

    def save(self, position: tuple[int, int, int], chunks: dict[str, Any]) -> None:
        """Write a checkpoint; an interrupted write leaves the previous one in place."""
        self.record.flush()
        new = self.folder / "new.pt"
        state = {"steps": self.steps, "position": position, "chunks": chunks}
        state["model"], state["optimizer"] = self.model.state_dict(), self.optimizer.state_dict()
        torch.save(state, new)
        new.replace(self.folder / "checkpoint.pt")


# -- training


def train_streamed(path: Path, device: torch.device, kill_at: int) -> Latent:
    """Train on one chunk after another; the next ones are loaded in the background."""
    model, optimizer = new_model(device)
    run = Run(path.parent / "run", model, optimizer)
    validation = slices(path, SPLIT.validation_start, SPLIT.validation_end, device)
    print(describe_neurons(path))
    loader = training_chunks(path, device)
    if run.chunks is not None:
        loader.load_state_dict(run.chunks)
    layout = calculate_chunk_params(
        total_timesteps=SPLIT.train_timesteps, chunk_size=CHUNK_TIMESTEPS,
        batch_size=BATCH_SIZE, data_passes_per_epoch=1,
    )  # fmt: skip
    print("an epoch has {} chunks of {} batches, {} batches in all".format(*layout))
    stats = ChunkLatencyStats()
    for epoch in range(run.position[0], EPOCHS):
        losses = []
        for position, data, before in epoch_batches(loader, epoch, layout, run.position, stats):
            batch = sampled(data, device, *position)
            timed = stats if position[2] % 10 == 0 else None
            losses.append(update(model, optimizer, data, batch, timed))
            start = loader.plan.spans(epoch, layout[0])[position[1]][0]
            run.note(position, start, batch[0])
            if run.steps % SAVE_EVERY == 0:
                run.save((epoch, position[1], position[2] + 1), before)
            if run.steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        run.save((epoch + 1, 0, 0), loader.state_dict())
        stats.print_summary()
        report(epoch, losses, validation_loss(model, validation))
    loader.cleanup()
    return model


def epoch_batches(
    loader: RandomChunkLoader,
    epoch: int,
    layout: tuple[int, int, int],
    first: tuple[int, int, int],
    stats: ChunkLatencyStats,
) -> Iterator[tuple[tuple[int, int, int], Tensors, dict[str, Any]]]:
    """Yield position, chunk and the loader's state before that chunk, from ``first`` on."""
    chunks, batches, _ = layout
    loader.start_epoch(num_chunks=chunks)
    for number in range(first[1] if first[0] == epoch else 0, chunks):
        before, asked = loader.state_dict(), perf_counter()
        data = loader.get_next_chunk()  # waits only if training is faster than loading
        stats.record_chunk_get(perf_counter() - asked)
        if data[0] is None:
            return
        for batch in range(first[2] if first[:2] == (epoch, number) else 0, batches):
            yield (epoch, number, batch), data, before


def train_in_memory(path: Path, device: torch.device) -> Latent:
    """Train with the whole training range on the device, for comparison."""
    model, optimizer = new_model(device)
    data = slices(path, SPLIT.train_start, SPLIT.train_end, device)
    validation = slices(path, SPLIT.validation_start, SPLIT.validation_end, device)
    for epoch in range(EPOCHS):
        batches = (sampled(data, device, epoch, i) for i in range(len(data[0]) // BATCH_SIZE))
        losses = [update(model, optimizer, data, batch) for batch in batches]
        report(epoch, losses, validation_loss(model, validation))
    return model


def report(epoch: int, losses: list[float], validation: float) -> None:
    mean = sum(losses) / max(1, len(losses))
    print(f"epoch {epoch}: loss {mean:.4f}, validation {validation:.4f}")


# -- program


def peak_bytes() -> int:
    """Return the most memory that this process has used."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike getrusage, it does not include the parent process
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def measured(way: str) -> Iterator[None]:
    """Print the time and the additional memory of a block."""
    before, begin = peak_bytes(), perf_counter()
    yield
    seconds, grown = perf_counter() - begin, peak_bytes() - before
    print(f"{way}: {seconds:.1f} s, peak memory {grown / 1e6:.0f} MB above the start")


def warm_up(device: torch.device) -> None:
    """Train once on zeros, so that memory which torch allocates only once is not measured."""
    data = torch.zeros(BATCH_SIZE + 64, NEURONS, device=device)
    starts = torch.arange(BATCH_SIZE, device=device)
    update(*new_model(device), (data, data[:, :STIMULUS_NEURONS]), (starts, starts[:0], starts[:1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(".latent_streaming"))
    parser.add_argument("--in-memory", action="store_true", help="load the whole recording")
    parser.add_argument("--kill-at", type=int, default=-1, metavar="STEP", help="stop by SIGKILL")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    path = options.folder / "recording"
    if not (path / "metadata.zarr").exists():  # in another process, whose memory does not count
        writer = multiprocessing.get_context("spawn").Process(target=make_recording, args=[path])
        writer.start()
        writer.join()
    torch.set_num_threads(1)  # the model is tiny; more threads only wait for each other
    device = torch.device(options.device)
    warm_up(device)
    way = "in-memory" if options.in_memory else "streamed"
    train = partial(train_streamed, kill_at=options.kill_at)
    if options.in_memory:
        train = train_in_memory
    with measured(way):
        model = train(path, device)
    torch.save(model.state_dict(), options.folder / f"{way}.pt")


if __name__ == "__main__":
    main()
