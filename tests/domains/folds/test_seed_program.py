"""Code on datasets and folds written for another engine runs on Penstock.

Programs of our own make the same calls; the document's blocks are read and run where the document
is available.
"""

import ast
import inspect

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from penstock.datasets import WorkerSafeAugmentedDataset, WorkerSafeStandardizedDataset
from penstock.domains.folds import TrainingEngine, cross_val_training
from penstock.domains.folds.fold import CROSS_VALIDATION
from penstock.loaders import worker_init_fn
from penstock.testing import same_batch
from penstock.transforms import SpecAugment
from tests.domains.folds.birds import CLASSES, Listener, birds
from tests.seeds import run_block, seed_blocks

OURS = {
    "WorkerSafeStandardizedDataset": WorkerSafeStandardizedDataset,
    "WorkerSafeAugmentedDataset": WorkerSafeAugmentedDataset,
    "worker_init_fn": worker_init_fn,
    "_create_data_loaders": TrainingEngine._create_data_loaders,
    "cross_val_training": cross_val_training,
}
PARAMETERS = {
    "WorkerSafeStandardizedDataset": "base_dataset indices mean std",
    "WorkerSafeAugmentedDataset": "base_dataset augment_params training",
    "worker_init_fn": "worker_id",
    "_create_data_loaders": "self train_subset val_subset",
    "cross_val_training": (
        "data_path features labels authors model_class num_classes config spec_augment "
        "gaussian_noise"
    ),
}
SETTINGS = {
    "k_folds": 4,
    "num_epochs": 220,
    "batch_size": 24,
    "learning_rate": 0.001,
    "early_stopping": 35,
    "max_split_attempts": 30000,
    "min_val_segments": 0,
    **dict.fromkeys(("standardize", "aggregate_predictions", "optimize_dataloaders"), True),
    **dict.fromkeys(("use_class_weights", "spec_augment", "gaussian_noise"), False),
    "benchmark_performance": False,
}
STANDARDIZED, AUGMENTED = 0, 1  # blocks of document 002
FEATURES, LABELS, AUTHORS, _ = birds()
DATASET = TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))


class Standardized(Dataset):
    """A user's own dataset, which does what ours promises."""

    def __init__(self, samples, chosen, mean, std):
        self.samples, self.chosen, self.mean, self.spread = samples, chosen, mean, std + 1e-8

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, index):
        image, label = self.samples[self.chosen[index]]
        return (image - self.mean) / self.spread, label


def test_standardized_samples_are_those_of_a_plain_dataset():
    theirs = Standardized(DATASET, [5, 3], 0.4, 2.0)
    ours = WorkerSafeStandardizedDataset(DATASET, [5, 3], 0.4, 2.0)
    assert (ours.indices, ours.mean, ours.std) == (theirs.chosen, theirs.mean, theirs.spread)
    assert ours.base_dataset is DATASET and len(ours) == 2
    assert same_batch([theirs[0], theirs[1]], [ours[0], ours[1]])


def test_an_augmented_dataset_has_the_promised_attributes():
    dataset = WorkerSafeAugmentedDataset(DATASET, {"p": 1.0, "time_mask_param": 4})
    assert dataset.base_dataset is DATASET and dataset.training is True
    assert dataset.augment_params == {"p": 1.0, "time_mask_param": 4}
    x, y = dataset[5]
    assert x.shape == FEATURES[5].shape and y == LABELS[5]
    dataset = WorkerSafeAugmentedDataset(DATASET, {"p": 1.0}, training=False)
    assert torch.equal(dataset[5][0], DATASET[5][0])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_promised_ones(name):
    expected = PARAMETERS[name].split()
    found = inspect.signature(OURS[name]).parameters
    assert list(found)[: len(expected)] == expected
    if name == "cross_val_training":
        assert [found[each].default for each in expected] == [None] * 7 + [False] * 2


def test_default_settings_are_the_promised_ones():
    assert {name: CROSS_VALIDATION[name] for name in SETTINGS} == SETTINGS


def test_a_program_that_trains_by_folds_runs():
    dataset = WorkerSafeAugmentedDataset(DATASET, {"time_mask_param": 4}, training=True)
    loader = DataLoader(dataset, 8, num_workers=2, worker_init_fn=worker_init_fn)
    assert sum(len(y) for _, y in loader) == len(LABELS)
    config = {"batch_size": 8, "spec_augment": True, "gaussian_noise": False, "standardize": True}
    engine = TrainingEngine(Listener, CLASSES, config)
    parts = Subset(DATASET, range(80)), Subset(DATASET, range(80, 96))
    train, val = engine._create_data_loaders(*parts)
    assert (len(train), len(val)) == (10, 2)
    results, best = cross_val_training(
        features=FEATURES, labels=LABELS, authors=AUTHORS, model_class=Listener,
        num_classes=CLASSES, config={"num_epochs": 1, "max_split_attempts": 3},
        spec_augment=True, gaussian_noise=True,
    )  # fmt: skip
    assert len(results["fold_results"]) == len(best["losses"]) == 4
    assert np.isfinite(results["summary"]["mean_val_loss"])


# -- the document itself


def nodes(kind):
    trees = map(ast.parse, seed_blocks("002"))
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kind)]


def functions():
    """Each function of the document, and each constructor, with ours of that name."""
    classes = {node.name: node for node in nodes(ast.ClassDef)}
    for name in OURS.keys() & classes.keys():
        (init,) = [each for each in classes[name].body if getattr(each, "name", "") == "__init__"]
        yield name, init, OURS[name].__init__
    for node in nodes(ast.FunctionDef):
        if node.name in OURS:
            yield node.name, node, OURS[node.name]


def pasted(number):
    """The names that a block defines, pasted as it is beside ours."""
    return run_block(seed_blocks("002")[number], {"torch": torch, "SpecAugment": SpecAugment})


def test_every_parameter_and_default_of_the_document_exists():
    found = list(functions())
    assert {name for name, _, _ in found} == set(OURS)
    for _, node, ours in found:
        given = inspect.signature(ours).parameters
        names = [argument.arg for argument in node.args.args]
        assert list(given)[: len(names)] == names
        defaults = [ast.literal_eval(value) for value in node.args.defaults]
        for parameter, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            assert given[parameter].default == default


def test_every_attribute_and_method_of_the_document_exists():
    made = {
        "WorkerSafeStandardizedDataset": WorkerSafeStandardizedDataset(DATASET, [1, 2], 0.5, 2.0),
        "WorkerSafeAugmentedDataset": WorkerSafeAugmentedDataset(DATASET, {}),
    }
    classes = [node for node in nodes(ast.ClassDef) if node.name in made]
    assert len(classes) == 2
    for node in classes:
        attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
        stored = [each.attr for each in attributes if isinstance(each.ctx, ast.Store)]
        methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
        assert stored and all(hasattr(made[node.name], name) for name in stored)
        assert all(callable(getattr(made[node.name], name)) for name in methods)


def test_every_default_setting_is_the_documents():
    (table,) = [
        node.value
        for node in nodes(ast.Assign)
        if getattr(node.targets[0], "id", "") == "default_config"
    ]
    settings = {
        ast.literal_eval(key): getattr(value, "value", False)  # two are arguments, False by default
        for key, value in zip(table.keys, table.values, strict=True)
    }
    assert settings == SETTINGS


def test_the_documents_standardized_dataset_and_ours_give_the_same():
    theirs = pasted(STANDARDIZED)["WorkerSafeStandardizedDataset"](DATASET, [5, 3], 0.4, 2.0)
    ours = WorkerSafeStandardizedDataset(DATASET, [5, 3], 0.4, 2.0)
    assert vars(theirs).keys() <= {name for name, _ in inspect.getmembers(ours)}
    assert (theirs.indices, theirs.mean, theirs.std) == (ours.indices, ours.mean, ours.std)
    assert same_batch([theirs[0], theirs[1]], [ours[0], ours[1]])


def test_the_documents_augmented_dataset_runs_on_our_specaugment():
    theirs = pasted(AUGMENTED)["WorkerSafeAugmentedDataset"](
        DATASET, {"p": 1.0, "time_mask_param": 4}
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x, y = theirs[5]
    assert x.shape == FEATURES[5].shape and y == LABELS[5]
    theirs.training = False
    assert torch.equal(theirs[5][0], DATASET[5][0])
