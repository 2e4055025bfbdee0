"""Autoregressive audio, in chunks: by configuration, by all four combinations, by hand."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

AUDIO = Path(__file__).parents[2] / "examples" / "audio"
EXPERIMENT = AUDIO / "configs" / "experiment" / "audio" / "sashimi-musdb18mono.yaml"


def output(done):
    assert done.code == 0, done.err[-3000:]
    return done.out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with the corpus where the configuration looks for it."""
    folder = tmp_path_factory.mktemp("audio")
    spec = importlib.util.spec_from_file_location("make_corpus", AUDIO / "make_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make_corpus(folder / "data" / "musdb18mono")
    return folder


def test_the_experiment_trains_through_the_whole_corpus_and_learns(commands, folder):
    shutil.rmtree(folder / "runs", ignore_errors=True)  # of the same test, if it is repeated
    out = output(commands(folder, "train", EXPERIMENT, "train.max_passes=1"))
    assert "done after 44 steps, 5 chunks" in out
    assert "88 samples, 1 pass, 100.00% of the dataset" in out
    best = float(re.search(r"best +val/loss (\S+)", out).group(1))
    assert best < 10.5  # a level at random would cost ln 65,536 = 11.1
    assert (folder / "runs/sashimi-musdb18mono/checkpoints/best.ckpt").exists()


def test_every_combination_of_chunk_sizes_trains_on_what_it_says(commands, folder):
    out = output(commands.program(folder, AUDIO / "matrix.py", "data/musdb18mono"))
    steps = dict(re.findall(r"(\w+) *: 2 epochs of Lightning, (\d+) steps", out))
    assert steps == {"none": "6", "train": "8", "val": "88", "both": "8"}


def test_a_plain_loop_uses_the_same_loaders(commands, folder):
    out = output(commands.program(folder, AUDIO / "plain_loop.py", "data/musdb18mono"))
    chunks = re.findall(r"chunk (\d): (\d+) batches, then (\d+): (\S+)", out)
    assert [(number, batches, scored) for number, batches, scored, _ in chunks] == [
        (str(number), "10", "2") for number in range(1, 5)
    ]
    assert float(chunks[-1][3]) < float(chunks[0][3])
