"""Mixtures and priorities in a configuration: shares, coverage, and what is refused."""

import numpy as np
import pytest

from penstock import ChunkedDataLoader, Mixture, StreamLoader
from penstock.errors import ConfigError
from tests.training.build.jobs import fit, job

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Total length of `list`"),  # there is nothing to validate
]

MIXED = """
    imports: [HERE]
    loader: {batch_size: 4}
    dataset:
      mixture:
        web: {_target_: HERE.tensors, size: 40}
        code: {_target_: HERE.tensors, size: 20}
      weights: {web: 3, code: 1}
      until: 40
    model: {_target_: HERE.Recorder}
    trainer: {max_epochs: 2, num_sanity_val_steps: 0}
"""
PRIORITY = """
    imports: [HERE]
    loader: {batch_size: 4}
    dataset: {train: {_target_: HERE.tensors, size: 40}}
    model: {_target_: HERE.Recorder}
    train: {priority: {parts: {hard: [0, 10], rest: null}, weights: {hard: 1, rest: 1}}}
    trainer: {max_epochs: 2, num_sanity_val_steps: 0}
"""


def test_a_mixture_is_trained_in_its_shares(tmp_path):
    made = job(tmp_path, MIXED, "train.train_chunk_size=5")
    loader = made.data.train_dataloader()
    assert isinstance(loader, ChunkedDataLoader) and isinstance(loader.dataset, Mixture)
    assert (len(loader), loader.total_chunks) == (5, 2)
    fit(made)
    assert len(made.module.trained) == 10 and loader.state_dict()["stages"] == [[0, [3, 1]]]
    names = [
        [name for name, _ in loader.dataset.locate(loader.samples_at(step, 0))]
        for step in range(10)
    ]
    assert all(sorted(batch) == ["code", "web", "web", "web"] for batch in names)


def test_a_mixture_of_paths_is_streamed(tmp_path):
    for name, size in (("web", 60), ("code", 30)):
        np.save(tmp_path / f"{name}.npy", np.arange(size, dtype=np.float32))
    paths = [f"dataset.mixture.{name}={tmp_path / name}.npy" for name in ("web", "code")]
    made = job(tmp_path, MIXED, *paths)
    with made.data.train_dataloader() as loader:
        assert isinstance(loader, StreamLoader) and len(loader) == 10
        assert next(iter(loader)).shape == (4,)


def test_a_priority_gives_parts_their_shares_and_covers_all(tmp_path):
    made = job(tmp_path, PRIORITY, "train.priority.cover_within_epochs=2")
    fit(made)
    seen = np.array([value for batch in made.module.trained for value in batch])
    assert len(seen) == 80 and set(seen) == set(range(40))
    assert (seen < 10).sum() == 40


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (MIXED, ["dataset.weights.code=-1"], "weights"),
        (MIXED, ["+dataset.weight=1"], "weight"),
        (MIXED, ["+dataset.val_split=0.2"], "dataset.train to a mixture"),
        (MIXED, ["+train.chunk_order=block"], "chunk_order"),
        (PRIORITY, ["+train.priority.cover_within_epochs=1"], "raise its weight"),
        (PRIORITY, ["train.priority.parts.hard=[0,90]"], "parts"),
        (PRIORITY, ["train.priority.parts.rest=[20,40]"], "in none"),
        (PRIORITY, ["+train.priority.part=1"], "part"),
    ],
)
def test_what_means_nothing_is_refused(config, changes, words, tmp_path):
    changes = [change.removeprefix("+") for change in changes]
    with pytest.raises(ConfigError, match=words):
        job(tmp_path, config, *changes).data.train_dataloader()
