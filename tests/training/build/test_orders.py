"""Weights, lengths and packed documents in a configuration; errors name the file and line."""

import numpy as np
import pytest

from penstock import ChunkedDataLoader, StreamLoader
from penstock.errors import ConfigError
from tests.training.build.jobs import fit, job

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Total length of `list`"),  # there is nothing to validate
]

PLAIN = """
    imports: [HERE]
    loader: {batch_size: 4}
    dataset: {train: {_target_: HERE.tensors, size: 40}}
    model: {_target_: HERE.Recorder}
    train: {train_chunk_size: 3}
    trainer: {max_epochs: 2, num_sanity_val_steps: 0}
"""
PACKED = """
    imports: [HERE]
    loader: {batch_size: 2}
    dataset:
      train: {pack: tokens.npy, length: 16, lengths: lengths.npy}
    model: {_target_: HERE.Recorder}
"""
LENGTHS = np.arange(40) % 7 + 1


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("weights.npy", np.arange(40) % 3)
    np.save("lengths.npy", LENGTHS)
    np.save("tokens.npy", np.arange(LENGTHS.sum()))
    np.save("rows.npy", np.arange(40, dtype=np.float32))
    return tmp_path


def test_weights_are_trained_by(here):
    made = job(here, PLAIN, "train.weights=weights.npy", "train.epoch_samples=30")
    loader = made.data.train_dataloader()
    assert isinstance(loader, ChunkedDataLoader) and len(loader) == 3
    fit(made, max_epochs=5)
    seen = np.array([value for batch in made.module.trained for value in batch])
    assert set(seen) <= {n for n in range(40) if n % 3} and len(seen) > 30
    stored = job(here, PLAIN, "dataset.train=rows.npy", "train.weights=weights.npy")
    with stored.data.train_dataloader() as loader:
        assert isinstance(loader, StreamLoader) and len(loader) == 3
        assert all(int(value) % 3 for batch in loader for value in batch)


@pytest.mark.parametrize("data", ["{_target_: HERE.tensors, size: 40}", "rows.npy"])
def test_batches_by_length_keep_to_their_budget(here, data):
    text = PLAIN.replace("{_target_: HERE.tensors, size: 40}", data)
    given = "{lengths: lengths.npy, max_tokens: 21, window: 20, group: 2}"
    made = job(here, text, f"train.batch_by_length={given}", "train.train_chunk_size=null")
    with made.data.train_dataloader() as loader:
        batches = [(b[0] if isinstance(b, list) else b).int().flatten().tolist() for b in loader]
    assert sorted(sum(batches, start=[])) == list(range(40))  # noqa: RUF017 - a few
    assert all(len(batch) * LENGTHS[batch].max() <= 21 for batch in batches)


def test_packed_documents_alone_and_in_a_mixture(here):
    with job(here, PACKED).data.train_dataloader() as loader:
        assert isinstance(loader, StreamLoader) and loader.samples == -(-LENGTHS.sum() // 16)
        assert next(iter(loader))["tokens"].shape == (2, 16)
    member = "{pack: tokens.npy, length: 16, lengths: lengths.npy}"
    mixed = f"{{mixture: {{a: {member}, b: {member}}}, weights: {{a: 3, b: 1}}}}"
    with job(here, PACKED.replace(member, mixed)).data.train_dataloader() as loader:
        assert loader.mixture.shares == {"a": 0.75, "b": 0.25}
        assert next(iter(loader))["segment_ids"].shape == (2, 16)


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (PLAIN, ["train.weights=[1,2]"], r"train.weights .*2 weights for 40 samples"),
        (PLAIN, ["train.weights=none.npy"], r"train.weights .*cannot be read.*none.npy"),
        (PLAIN, ["train.weights=3"], r"train.weights.*a .npy file, or a list of numbers"),
        (PLAIN, ["train.epoch_samples=0"], "epoch_samples"),
        (PLAIN, ["train.batch_by_length={max_tokens: 9}"], "has no lengths"),
        (
            PLAIN,
            ["train.batch_by_length={lengths: [1], max_tokens: 9}"],
            "batch_by_length .*must be 40 numbers",
        ),
        (PLAIN, ["train.batch_by_length={lengths: lengths.npy, max_token: 9}"], "max_tokens"),
        (PLAIN, ["train.batch_by_length={lengths: lengths.npy, max_tokens: 3}"], "batch_by_length"),
        (
            PLAIN,
            ["train.weights=weights.npy", "train.batch_by_length={lengths: lengths.npy}"],
            "cannot be combined",
        ),
        (PLAIN, ["train.weights=weights.npy", "train.chunk_order=block"], "chunk_order=block"),
        (PLAIN.replace("tensors, size: 40", "Stream"), ["train.weights=[1]"], "iterable"),
        (PACKED, ["dataset.train.length=0"], r"dataset.train .*length"),
        (PACKED, ["dataset.train.lengths=[3]"], r"dataset.train .*lengths sum to 3"),
        (PACKED, ["dataset.train.sizes=3"], "sizes"),
        (PACKED.replace("length: 16, ", ""), [], r"dataset.train .*length"),
    ],
)
def test_what_means_nothing_is_refused(here, text, changes, words):
    with pytest.raises(ConfigError, match=words):
        job(here, text, *changes).data.train_dataloader()


def test_an_error_names_the_file_and_line(here):
    text = PLAIN.replace("train_chunk_size: 3", "train_chunk_size: 3, weights: [1, 2]")
    with pytest.raises(ConfigError, match=r"train.weights \(.*run.yaml, line 6\)"):
        job(here, text).data.train_dataloader()
