"""One test for each known defect of the guide that concerns datasets and folds, by its number."""

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.domains.folds import TrainingEngine, author_split, single_fold_training
from penstock.domains.spectrograms import read_pixel_table
from penstock.keyed import keyed_generator
from penstock.loaders import ChunkedDataLoader
from penstock.transforms import GaussianNoise, SpecAugment
from tests.domains.folds.birds import CLASSES, Listener, birds, same_result

FEATURES, LABELS, AUTHORS, _ = birds()
DATASET = TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))
QUICK = {"num_epochs": 2, "batch_size": 16, "max_split_attempts": 3}


def single(**given):
    return single_fold_training(
        features=FEATURES, labels=LABELS, authors=AUTHORS, model_class=Listener,
        num_classes=CLASSES, config={**QUICK, **given},
    )  # fmt: skip


def test_02_augmentation_depends_on_the_sample_and_not_on_the_worker():
    dataset = AugmentedDataset(DATASET, {"p": 1.0, "time_mask_param": 4})
    alone = torch.cat([x for x, _ in ChunkedDataLoader(dataset, 8)])
    with ChunkedDataLoader(dataset, 8, num_workers=2) as loader:
        assert torch.equal(torch.cat([x for x, _ in loader]), alone)


def test_04_validation_never_drops_a_sample():
    engine = TrainingEngine(Listener, CLASSES, {"batch_size": 24})
    for size in (1, 23, 24, 25, 49):
        part = Subset(DATASET, range(size))
        for _, val in [engine._create_data_loaders(DATASET, part)]:
            assert sum(len(y) for _, y in val) == size


def test_06_noise_leaves_standardised_data_as_wide_as_it_was():
    raw = torch.rand((50, 1, 8, 10), generator=keyed_generator(1))
    chain = StandardizedDataset(
        AugmentedDataset(raw, {"gaussian_noise_params": {"p": 1.0}}), range(50), 0.5, 0.2887
    )
    x = chain.__getbatch__(np.arange(50))
    assert (x == 0).sum() == (x == 1).sum() == 0
    assert 0.45 < (x < 0).float().mean() < 0.55
    assert 1.5 < x.max() < 2.2 and -2.2 < x.min() < -1.5


def test_07_parameters_are_copied_and_one_transform_serves_all_samples(monkeypatch):
    params = {"spec_augment_params": {"p": 1.0, "time_mask_param": 4}}
    dataset = AugmentedDataset(DATASET, params)
    params["spec_augment_params"]["p"] = 0.0
    assert dataset.augment_params["spec_augment_params"]["p"] == 1.0
    built = []
    monkeypatch.setattr(SpecAugment, "__init__", lambda self, **_: built.append(self))
    monkeypatch.setattr(GaussianNoise, "__init__", lambda self, **_: built.append(self))
    assert dataset[3] and dataset.__getitems__([1, 2])
    assert built == []


def test_08_data_in_memory_is_gathered_not_copied_between_processes():
    engine = TrainingEngine(Listener, CLASSES, {"batch_size": 24, "spec_augment": True})
    parts = engine._create_data_subsets(DATASET, np.arange(80), np.arange(80, 96))[:2]
    for loader in engine._create_data_loaders(*parts):
        assert "one gather a batch" in loader.describe()


def test_09_statistics_are_exact_and_draw_nothing():
    train = np.arange(0, 96, 2)
    values = FEATURES[train].astype(np.float64)
    for seed in (1, 2):
        np.random.seed(seed)
        assert np.allclose(compute_standardization(DATASET, train), (values.mean(), values.std()))


def test_10_pixels_become_bins_and_frames_in_that_order(tmp_path):
    image = np.arange(6).reshape(2, 3)
    rows = ["label,author,a,b,c,d,e,f", "0,me," + ",".join(map(str, image.flatten()))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    table = read_pixel_table(tmp_path / "t.csv", shape=(2, 3))
    assert np.allclose(table.features[0, 0] * 255, image)


def test_11_a_split_aims_at_a_share_of_the_segments_and_its_score_is_finite():
    counts = np.array([1, 1, 1, 1, 1, 1, 1, 30])  # authors, very unequal
    authors = np.repeat(np.arange(8), counts * 2)
    labels = np.tile([0, 1], counts.sum())
    _, val, score = author_split(labels, authors, 0.1, min_test_segments=1)
    assert np.isfinite(score)
    assert len(val) / len(labels) < 0.2 and 7 not in authors[val]


def test_12_the_best_weights_are_a_copy_of_their_own():
    faint, labels, authors, _ = birds(loud=0.3)
    found = single_fold_training(
        features=faint, labels=labels, authors=authors, model_class=Listener,
        config={**QUICK, "num_epochs": 25, "learning_rate": 0.05, "early_stopping": 0},
    )  # fmt: skip
    losses = found["history"]["val_losses"]
    assert losses[-1] > min(losses) * 1.05  # the last weights are worse
    assert found["final_val_loss"] == min(losses)


def test_13_folds_can_be_repeated():
    np.random.seed(1), torch.manual_seed(1)
    first = single()
    np.random.seed(2), torch.manual_seed(2)
    assert same_result(single(), first)
