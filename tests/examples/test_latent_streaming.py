"""The streaming example makes the guide's calls, and a killed run ends like an undisturbed one."""

import ast
import runpy
import signal
import time
from contextlib import chdir
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import penstock
from tests.seeds import passages, run_block, seed_blocks, seed_document

EXAMPLE = Path(__file__).parents[2] / "examples" / "latent_streaming.py"

# the calls of the guide in their order, with the number of positional and the names of other
# arguments
CALLS = [
    ("load_column_slice", 4, ""),
    ("load_column_slice", 4, "neuron_limit"),
    ("load_metadata", 1, ""),
    ("from_metadata", 1, ""),
    ("create_zarr_loader", 0, "data_path column_idx stim_column_idx num_stim_dims"),
    ("RandomChunkLoader", 0, "load_fn total_timesteps chunk_size device prefetch seed"),
    ("calculate_chunk_params", 0, "total_timesteps chunk_size batch_size data_passes_per_epoch"),
    ("ChunkLatencyStats", 0, ""),
    ("start_epoch", 0, "num_chunks"),
    ("get_next_chunk", 0, ""),
    ("record_chunk_get", 1, ""),
    (
        "sample_batch_within_chunk",
        0,
        "chunk_data chunk_stim wmat_indices wmat_indptr batch_size total_steps "
        "num_neurons_to_zero device",
    ),
    ("record_batch_times", 3, ""),
    ("print_summary", 0, ""),
    ("cleanup", 0, ""),
]
IMPORTED = (
    "FlyVisSim NeuronData load_column_slice load_metadata create_zarr_loader RandomChunkLoader "
    "calculate_chunk_params ChunkLatencyStats sample_batch_within_chunk"
)


def calls(code):
    """Return the calls in a program that are among `CALLS`, in the order of the text."""
    known = {name for name, *_ in CALLS}
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in known:
                words = " ".join(word.arg for word in node.keywords if word.arg != "generator")
                found.append((node.lineno, node.col_offset, (name, len(node.args), words)))
    return [call for *_, call in sorted(found)]


def test_the_example_makes_the_calls_of_the_guide():
    made = calls(EXAMPLE.read_text())
    starred = ("record_batch_times", 1, "")  # *times
    assert set(CALLS) - {("record_batch_times", 3, "")} | {starred} == set(made)
    assert all(hasattr(penstock, name) for name in IMPORTED.split())


def test_no_passage_of_the_guide_is_in_the_example():
    assert passages(seed_document("001")).isdisjoint(passages(EXAMPLE.read_text()))


def test_the_calls_of_the_guide_run_in_their_order(tmp_path):
    """The same sequence, as a small program of our own."""
    names = recording_and_names(tmp_path)
    with chdir(tmp_path):
        program(SimpleNamespace(**names))
    assert names["trained"] == [(64, 3)] * 28


def program(have):
    """Two epochs of one chunk with 14 batches."""
    split, where = have.cfg.training.data_split, "graphs_data/fly/tiny/x_list_0"
    volts, stimulus = have.FlyVisSim["VOLTAGE"].value, have.FlyVisSim.STIMULUS.value
    validation = split.validation_start, split.validation_end
    assert have.load_column_slice(where, volts, *validation).shape == (60, 8)
    assert have.load_column_slice(where, stimulus, *validation, neuron_limit=3).shape == (60, 3)
    assert len(have.NeuronData.from_metadata(have.load_metadata(where)).ix) == 8
    read = have.create_zarr_loader(
        data_path=where, column_idx=volts, stim_column_idx=stimulus, num_stim_dims=3
    )
    sizes = {"total_timesteps": split.train_timesteps, "chunk_size": 65536}
    first = split.train_start
    loader = have.RandomChunkLoader(
        load_fn=lambda a, b: read(first + a, first + b), device="cpu", prefetch=2, seed=1, **sizes
    )
    layout = have.calculate_chunk_params(batch_size=64, data_passes_per_epoch=1, **sizes)
    assert layout == (1, 14, 14)
    stats = have.ChunkLatencyStats()
    for _ in range(2):
        loader.start_epoch(num_chunks=1)
        data, stim = loader.get_next_chunk()
        stats.record_chunk_get(0.001)
        for _ in range(14):
            chosen = have.sample_batch_within_chunk(
                chunk_data=data, chunk_stim=stim, batch_size=64, total_steps=6, device="cpu",
                wmat_indices=have.wmat_indices, wmat_indptr=have.wmat_indptr,
                num_neurons_to_zero=2,
            )  # fmt: skip
            have.train_step_fn(have.model, data, stim, *chosen, have.cfg)[0].backward()
            have.optimizer.step()
            stats.record_batch_times(0.001, 0.001, 0.001)
        assert loader.get_next_chunk() == (None, None)
        stats.print_summary()
    loader.cleanup()


# -- the guide itself


def guide_blocks():
    """Return the blocks of the guide in their order, without those for the way before it."""
    imports, _, load, parameters, _, loop, cleanup = seed_blocks("001")
    return imports, load, parameters, loop, cleanup


def test_the_calls_listed_here_are_those_of_the_guide():
    assert calls("\n".join(guide_blocks())) == CALLS


def test_every_name_that_the_guide_imports_can_be_imported_from_penstock():
    for node in ast.parse(guide_blocks()[0]).body:
        for name in node.names:
            assert hasattr(penstock, name.name)


def test_the_code_of_the_guide_runs_with_other_import_lines_only(tmp_path):
    names = recording_and_names(tmp_path)
    with chdir(tmp_path):
        for block in guide_blocks()[1:]:
            run_block(block, names)
    assert (names["chunks_per_epoch"], names["batches_per_chunk"]) == (1, 14)
    assert names["val_stim"].shape == (60, 3) and len(names["neuron_data"].ix) == 8
    assert names["trained"] == [(64, 3)] * 28  # two epochs


def recording_and_names(folder):
    """Write a tiny recording; return the names that a reader of the guide has defined."""
    path = folder / "graphs_data" / "fly" / "tiny" / "x_list_0"
    voltage = np.random.default_rng(0).standard_normal((1000, 8), np.float32)
    penstock.write_recording(path, {"VOLTAGE": voltage, "STIMULUS": voltage}, chunk_timesteps=100)
    training = SimpleNamespace(
        simulation_config="tiny", column_to_model="VOLTAGE", seed=1, epochs=2, batch_size=64,
        data_split=penstock.DataSplit(20, 920, 930, 990), time_units=2, evolve_multiple_steps=3,
        data_passes_per_epoch=1, grad_clip_max_norm=1.0,
        unconnected_to_zero=SimpleNamespace(num_neurons=2),
    )  # fmt: skip
    model = torch.nn.Linear(8, 8)
    trained = []

    def train_step_fn(model, data, stim, batch_indices, selected, needed, cfg):
        trained.append((len(batch_indices), stim.shape[1]))
        return ((model(data[batch_indices]) - data[batch_indices + 6]).square().mean(),)

    return {name: getattr(penstock, name) for name in IMPORTED.split()} | {
        "cfg": SimpleNamespace(
            training=training, stimulus_encoder_params=SimpleNamespace(num_input_dims=3)
        ),
        "model": model,
        # one of torch would import its compiler, which takes seconds
        "optimizer": SimpleNamespace(zero_grad=model.zero_grad, step=lambda: None),
        "train_step_fn": train_step_fn,
        "LossComponents": lambda: SimpleNamespace(accumulate=lambda *losses: None),
        "wmat_indices": torch.arange(8),
        "wmat_indptr": torch.arange(9),
        "device": "cpu",
        "torch": torch,
        "time": time,
        "datetime": datetime,
        "trained": trained,
    }


# -- the example as a program


@pytest.fixture(scope="module")
def example(commands, tmp_path_factory):
    """Run the example in a folder, in a fork of a process that has imported torch."""
    recording = tmp_path_factory.mktemp("data") / "recording"
    runpy.run_path(str(EXAMPLE), run_name="latent_streaming")["make_recording"](recording)

    def run(folder, *arguments):
        if not (folder / "recording").exists():
            (folder / "recording").symlink_to(recording)
        return commands.program(folder, EXAMPLE, "--folder", folder, *arguments)

    return run


@pytest.fixture(scope="module")
def undisturbed(example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = example(folder)
    assert done.code == 0, done.err
    assert "streamed: " in done.out and "peak memory" in done.out
    return folder


@pytest.mark.parametrize("kill_at", [40, 130])  # before a checkpoint; in epoch 1, in mid-chunk
def test_a_killed_run_continues_as_if_it_was_not_killed(kill_at, example, undisturbed, tmp_path):
    assert example(tmp_path, "--kill-at", str(kill_at)).code == -signal.SIGKILL
    assert not (tmp_path / "streamed.pt").exists()
    done = example(tmp_path)
    assert done.code == 0, done.err
    assert ("resumed at step 100, (epoch, chunk, batch) (1, 0, 4)" in done.out) == (kill_at > 50)

    assert (record(tmp_path) == record(undisturbed)).all()
    assert len(record(undisturbed)) == 2 * 96
    ours, theirs = weights(tmp_path), weights(undisturbed)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_training_in_memory_reports_time_and_memory_too(example, tmp_path):
    done = example(tmp_path, "--in-memory")
    assert done.code == 0, done.err
    assert "in-memory: " in done.out and "peak memory" in done.out


def record(folder):
    """Epoch, chunk, batch, first timestep of the chunk, and the batch's starts, step by step."""
    return np.fromfile(folder / "run" / "record.bin", np.int64).reshape(-1, 4 + 256)


def weights(folder):
    return torch.load(folder / "streamed.pt", weights_only=True)
