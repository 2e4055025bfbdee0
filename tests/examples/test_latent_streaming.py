"""The streaming example is the guide, and a killed run learns what an undisturbed one learns."""

import ast
import signal
import subprocess
import sys
import time
from contextlib import chdir
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import penstock

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "latent_streaming.py"
BLOCKS = Path(__file__).parent / "seed_blocks"
LOADING = ("2_load", "3_parameters")

PROMISED = (
    "FlyVisSim NeuronData load_column_slice load_metadata create_zarr_loader RandomChunkLoader "
    "calculate_chunk_params ChunkLatencyStats sample_batch_within_chunk"
)

# every line of the guide that is not in the example as it is
CHANGED = {
    "from LatentEvolution.chunk_loader import RandomChunkLoader",
    "from LatentEvolution.chunk_streaming import create_zarr_loader, sample_batch_within_chunk, "
    "calculate_chunk_params, ChunkLatencyStats",
    "chunk_size = 65536",  # the small recording has chunks of 4,096
}


def block(name):
    return (BLOCKS / f"{name}.txt").read_text()


def statements(code):
    """Each simple statement, and the head of each compound one, in order, spelled in one way."""
    found = []
    for node in in_order(ast.parse(code)):
        if isinstance(node, ast.For | ast.If | ast.With | ast.FunctionDef | ast.ClassDef):
            found.append(ast.unparse(node).split("\n")[0])
        elif isinstance(node, ast.stmt):
            found.append(ast.unparse(without_generator(node)))
    return found


def in_order(node):
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from in_order(child)


def without_generator(statement):
    """``generator=`` is what the example adds to a call of the guide: resume is exact with it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            node.keywords = [word for word in node.keywords if word.arg != "generator"]
    return statement


def test_the_example_is_the_guide_statement_by_statement_in_its_order():
    example = iter(statements(EXAMPLE.read_text()))
    names = [path.stem for path in sorted(BLOCKS.glob("*.txt"))]
    guide = [line for name in names for line in statements(block(name))]
    assert len(names) == 5 and len(guide) > 45
    missing = {line for line in guide if line not in CHANGED and line not in example}
    assert missing == set()
    assert CHANGED <= set(guide)


def test_every_name_that_the_guide_imports_comes_from_the_front_door():
    for node in ast.parse(block("1_import")).body:
        for name in node.names:
            assert name.name in penstock.__all__


def test_the_guides_own_code_runs_with_other_import_lines_only(tmp_path):
    names = recording_and_names(tmp_path)
    code = "\n".join(block(name) for name in (*LOADING, "4_loop", "5_cleanup"))
    with chdir(tmp_path):
        exec(compile(code, "guide", "exec"), names)
    assert (names["chunks_per_epoch"], names["batches_per_chunk"]) == (1, 14)
    assert names["val_stim"].shape == (60, 3) and len(names["neuron_data"].ix) == 8
    assert names["trained"] == [(64, 3)] * 28  # two epochs


def recording_and_names(folder):
    """A tiny recording, and what a reader of the guide brings along."""
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

    promised = {name: getattr(penstock, name) for name in PROMISED.split()}
    return promised | {
        "cfg": SimpleNamespace(
            training=training, stimulus_encoder_params=SimpleNamespace(num_input_dims=3)
        ),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
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


# -- as a program


def example(folder, *arguments):
    command = [sys.executable, str(EXAMPLE), "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = example(folder)
    assert done.returncode == 0, done.stderr
    assert "streamed: " in done.stdout and "peak memory" in done.stdout
    return folder


@pytest.mark.parametrize("kill_at", [40, 505])  # before a checkpoint; in epoch 1, in mid-chunk
def test_a_killed_run_goes_on_as_if_nothing_had_happened(kill_at, undisturbed, tmp_path):
    (tmp_path / "graphs_data").symlink_to(undisturbed / "graphs_data")
    assert example(tmp_path, "--kill-at", str(kill_at)).returncode == -signal.SIGKILL
    assert not (tmp_path / "streamed.pt").exists()
    done = example(tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("resumed at step" in done.stdout) == (kill_at > 50)

    assert (seen(tmp_path) == seen(undisturbed)).all()
    assert len(seen(undisturbed)) == 2 * 384
    ours, theirs = weights(tmp_path), weights(undisturbed)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_in_memory_it_says_time_and_memory_too(undisturbed, tmp_path):
    (tmp_path / "graphs_data").symlink_to(undisturbed / "graphs_data")
    done = example(tmp_path, "--in-memory")
    assert done.returncode == 0, done.stderr
    assert "in-memory: " in done.stdout and "peak memory" in done.stdout


def seen(folder):
    """Epoch, chunk, batch, first timestep of the chunk, and the batch's indices, step by step."""
    return np.fromfile(folder / "run" / "seen.bin", np.int64).reshape(-1, 4 + 256)


def weights(folder):
    return torch.load(folder / "streamed.pt", weights_only=True)
