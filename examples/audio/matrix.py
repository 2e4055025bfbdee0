"""Trains with each combination of chunk sizes: none, for training, for validation, both.

    python examples/audio/matrix.py data/musdb18mono

Each run has two epochs of Lightning, and limits that a chunk size overrides.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from penstock.training.config import read_settings
from penstock.training.run import Outcome, train

CONFIG = Path(__file__).parent / "configs/experiment/audio/sashimi-musdb18mono.yaml"
LIMITS = ["trainer.limit_train_batches=3", "trainer.limit_val_batches=1"]
SIZES = {
    "none": {"train_chunk_size": "null", "val_chunk_size": "null"},
    "train": {"train_chunk_size": 4, "val_chunk_size": "null"},
    "val": {"train_chunk_size": "null", "val_chunk_size": 2},
    "both": {"train_chunk_size": 4, "val_chunk_size": 2},
}


def run(name: str, corpus: Path, folder: Path) -> Outcome:
    given = [f"train.{key}={value}" for key, value in SIZES[name].items()]
    given += [f"dataset.data_dir={corpus.absolute()}", f"run_dir={folder / name}"]
    given += ["train.max_passes=null", "trainer.max_epochs=2", "model.n_layers=2"]
    quiet = ["trainer.enable_progress_bar=false", "trainer.enable_model_summary=false"]
    return train(read_settings(CONFIG, [*LIMITS, *given, *quiet]))


def main(corpus: Path) -> dict[str, Outcome]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = {name: run(name, corpus, Path(folder)) for name in SIZES}
    for name, outcome in outcomes.items():
        print(f"{name:5}: 2 epochs of Lightning, {outcome.steps} steps in all")
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    main(parser.parse_args().corpus)
