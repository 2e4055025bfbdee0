"""The guide's code on datasets and folds: every name in it exists, every call runs."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from penstock.datasets import WorkerSafeAugmentedDataset, WorkerSafeStandardizedDataset
from penstock.domains.folds import TrainingEngine, cross_val_training
from penstock.domains.folds.config import CROSS_VALIDATION
from penstock.loaders import worker_init_fn
from penstock.testing import same_batch
from penstock.transforms import SpecAugment
from tests.seeds import seed_document
from tests.domains.folds.birds import CLASSES, Listener, birds

HERE = Path(__file__).parent / "seed_002"
BLOCKS = sorted(path.stem for path in HERE.glob("*.txt"))
OURS = {
    "WorkerSafeStandardizedDataset": WorkerSafeStandardizedDataset,
    "WorkerSafeAugmentedDataset": WorkerSafeAugmentedDataset,
    "worker_init_fn": worker_init_fn,
    "_create_data_loaders": TrainingEngine._create_data_loaders,
    "cross_val_training": cross_val_training,
}
FEATURES, LABELS, AUTHORS, _ = birds()
DATASET = TensorDataset(torch.from_numpy(FEATURES), torch.from_numpy(LABELS))


def block(name):
    return (HERE / f"{name}.txt").read_text()


def nodes(kind):
    return [
        node
        for name in BLOCKS
        for node in ast.walk(ast.parse(block(name)))
        if isinstance(node, kind)
    ]


def functions():
    """Each function of the blocks, and each constructor, with ours of that name."""
    classes = {node.name: node for node in nodes(ast.ClassDef)}
    for name, node in classes.items():
        (init,) = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        yield name, init, OURS[name].__init__
    methods = {id(each) for node in classes.values() for each in node.body}
    for node in nodes(ast.FunctionDef):
        if node.name in OURS and id(node) not in methods:
            yield node.name, node, OURS[node.name]


def pasted(name):
    """The names that a block defines, pasted as it is beside ours."""
    names = {"torch": torch, "SpecAugment": SpecAugment}
    exec(compile(block(name), name, "exec"), names)
    return names


def test_the_blocks_are_the_guides_own():
    assert len(BLOCKS) == 4
    seed = seed_document("002")
    for name in BLOCKS:
        assert f"```python\n{block(name)}```" in seed


@pytest.mark.parametrize(("name", "node", "ours"), list(functions()))
def test_every_parameter_and_default_exists_in_its_place(name, node, ours):
    given = inspect.signature(ours).parameters
    names = [argument.arg for argument in node.args.args]
    assert list(given)[: len(names)] == names
    defaults = [ast.literal_eval(value) for value in node.args.defaults]
    for parameter, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        assert given[parameter].default == default


def test_all_five_were_compared():
    assert {name for name, _, _ in functions()} == set(OURS)


def test_every_attribute_and_method_exists():
    made = {
        "WorkerSafeStandardizedDataset": WorkerSafeStandardizedDataset(DATASET, [1, 2], 0.5, 2.0),
        "WorkerSafeAugmentedDataset": WorkerSafeAugmentedDataset(DATASET, {}),
    }
    for node in nodes(ast.ClassDef):
        ours = made[node.name]
        stored = [
            n
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
        ]
        assert stored
        for attribute in stored:
            assert hasattr(ours, attribute.attr)
        for method in (each.name for each in node.body if isinstance(each, ast.FunctionDef)):
            assert callable(getattr(ours, method))


def test_every_default_setting_is_the_guides():
    (table,) = [
        node.value
        for node in nodes(ast.Assign)
        if getattr(node.targets[0], "id", "") == "default_config"
    ]
    settings = {
        ast.literal_eval(key): getattr(value, "value", False)  # two are arguments, False by default
        for key, value in zip(table.keys, table.values, strict=True)
    }
    assert len(settings) == 14
    assert {name: CROSS_VALIDATION[name] for name in settings} == settings


def test_the_guides_standardised_dataset_and_ours_give_the_same():
    theirs = pasted("1_standardized")["WorkerSafeStandardizedDataset"](DATASET, [5, 3], 0.4, 2.0)
    ours = WorkerSafeStandardizedDataset(DATASET, [5, 3], 0.4, 2.0)
    assert vars(theirs).keys() <= {name for name, _ in inspect.getmembers(ours)}
    assert (theirs.indices, theirs.mean, theirs.std) == (ours.indices, ours.mean, ours.std)
    assert same_batch([theirs[0], theirs[1]], [ours[0], ours[1]])


def test_the_guides_augmented_dataset_runs_on_our_specaugment():
    theirs = pasted("2_augmented")["WorkerSafeAugmentedDataset"](
        DATASET, {"p": 1.0, "time_mask_param": 4}
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x, y = theirs[5]
    assert x.shape == FEATURES[5].shape and y == LABELS[5]
    theirs.training = False
    assert torch.equal(theirs[5][0], DATASET[5][0])


def test_the_calls_of_the_guide_run():
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
