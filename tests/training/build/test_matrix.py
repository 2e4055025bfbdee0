"""The seed's matrix, each case by a real Trainer; the guide's table is what they do."""

from itertools import product
from pathlib import Path

import pytest

from tests.training.build.jobs import fit, job

GUIDE = Path(__file__).parents[3] / "docs" / "configuration.md"
HEAD = [
    "| `train_chunk_size` | `val_chunk_size` | `limit_*_batches` "
    "| trained on, then | validated on |",
    "|---|---|---|---|---|",
]
TEXT = """
    loader: {batch_size: 4}
    dataset:
      train: {_target_: HERE.tensors, size: 40}
      val: {_target_: HERE.tensors, size: 20}
    model: {_target_: HERE.Recorder}
    trainer: {max_epochs: 3, num_sanity_val_steps: 0}
"""


def row(tmp_path, train, val, limited):
    """What three epochs of Lightning do, in words."""
    overrides = ["train.train_chunk_size=3"] * train + ["train.val_chunk_size=2"] * val
    limits = ["trainer.limit_train_batches=6", "trainer.limit_val_batches=1"] * limited
    made = job(tmp_path, TEXT, *overrides, *limits)
    lengths, validations = [], []
    made.module.on_train_epoch_end = lambda: lengths.append(len(made.module.trained))
    made.module.on_validation_end = lambda: validations.append(len(made.module.validated))
    fit(made)
    trained, validated = lengths[0], validations[0]
    assert lengths == [trained * turn for turn in (1, 2, 3)]
    assert validations == [validated * turn for turn in (1, 2, 3)]
    seen = [value for batch in made.module.trained for value in batch]
    goes_on = len(set(seen)) == min(40, len(seen))  # nothing comes again before all came
    words = "all 10 batches" if trained == 10 else f"{trained} of 10 batches of a new shuffle"
    if goes_on and trained < 10:
        words = f"the next {trained} of 10 batches"
    scored = f"all {validated} batches" if validated == 5 else f"{validated} of 5 batches"
    given = ["3" if train else "", "2" if val else "", "6, 1" if limited else ""]
    return "| " + " | ".join([*given, words, scored]) + " |"


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_table_of_the_guide_is_what_happens(tmp_path):
    cases = product((False, True), repeat=3)
    table = HEAD + [row(tmp_path, train, val, limited) for train, val, limited in cases]
    assert "\n".join(table) in GUIDE.read_text(), "\n".join(table)
