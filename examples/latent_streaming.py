"""Train a latent model on a recording that is never in memory as a whole.

This is the guide to chunked streaming, steps 1 to 5, as it is written, with other import lines;
what is added for exact resume is marked with `+`. It makes a small recording, trains, validates,
and checkpoints in the middle of epochs.

    python examples/latent_streaming.py                  # streamed, chunk by chunk
    python examples/latent_streaming.py --in-memory      # as before: all of it in memory
    python examples/latent_streaming.py --kill-at 200    # dies (SIGKILL) at step 200; run it again:
    python examples/latent_streaming.py                  # it goes on as if nothing had happened
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import time
from contextlib import chdir
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace as Config

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

NEURONS, TIMESTEPS = 128, 100_352
SAVE_EVERY = 50  # batches: in the middle of chunks

cfg = Config(
    training=Config(
        simulation_config="small",
        column_to_model="VOLTAGE",
        data_split=DataSplit(
            train_start=512, train_end=98_816, validation_start=99_328, validation_end=100_352
        ),
        seed=234,
        epochs=2,
        batch_size=256,
        time_units=5,
        evolve_multiple_steps=2,
        data_passes_per_epoch=1,
        grad_clip_max_norm=1.0,
        unconnected_to_zero=Config(num_neurons=4),
    ),
    stimulus_encoder_params=Config(num_input_dims=32),
)


def make_recording(path: Path) -> None:
    """Neurons that follow a few slow waves, with noise, and a stimulus."""
    rng = np.random.default_rng(0)
    time_axis = np.arange(TIMESTEPS, dtype=np.float32)[:, None]
    waves = np.sin(time_axis / np.linspace(20, 200, 8, dtype=np.float32))
    voltage = np.tanh(waves @ rng.standard_normal((8, NEURONS), np.float32))
    voltage += 0.1 * rng.standard_normal(voltage.shape, np.float32)
    stimulus = np.sin(time_axis / 50 + np.arange(NEURONS, dtype=np.float32))
    write_recording(path, {"VOLTAGE": voltage, "STIMULUS": stimulus}, chunk_timesteps=1024)


def connectome() -> tuple[torch.Tensor, torch.Tensor]:
    """Who is presynaptic to whom, as CSR: 8 partners each."""
    rng = keyed_generator(cfg.training.seed, "connectome")
    indices = torch.randint(NEURONS, (NEURONS * 8,), generator=rng)
    return indices, torch.arange(0, len(indices) + 1, 8)


# -- the model


class Latent(torch.nn.Module):
    """Encodes the neurons, evolves them with the stimulus, decodes what comes after."""

    def __init__(self, latent_dims: int = 32) -> None:
        super().__init__()
        self.encode = torch.nn.Linear(NEURONS, latent_dims)
        self.evolve = torch.nn.Linear(
            latent_dims + cfg.stimulus_encoder_params.num_input_dims, latent_dims
        )
        self.decode = torch.nn.Linear(latent_dims, NEURONS)

    def forward(self, x: torch.Tensor, stimuli: list[torch.Tensor]) -> list[torch.Tensor]:
        z, predicted = self.encode(x), []
        for stimulus in stimuli:
            z = torch.tanh(self.evolve(torch.cat([z, stimulus], -1)))
            predicted.append(self.decode(z))
        return predicted


def train_step_fn(model, data, stim, batch_indices, selected_neurons, needed_indices, cfg):
    """The loss of rollouts from these timesteps: (total, evolution, silenced neurons)."""
    unit, steps = cfg.training.time_units, cfg.training.evolve_multiple_steps
    start = data[batch_indices].index_fill(1, selected_neurons, 0.0)
    predicted = model(start, [stim[batch_indices + m * unit] for m in range(steps)])
    targets = [data[batch_indices + (m + 1) * unit] for m in range(steps)]
    evolution = sum((p - t).square().mean() for p, t in zip(predicted, targets, strict=True))
    silenced = (predicted[-1] - targets[-1])[:, needed_indices].square().mean()
    return evolution + 0.1 * silenced, evolution, silenced


@dataclass
class LossComponents:
    """Mean losses of an epoch."""

    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    count: int = 0

    def accumulate(self, *losses: torch.Tensor) -> None:
        self.sums = [total + loss.item() for total, loss in zip(self.sums, losses, strict=True)]
        self.count += 1

    def mean(self) -> float:
        return self.sums[0] / max(1, self.count)


# -- checkpoints: the only thing that the guide leaves to its reader


class Run:
    """A directory with the newest checkpoint, and a record of what every step has seen."""

    def __init__(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer):
        folder.mkdir(exist_ok=True)
        self.folder, self.parts = folder, {"model": model, "optimizer": optimizer}
        self.steps, self.place, self.chunks = 0, (0, 0, 0), None
        if (folder / "checkpoint.pt").exists():
            saved = torch.load(folder / "checkpoint.pt", weights_only=True)
            for name, part in self.parts.items():
                part.load_state_dict(saved[name])
            self.steps, self.place, self.chunks = saved["steps"], saved["place"], saved["chunks"]
            print(f"resumed at step {self.steps}, (epoch, chunk, batch) {self.place}")
        self.seen = (folder / "seen.bin").open("ab")
        self.seen.truncate(self.steps * 8 * (cfg.training.batch_size + 4))  # the killed run's rest

    def record(self, place: tuple[int, int, int], chunk_start: int, indices: torch.Tensor) -> None:
        np.array([*place, chunk_start, *indices.tolist()], np.int64).tofile(self.seen)
        self.steps += 1

    def save(self, place: tuple[int, int, int], chunks: dict) -> None:
        """``place``: the next batch; ``chunks``: the loader's state before its chunk was got."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"steps": self.steps, "place": place, "chunks": chunks}
        self.seen.flush()
        torch.save(state, self.folder / "new.pt")
        (self.folder / "new.pt").replace(self.folder / "checkpoint.pt")  # whole, or not at all


def validate(model: Latent, val_data: torch.Tensor, val_stim: torch.Tensor) -> float:
    """The loss of rollouts from all over the validation data, the same each time."""
    total_steps = cfg.training.time_units * cfg.training.evolve_multiple_steps
    starts = torch.arange(0, len(val_data) - total_steps, 7, device=val_data.device)
    nothing = starts[:0]
    with torch.no_grad():
        return train_step_fn(model, val_data, val_stim, starts, nothing, nothing, cfg)[1].item()


def new_model(device: torch.device) -> tuple[Latent, torch.optim.Optimizer]:
    torch.manual_seed(cfg.training.seed)
    model = Latent().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train_streamed(device: torch.device, kill_at: int) -> torch.nn.Module:
    """The guide, from its second step on."""
    wmat_indices, wmat_indptr = connectome()
    model, optimizer = new_model(device)
    run = Run(Path("run"), model, optimizer)  # +

    # Load metadata and validation data only (validation stays on GPU - small enough)
    data_path = f"graphs_data/fly/{cfg.training.simulation_config}/x_list_0"
    column_idx = FlyVisSim[cfg.training.column_to_model].value

    # validation data (small, fits on GPU)
    val_data = torch.from_numpy(
        load_column_slice(
            data_path,
            column_idx,
            cfg.training.data_split.validation_start,
            cfg.training.data_split.validation_end,
        )
    ).to(device)

    val_stim = torch.from_numpy(
        load_column_slice(
            data_path,
            FlyVisSim.STIMULUS.value,
            cfg.training.data_split.validation_start,
            cfg.training.data_split.validation_end,
            neuron_limit=cfg.stimulus_encoder_params.num_input_dims,
        )
    ).to(device)

    # Load neuron metadata
    metadata = load_metadata(data_path)
    neuron_data = NeuronData.from_metadata(metadata)
    print(f"{len(neuron_data.ix)} neurons of {len(neuron_data.indices_per_type)} types")

    # Create zarr loader for training data (NOT loaded to GPU yet)
    train_total_timesteps = cfg.training.data_split.train_end - cfg.training.data_split.train_start

    zarr_load_fn = create_zarr_loader(
        data_path=data_path,
        column_idx=column_idx,
        stim_column_idx=FlyVisSim.STIMULUS.value,
        num_stim_dims=cfg.stimulus_encoder_params.num_input_dims,
    )

    # Create chunk loader (streams data in background)
    chunk_size = 4096  # timesteps; 65536 for a recording of a million
    chunk_loader = RandomChunkLoader(
        load_fn=lambda start, end: zarr_load_fn(
            cfg.training.data_split.train_start + start, cfg.training.data_split.train_start + end
        ),
        total_timesteps=train_total_timesteps,
        chunk_size=chunk_size,
        device=device,
        prefetch=2,  # buffer 2 chunks ahead
        seed=cfg.training.seed,
    )
    if run.chunks is not None:  # +
        chunk_loader.load_state_dict(run.chunks)  # +

    # Calculate chunking parameters
    total_steps = cfg.training.time_units * cfg.training.evolve_multiple_steps
    chunks_per_epoch, batches_per_chunk, batches_per_epoch = calculate_chunk_params(
        total_timesteps=train_total_timesteps,
        chunk_size=chunk_size,
        batch_size=cfg.training.batch_size,
        data_passes_per_epoch=cfg.training.data_passes_per_epoch,
    )

    print(
        f"Chunked streaming: {chunks_per_epoch} chunks/epoch, "
        f"{batches_per_chunk} batches/chunk, {batches_per_epoch} total batches/epoch"
    )

    # Initialize latency tracker
    latency_stats = ChunkLatencyStats()

    # Epoch loop with chunked streaming
    for epoch in range(cfg.training.epochs):
        if epoch < run.place[0]:  # + trained on before the checkpoint
            continue
        epoch_start = datetime.now()
        losses = LossComponents()

        # Start loading chunks for this epoch
        chunk_loader.start_epoch(num_chunks=chunks_per_epoch)
        spans = chunk_loader.plan.spans(epoch, chunks_per_epoch)  # + only for the record

        # Iterate over chunks
        for chunk_idx in range(chunks_per_epoch):
            if (epoch, chunk_idx) < run.place[:2]:  # +
                continue
            before = chunk_loader.state_dict()  # + resuming in this chunk gets it again

            # Get next chunk (blocks until ready, overlaps with previous training)
            get_start = time.time()
            chunk_data, chunk_stim = chunk_loader.get_next_chunk()
            latency_stats.record_chunk_get(time.time() - get_start)

            if chunk_data is None:
                break  # end of epoch

            # Train on batches within this chunk
            for batch_in_chunk in range(batches_per_chunk):
                if (epoch, chunk_idx, batch_in_chunk) < run.place:  # +
                    continue
                optimizer.zero_grad()

                # Sample batch within current chunk
                batch_indices, selected_neurons, needed_indices = sample_batch_within_chunk(
                    chunk_data=chunk_data,
                    chunk_stim=chunk_stim,
                    wmat_indices=wmat_indices,
                    wmat_indptr=wmat_indptr,
                    batch_size=cfg.training.batch_size,
                    total_steps=total_steps,
                    num_neurons_to_zero=cfg.training.unconnected_to_zero.num_neurons,
                    device=device,
                    generator=keyed_generator(cfg.training.seed, epoch, chunk_idx, batch_in_chunk),
                )

                # Training step (same as before, but uses chunk instead of full dataset)
                forward_start = time.time()
                loss_tuple = train_step_fn(
                    model,
                    chunk_data,
                    chunk_stim,
                    batch_indices,
                    selected_neurons,
                    needed_indices,
                    cfg,
                )
                forward_time = time.time() - forward_start

                backward_start = time.time()
                loss_tuple[0].backward()
                backward_time = time.time() - backward_start

                step_start = time.time()
                if cfg.training.grad_clip_max_norm > 0:
                    torch.nn.utils.clip_grad_norm_(
                        model.parameters(), cfg.training.grad_clip_max_norm
                    )
                optimizer.step()
                step_time = time.time() - step_start

                losses.accumulate(*loss_tuple)

                # Sample timing every 10 batches to avoid overhead
                if batch_in_chunk % 10 == 0:
                    latency_stats.record_batch_times(forward_time, backward_time, step_time)

                place = (epoch, chunk_idx, batch_in_chunk)  # +
                run.record(place, spans[chunk_idx][0], batch_indices)  # +
                if run.steps % SAVE_EVERY == 0:  # +
                    run.save((epoch, chunk_idx, batch_in_chunk + 1), before)  # +
                if run.steps == kill_at:  # +
                    os.kill(os.getpid(), signal.SIGKILL)  # +

        # Print latency stats every epoch
        if epoch % 10 == 0:
            latency_stats.print_summary()

        run.save((epoch + 1, 0, 0), chunk_loader.state_dict())  # +
        print(
            f"epoch {epoch}: loss {losses.mean():.4f}, validation "
            f"{validate(model, val_data, val_stim):.4f}, {datetime.now() - epoch_start}"
        )

    # At end of training
    chunk_loader.cleanup()
    return model


def train_in_memory(device: torch.device) -> torch.nn.Module:
    """As before the guide: the whole training data on the device."""
    wmat_indices, wmat_indptr = connectome()
    model, optimizer = new_model(device)
    data_path = f"graphs_data/fly/{cfg.training.simulation_config}/x_list_0"
    split, stimuli = cfg.training.data_split, cfg.stimulus_encoder_params.num_input_dims

    def load(start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        data = load_column_slice(data_path, FlyVisSim[cfg.training.column_to_model], start, end)
        stim = load_column_slice(data_path, FlyVisSim.STIMULUS, start, end, neuron_limit=stimuli)
        return torch.from_numpy(data).to(device), torch.from_numpy(stim).to(device)

    train_data, train_stim = load(split.train_start, split.train_end)
    val_data, val_stim = load(split.validation_start, split.validation_end)
    total_steps = cfg.training.time_units * cfg.training.evolve_multiple_steps
    for epoch in range(cfg.training.epochs):
        losses = LossComponents()
        for batch in range(split.train_timesteps // cfg.training.batch_size):
            optimizer.zero_grad()
            chosen = sample_batch_within_chunk(
                train_data, train_stim, wmat_indices, wmat_indptr, cfg.training.batch_size,
                total_steps, cfg.training.unconnected_to_zero.num_neurons, device,
                generator=keyed_generator(cfg.training.seed, epoch, batch),
            )  # fmt: skip
            loss_tuple = train_step_fn(model, train_data, train_stim, *chosen, cfg)
            loss_tuple[0].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.training.grad_clip_max_norm)
            optimizer.step()
            losses.accumulate(*loss_tuple)
        print(
            f"epoch {epoch}: loss {losses.mean():.4f}, validation "
            f"{validate(model, val_data, val_stim):.4f}"
        )
    return model


def peak_bytes() -> int:
    """Most memory this process ever had."""
    status = Path("/proc/self/status")
    if status.exists():  # where it is, it does not count what the parent process had
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def warm_up(device: torch.device) -> None:
    """One step on nothing, so that memory which torch takes once is not counted."""
    data = torch.zeros(cfg.training.batch_size + 64, NEURONS, device=device)
    stim = data[:, : cfg.stimulus_encoder_params.num_input_dims]
    starts = torch.arange(cfg.training.batch_size, device=device)
    model, optimizer = new_model(device)
    train_step_fn(model, data, stim, starts, starts[:0], starts[:1], cfg)[0].backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(".latent_streaming"))
    parser.add_argument("--in-memory", action="store_true", help="the whole recording in memory")
    parser.add_argument("--kill-at", type=int, default=-1, metavar="STEP", help="die there")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with chdir(options.folder):
        path = Path(f"graphs_data/fly/{cfg.training.simulation_config}/x_list_0")
        if not (path / "metadata.zarr").exists():  # made elsewhere: its memory is not ours
            maker = multiprocessing.get_context("spawn").Process(target=make_recording, args=[path])
            maker.start()
            maker.join()
        torch.set_num_threads(1)  # the steps are tiny: more threads would only wait for each other
        device = torch.device(options.device)
        warm_up(device)
        before, begin = peak_bytes(), time.perf_counter()
        if options.in_memory:
            model = train_in_memory(device)
        else:
            model = train_streamed(device, options.kill_at)
        way = "in-memory" if options.in_memory else "streamed"
        torch.save(model.state_dict(), f"{way}.pt")
        seconds, grown = time.perf_counter() - begin, peak_bytes() - before
        print(f"{way}: {seconds:.1f} s, peak memory {grown / 1e6:.0f} MB above the start")


if __name__ == "__main__":
    main()
