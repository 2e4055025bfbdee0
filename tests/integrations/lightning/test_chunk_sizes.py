"""The configuration matrix of chunk sizes and limits: each cell is a Trainer that ran.

The table in docs/chunked.md is this one: given keys -> what happened.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.integrations.lightning import ChunkedTraining
from tests.integrations.lightning.fits import fit

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

GUIDE = Path(__file__).parents[3] / "docs" / "chunked.md"
TRAIN, VAL = {"train_chunk_size": 4}, {"val_chunk_size": 3}
LIMITS = {"limit_train_batches": 2, "limit_val_batches": 1}
# 22 samples make 11 batches of 2, 9 samples 5: what four epochs of Lightning trained and validated
MATRIX = {
    "none": ({}, {}, [11] * 4, [5] * 4),
    "none, limits": ({}, LIMITS, [2] * 4, [1] * 4),
    "train": (TRAIN, {}, [4, 4, 3, 4], [5] * 4),
    "train, limits": (TRAIN, LIMITS, [4, 4, 3, 4], [5] * 4),
    "val": (VAL, {}, [11] * 4, [3] * 4),
    "val, limits": (VAL, LIMITS, [11] * 4, [3] * 4),
    "both": (TRAIN | VAL, {}, [4, 4, 3, 4], [3] * 4),
    "both, limits": (TRAIN | VAL, LIMITS, [4, 4, 3, 4], [3] * 4),
    "both, validation off": (TRAIN | VAL, {"limit_val_batches": 0}, [4, 4, 3, 4], []),
}


@pytest.mark.parametrize("cell", MATRIX)
def test_every_combination_of_sizes_and_limits_trains_and_validates_as_the_guide_says(cell):
    sizes, limits, trained, validated = MATRIX[cell]
    run = fit(ChunkedTraining(**sizes), max_epochs=4, **limits)
    assert (run.train_batches, run.val_batches) == (trained, validated)
    assert run.callback.chunked_training_enabled == bool(sizes)
    for name, value in limits.items():  # as the user set them, once the fit is over
        assert getattr(run.trainer, name) == value
    if sizes:  # a pass is every sample once
        chunks = -(-11 // sizes.get("train_chunk_size", 11))
        one_pass = [x for chunk in run.model.chunks[:chunks] for batch in chunk for x in batch]
        assert sorted(one_pass) == [*range(22)]


@pytest.mark.parametrize("cell", ["none", "none, limits"])
def test_without_sizes_the_run_is_the_one_without_the_callback(cell):
    _, limits, _, _ = MATRIX[cell]
    with_it, without = (fit(x, max_epochs=4, **limits) for x in (ChunkedTraining(), None))
    assert with_it.model.chunks == without.model.chunks
    assert with_it.model.validations == without.model.validations
    assert with_it.trainer.train_dataloader is with_it.loaders[0]
    assert with_it.trainer.reload_dataloaders_every_n_epochs == 0


def row(cell: str) -> str:
    """A cell of the matrix as the guide has it."""
    sizes, limits, trained, validated = MATRIX[cell]
    given = ", ".join(f"`{name}={value}`" for name, value in (sizes | limits).items()) or "nothing"
    chunks = "+".join(map(str, trained))
    scores = "+".join(map(str, validated)) or "none"
    used = [name for name in limits if not sizes or limits[name] == 0]
    ignored = [name for name in limits if name not in used]
    says = ["`limit_*` respected"] if used and not sizes else []
    says += ["a limit of 0 switches off"] if used and sizes else []
    says += [f"{'both limits' if len(ignored) == 2 else ignored[0]} ignored"] if ignored else []
    return f"| {given} | {chunks} | {scores} | {'; '.join(says)} |"


def test_the_table_of_the_guide_is_this_matrix():
    rows = re.findall(r"^\| .*$", GUIDE.read_text(), re.M)
    missing = [row(cell) for cell in MATRIX if row(cell) not in rows]
    assert not missing, "docs/chunked.md lacks:\n" + "\n".join(missing)
