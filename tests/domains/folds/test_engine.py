"""Training by folds: what is trained on, what is judged, what is told."""

import csv
import inspect
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from penstock import ChunkedDataLoader
from penstock.datasets import AugmentedDataset, StandardizedDataset
from penstock.domains.folds import (
    TrainingEngine,
    author_folds,
    author_split,
    cross_val_training,
    single_fold_training,
)
from penstock.domains.folds.fold import balanced_weights, score, seek_epoch, vote
from penstock.errors import ConfigError, PlanError
from penstock.testing import same_batch
from tests.domains.folds.birds import CLASSES, Listener, Normed, birds, same_result

FEATURES, LABELS, AUTHORS, RECORDINGS = birds()
DATA = {"features": FEATURES, "labels": LABELS, "authors": AUTHORS, "num_classes": CLASSES}
QUICK = {"num_epochs": 4, "batch_size": 16, "learning_rate": 0.01, "max_split_attempts": 5}
DATASET = TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))
SPLIT = author_split(LABELS, AUTHORS, max_attempts=5)


def cross(model=Listener, given=None, **options):
    config = {**QUICK, "k_folds": 2, **(given or {})}
    return cross_val_training(**DATA, model_class=model, config=config, **options)


def single(model=Listener, given=None, **options):
    config = {**QUICK, **(given or {})}
    return single_fold_training(**DATA, model_class=model, config=config, **options)


@cache
def control():
    """A run that several tests look at."""
    return cross(groups=RECORDINGS)


# -- what is told


def test_the_result_has_the_promised_shape():
    results, best = control()
    assert set(results) == {"fold_results", "summary", "config"}
    assert list(results["fold_results"]) == ["fold_1", "fold_2"]
    assert set(best) == {"accuracies", "f1s", "losses"}
    for i, fold in enumerate(results["fold_results"].values()):
        assert {
            "history", "final_val_acc", "final_val_loss", "final_val_f1", "best_val_acc",
            "best_val_f1", "model_state", "confusion_matrix", "val_predictions", "val_targets",
            "training_time",
        } <= set(fold)  # fmt: skip
        history = fold["history"]
        assert all(len(history[f"val_{name}"]) == 4 for name in ("losses", "accuracies", "f1s"))
        assert best["losses"][i] == min(history["val_losses"])
        assert best["accuracies"][i] == fold["best_val_acc"] == max(history["val_accuracies"])
        assert best["f1s"][i] == fold["best_val_f1"] == max(history["val_f1s"])
        assert fold["training_time"] > 0


def test_the_scores_are_those_of_the_predictions():
    for fold in control()[0]["fold_results"].values():
        logits, targets = fold["val_predictions"], fold["val_targets"]
        found = logits.argmax(1)
        assert logits.shape == (len(LABELS) // 2, CLASSES)
        assert fold["final_val_acc"] == pytest.approx((found == targets).double().mean().item())
        assert fold["final_val_f1"] == pytest.approx(f1_score(targets, found, average="macro"))
        loss = nn.functional.cross_entropy(logits, targets).item()
        assert fold["final_val_loss"] == pytest.approx(loss)
        assert (fold["confusion_matrix"] == confusion_matrix(targets, found)).all()


def test_the_summary_is_of_all_folds():
    folds, summary = list(control()[0]["fold_results"].values()), control()[0]["summary"]
    accuracies = [fold["final_val_acc"] for fold in folds]
    assert summary["individual_accuracies"] == accuracies
    assert summary["mean_val_accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["std_val_loss"] == pytest.approx(np.std([f["final_val_loss"] for f in folds]))


def test_predictions_of_all_folds_are_pooled_into_one_score():
    folds, summary = list(control()[0]["fold_results"].values()), control()[0]["summary"]
    found = torch.cat([fold["val_predictions"] for fold in folds]).argmax(1)
    targets = torch.cat([fold["val_targets"] for fold in folds])
    assert len(targets) == len(LABELS)
    assert summary["aggregated_accuracy"] == pytest.approx(
        (found == targets).double().mean().item()
    )
    assert summary["aggregated_f1"] == pytest.approx(f1_score(targets, found, average="macro"))
    assert (summary["aggregated_confusion_matrix"] == confusion_matrix(targets, found)).all()
    plain = cross(given={"aggregate_predictions": False, "num_epochs": 1})[0]["summary"]
    assert not any(name.startswith("aggregated") for name in plain)


def test_the_segments_of_a_recording_vote():
    summary = control()[0]["summary"]
    assert set(summary["recording_predictions"]) == set(RECORDINGS)
    truth = dict(zip(RECORDINGS, LABELS, strict=True))
    right = [found == truth[name] for name, found in summary["recording_predictions"].items()]
    assert summary["recording_accuracy"] == pytest.approx(np.mean(right))
    assert summary["recording_confusion_matrix"].sum() == len(set(RECORDINGS))
    assert "recording_accuracy" in single(given={"num_epochs": 1}, groups=RECORDINGS)


def test_most_votes_win_and_a_tie_goes_to_the_surer_ones():
    logits = torch.tensor([[9.0, 0], [0, 0.1], [0, 0.1], [0, 1.0], [3.0, 0]])
    names = np.array(["most", "most", "most", "tie", "tie"])
    found = vote(logits, torch.tensor([1, 1, 1, 0, 0]), names)
    assert found["recording_predictions"] == {"most": 1, "tie": 0}
    assert found["recording_accuracy"] == 1.0


def test_a_single_split_tells_of_one_fold():
    found = single()
    assert len(found["val_targets"]) < len(LABELS) / 2
    assert found["config"]["l2_regularization"] == 1e-4
    assert found["confusion_matrix"].sum() == len(found["val_targets"])


@for_all(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_scores_are_scikit_learns(pairs):
    found, true = (torch.tensor(each) for each in zip(*pairs, strict=True))
    scores = score(found, true, loss_sum=1.0)
    assert scores.f1 == pytest.approx(f1_score(true, found, average="macro", zero_division=0))
    assert scores.accuracy == pytest.approx(accuracy_score(true, found))


# -- what is trained and restored


def test_a_class_that_can_be_heard_is_learnt():
    results, _ = cross(given={"num_epochs": 12, "k_folds": 4})
    assert results["summary"]["aggregated_accuracy"] > 0.9


@pytest.mark.parametrize("model", [Listener, Normed])
def test_the_weights_told_are_those_of_the_best_epoch(model):
    faint, *_ = birds(loud=0.3)
    config = {**QUICK, "num_epochs": 30, "learning_rate": 0.05, "early_stopping": 12}
    data = {**DATA, "features": faint}
    found = single_fold_training(**data, model_class=model, config=config)
    losses = found["history"]["val_losses"]
    best = int(np.argmin(losses))
    assert found["history"]["best_epoch"] == best < len(losses) - 1
    assert losses[-1] > 1.02 * losses[best]  # it did get worse afterwards
    assert found["final_val_loss"] == losses[best]
    assert found["final_val_acc"] == found["history"]["val_accuracies"][best]
    again = model(num_classes=CLASSES)
    again.load_state_dict(found["model_state"])
    again.eval()
    x = (torch.from_numpy(faint[SPLIT.val]) - found["mean"]) / (found["std"] + 1e-8)
    assert torch.allclose(again(x), found["val_predictions"], atol=1e-5)


def test_training_stops_when_nothing_gets_better():
    found = single(given={"num_epochs": 200, "learning_rate": 0.2, "early_stopping": 3})
    history = found["history"]
    assert history["early_stopped"] and history["total_epochs"] < 200
    assert history["total_epochs"] == history["best_epoch"] + 4 == len(history["val_losses"])
    endless = single(given={"num_epochs": 9, "learning_rate": 0.2, "early_stopping": 0})
    assert endless["history"]["total_epochs"] == 9 and not endless["history"]["early_stopped"]


def test_a_loss_that_is_no_number_is_never_the_best():
    class Broken(Listener):
        def forward(self, x):
            return super().forward(x) * (float("nan") if not self.training else 1)

    found = single(Broken, {"num_epochs": 6, "early_stopping": 2})
    assert found["history"]["total_epochs"] == 2


def test_the_same_seed_gives_the_same_result_whatever_was_drawn_before():
    torch.rand(3), np.random.rand(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    again = cross(groups=RECORDINGS)
    assert same_result(again, control())
    assert torch.equal(torch.get_rng_state(), before[0])  # and disturbs nobody
    assert (np.random.get_state()[1] == before[1]).all()
    assert not same_result(cross(given={"seed": 43}, groups=RECORDINGS)[1], control()[1])


def test_classes_are_weighed_by_the_training_part_alone():
    labels = np.array([0] * 6 + [1] * 3 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights(labels, 3).numpy() == pytest.approx(expected)
    seen = []

    class Watching(TrainingEngine):
        def _fold(self, *arguments):
            fold = super()._fold(*arguments)
            seen.append(fold.criterion.weight)
            return fold

    for given in (False, True):
        config = {**QUICK, "num_epochs": 1, "use_class_weights": given}
        part = np.flatnonzero((LABELS < 2) | (np.arange(len(LABELS)) % 5 == 0))
        train = np.intersect1d(part, SPLIT.train)
        Watching(Listener, CLASSES, config).run_single_fold(DATASET, train, SPLIT.val)
    assert seen[0] is None
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS[train])
    assert seen[1].numpy() == pytest.approx(expected)


@pytest.mark.parametrize("given", [{"mixed_precision": True}, {"gradient_clipping": 0.01}])
def test_precision_and_clipping_change_the_steps_and_still_train(given):
    found, plain = single(given=given), single()
    assert np.isfinite(found["final_val_loss"])
    assert not same_result(found["model_state"], plain["model_state"])


# -- what the data goes through


def engine(**given):
    return TrainingEngine(Listener, CLASSES, {**QUICK, **given})


def test_both_parts_are_standardised_by_the_training_part():
    train, val, statistics = engine()._create_data_subsets(DATASET, SPLIT.train, SPLIT.val)
    values = FEATURES[SPLIT.train].astype(np.float64)
    assert statistics["mean"] == pytest.approx(values.mean())
    assert statistics["std"] == pytest.approx(values.std())
    assert (train.mean, train.std) == (val.mean, val.std)
    assert train.std == statistics["std"] + 1e-8  # added once
    assert (train.indices, val.indices) == (SPLIT.train.tolist(), SPLIT.val.tolist())


def test_the_training_part_alone_is_augmented_and_before_it_is_standardised():
    train, val, _ = engine(spec_augment=True, gaussian_noise=True)._create_data_subsets(
        DATASET, SPLIT.train, SPLIT.val
    )
    assert isinstance(train, StandardizedDataset)
    assert isinstance(train.base_dataset, AugmentedDataset)
    assert val.base_dataset is DATASET
    kinds = [type(part).__name__ for part in train.base_dataset.transform.transforms]
    assert kinds == ["SpecAugment", "GaussianNoise"]


def test_without_standardising_the_parts_are_plain():
    train, val, statistics = engine(standardize=False)._create_data_subsets(
        DATASET, SPLIT.train, SPLIT.val
    )
    assert type(train) is type(val) is Subset
    assert statistics == {"mean": None, "std": None}
    assert np.isfinite(single(given={"standardize": False, "num_epochs": 1})["final_val_loss"])


def test_the_engine_builds_both_loaders():
    parts = Subset(DATASET, range(80)), Subset(DATASET, range(80, 96))
    train, val = engine(batch_size=24)._create_data_loaders(*parts)
    assert isinstance(train, ChunkedDataLoader) and isinstance(val, ChunkedDataLoader)
    assert train.batch_size == val.batch_size == 24
    assert train.dataset is parts[0] and val.dataset is parts[1]
    assert [len(y) for _, y in train] == [24, 24, 24]  # the rest would be a batch of 8
    assert torch.equal(torch.cat([y for _, y in val]), DATASET.tensors[1][80:])  # nothing dropped


def test_parts_smaller_than_a_batch_are_trained_and_judged_whole():
    train, val = engine(batch_size=500)._create_data_loaders(DATASET, Subset(DATASET, [0]))
    assert [len(y) for _, y in train] == [len(LABELS)]
    assert [len(y) for _, y in val] == [1]


def test_all_ways_of_training_configure_their_loaders_alike():
    made = []

    class Watching(TrainingEngine):
        def _create_data_loaders(self, *parts):
            loaders = super()._create_data_loaders(*parts)
            made.append([vars_of(loader) for loader in loaders])
            return loaders

    def vars_of(loader):
        names = ("batch_size", "num_workers", "pin_memory", "drop_last", "prefetch_factor")
        return {name: getattr(loader, name) for name in names}

    config = {**QUICK, "num_epochs": 1}
    Watching(Listener, CLASSES, config).run_single_fold(DATASET, SPLIT.train, SPLIT.val)
    folds = author_folds(LABELS, AUTHORS, 2, max_attempts=2).folds
    Watching(Listener, CLASSES, config).run_cross_validation(DATASET, folds)
    assert len(made) == 3
    assert made[0] == made[1] == made[2]


def test_stock_loaders_train_too_and_augment_anew_each_epoch():
    given = {"optimize_dataloaders": False, "spec_augment": True, "gaussian_noise": True}
    built = engine(**given)
    loaders = built._create_data_loaders(*built._create_data_subsets(DATASET, *SPLIT[:2])[:2])
    assert all(type(loader) is DataLoader for loader in loaders)
    fold = built._fold(1, LABELS, loaders)
    first, second, again = (
        list(seek_epoch(fold.train_loader, epoch, built.config["seed"])) for epoch in (0, 1, 0)
    )
    assert same_batch(first, again)
    assert not same_batch(first, second)
    assert same_result(single(given=given), single(given=given))


def test_loaders_are_measured_where_asked_and_nothing_changes():
    given = {"benchmark_performance": True}
    for stock in (True, False):
        plain = single(given={"optimize_dataloaders": stock})
        measured = single(given={"optimize_dataloaders": stock, **given})
        assert "performance" not in plain
        figures = measured["performance"]["train"]
        assert figures["mean_batch_time"] > 0 and figures["samples_per_second"] > 0
        assert same_result(measured["history"], plain["history"])
    folds = cross(given={**given, "num_epochs": 1})[0]["fold_results"]
    assert all(fold["performance"]["val"]["num_batches"] > 0 for fold in folds.values())


# -- where the data comes from


def test_a_folder_tells_classes_authors_and_recordings(tmp_path):
    with (tmp_path / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "class_id", "author", "original_audio"])
        for i in range(len(LABELS)):
            np.save(tmp_path / f"{i}.npy", FEATURES[i])
            table.writerow([f"{i}.npy", LABELS[i], AUTHORS[i], RECORDINGS[i]])
    config = {**QUICK, "k_folds": 2}
    found = cross_val_training(str(tmp_path), model_class=Listener, config=config)
    assert same_result(found, control())  # as from memory, to the bit


def test_a_table_of_pixels_is_read_as_images(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (9, 224 * 313))
    with (tmp_path / "training.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["label", "author", *map(str, range(224 * 313))])
        for i in range(9):
            table.writerow([i % 3, f"a{i // 3}", *pixels[i]])

    class Shaped(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.last = nn.Linear(224, num_classes)

        def forward(self, x):
            assert x.shape[1:] == (1, 224, 313)
            return self.last(x.mean((1, 3)))

    config = {"num_epochs": 1, "k_folds": 3, "max_split_attempts": 3}
    found, _ = cross_val_training(tmp_path / "training.csv", model_class=Shaped, config=config)
    assert found["summary"]["aggregated_confusion_matrix"].sum() == 9


def test_splits_may_be_computed_before():
    folds = author_folds(LABELS, AUTHORS, 2, max_attempts=5)
    assert same_result(cross(precomputed_splits=folds, groups=RECORDINGS), control())
    assert same_result(single(precomputed_split=SPLIT), single())


def test_a_split_at_random_keeps_the_shares_of_the_classes():
    found = single(given={"test_size": 0.25, "num_epochs": 1}, use_predefined_split=False)
    assert torch.bincount(found["val_targets"]).tolist() == [8, 8, 8]


# -- settings


def test_the_defaults_are_the_guides():
    found = cross(given={"num_epochs": 1})[0]["config"]
    for name, value in {
        "use_class_weights": False, "early_stopping": 35, "standardize": True,
        "aggregate_predictions": True, "min_val_segments": 0, "spec_augment": False,
        "gaussian_noise": False, "optimize_dataloaders": True, "benchmark_performance": False,
    }.items():  # fmt: skip
        assert found[name] == value


def test_a_setting_beats_an_argument_beats_a_default():
    kinds = {"spec_augment": True, "gaussian_noise": True}
    config = cross(given={"num_epochs": 1, "gaussian_noise": False}, **kinds)[0]["config"]
    assert config["spec_augment"] is True and config["gaussian_noise"] is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batchsize": 3}, "unknown setting 'batchsize': did you mean 'batch_size'"),
        ({"test_size": 0.3}, "unknown setting 'test_size'"),  # of a single split alone
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"k_folds": 1}, "k_folds must be at least 2, got 1"),
        ({"learning_rate": "fast"}, "learning_rate must be a number"),
        ({"standardize": 1}, "standardize must be True or False, got 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        cross(given=given)
    with pytest.raises(ConfigError, match="test_size must be a share between 0 and 1"):
        single(given={"test_size": 1.5})


def test_settings_that_are_not_needed_any_more_are_said(caplog):
    with caplog.at_level("INFO", "penstock"):
        single(given={"num_epochs": 1, "standardize_sample_size": 1000, "parallel_folds": False})
    assert "'standardize_sample_size' is not used: statistics are exact" in caplog.text
    assert "'parallel_folds' is not used: folds run one after the other" in caplog.text


# -- refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"features": None}, ConfigError, "pass either data_path=, or features= and labels="),
        ({"labels": None}, ConfigError, "features= needs labels="),
        ({"labels": LABELS[1:]}, ConfigError, "features has 96 samples, labels 95"),
        ({"authors": AUTHORS[1:]}, ConfigError, r"authors has shape \(95,\), labels \(96,\)"),
        ({"groups": RECORDINGS[1:]}, ConfigError, r"groups has shape \(95,\), labels \(96,\)"),
        ({"authors": None}, PlanError, "a split by author needs authors="),
        ({"model_class": None}, ConfigError, "pass model_class="),
        ({"num_classes": 2}, PlanError, r"labels must be in \[0, 2\) for num_classes=2, got 2"),
    ],
)
def test_data_that_cannot_be_is_refused(options, error, message):
    given = {**DATA, "model_class": Listener, "config": QUICK, **options}
    with pytest.raises(error, match=message):
        cross_val_training(**given)


@pytest.mark.parametrize(
    ("train", "val", "message"),
    [
        (range(20), range(19, 30), "sample 19 is in the training and in the validation part"),
        (range(20), range(20, 30), "author author 1 is in the training and in the validation"),
        (range(20), [], "the validation part of the split is empty"),
    ],
)
def test_a_split_that_leaks_is_refused(train, val, message):
    with pytest.raises(PlanError, match=message):
        single(precomputed_split=(train, val, 0.0))
    with pytest.raises(PlanError, match=message):
        cross(precomputed_splits=([(train, val)], 0.0, 0))


def test_a_recording_of_two_classes_cannot_vote():
    with pytest.raises(PlanError, match="recording one has segments of two classes"):
        cross(given={"num_epochs": 1}, groups=np.full(len(LABELS), "one"))


def test_the_signatures_are_the_guides():
    names = list(inspect.signature(cross_val_training).parameters)
    assert names[:9] == [
        "data_path", "features", "labels", "authors", "model_class", "num_classes", "config",
        "spec_augment", "gaussian_noise",
    ]  # fmt: skip
    assert (
        inspect.signature(single_fold_training).parameters["use_predefined_split"].default is True
    )
