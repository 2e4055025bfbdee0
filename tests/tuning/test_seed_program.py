"""Code on loaders written for another factory and monitor runs on Penstock's.

Programs of our own make the same calls; the document's blocks are read and run where the document
is available.
"""

import ast
import inspect

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

import penstock
from penstock.loaders import ChunkedDataLoader, worker_init_fn
from penstock.tuning import DataLoaderPerformanceMonitor, OptimalDataLoaderFactory
from tests.seeds import run_block, seed_blocks

OURS = {
    "worker_init_fn": worker_init_fn,
    "OptimalDataLoaderFactory": OptimalDataLoaderFactory,
    "DataLoaderPerformanceMonitor": DataLoaderPerformanceMonitor,
}
REQUIRED = inspect.Parameter.empty
SIGNATURES = {  # parameters in their order, with their defaults
    worker_init_fn: {"worker_id": REQUIRED},
    OptimalDataLoaderFactory.get_optimal_config: {
        "dataset_size": REQUIRED,
        "has_augmentation": False,
        "has_standardization": False,
    },
    OptimalDataLoaderFactory.create_training_loader: {"dataset": REQUIRED, "batch_size": REQUIRED},
    OptimalDataLoaderFactory.create_validation_loader: {
        "dataset": REQUIRED,
        "batch_size": REQUIRED,
    },
    DataLoaderPerformanceMonitor().time_batch_loading: {"dataloader": REQUIRED, "num_batches": 10},
    DataLoaderPerformanceMonitor().benchmark_configurations: {
        "dataset": REQUIRED,
        "batch_size": REQUIRED,
    },
}
ENGINE_BLOCK = 3  # of document 002
CHANGES = {"from utils.dataloader_factory import": "from penstock import"}


class Engine:
    """Trains somehow; its loaders depend on its settings."""

    def __init__(self, **config):
        self.config = config

    def loaders(self, train, validation):
        factory, size = OptimalDataLoaderFactory, self.config["batch_size"]
        augments = any(self.config.get(name, False) for name in ("spec_augment", "gaussian_noise"))
        standardizes = self.config.get("standardize", False)
        return (
            factory.create_training_loader(
                train, size, has_augmentation=augments, has_standardization=standardizes
            ),
            factory.create_validation_loader(validation, size, has_standardization=standardizes),
        )


def check_engine(create):
    data = TensorDataset(torch.rand(100, 1, 4, 4), torch.arange(100))
    loaders = create(*random_split(data, [80, 20]))
    assert all(isinstance(loader, ChunkedDataLoader) for loader in loaders)
    assert [len(loader) for loader in loaders] == [10, 3]
    assert all(len(next(iter(loader))) == 2 for loader in loaders)


def test_an_engine_makes_its_loaders_with_the_factory():
    check_engine(Engine(batch_size=8, spec_augment=True, standardize=True).loaders)


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_parameters_and_defaults_are_the_promised_ones(function):
    found = inspect.signature(function).parameters
    expected = SIGNATURES[function]
    assert list(found)[: len(expected)] == list(expected)
    assert {name: found[name].default for name in expected} == expected
    if function.__name__.startswith("create_"):
        assert any(each.kind is each.VAR_KEYWORD for each in found.values())


def test_the_promised_attributes_exist():
    assert set(DataLoaderPerformanceMonitor().metrics) == {
        "batch_loading_times",
        "gpu_utilization",
        "memory_usage",
    }
    assert set(OptimalDataLoaderFactory.get_optimal_config(20_000)) >= {
        *("pin_memory", "persistent_workers", "drop_last", "num_workers"),
    }


def test_a_program_that_measures_its_loaders_runs(capsys):
    monitor = DataLoaderPerformanceMonitor()
    data = TensorDataset(torch.rand(64, 3), torch.arange(64))
    metrics = monitor.time_batch_loading(DataLoader(data, batch_size=4))
    assert {"mean_batch_time", "std_batch_time", "total_time"} <= set(metrics)
    results = monitor.benchmark_configurations(data, 4)
    assert list(results) == ["config_1", "config_2", "config_3", "config_4"]
    assert "Testing configuration 4/4" in capsys.readouterr().out
    for result in results.values():
        assert {"num_workers", "pin_memory", "mean_batch_time"} <= set(result)


def test_the_names_are_importable_from_the_root():
    assert all(getattr(penstock, name) is OURS[name] for name in OURS)


# -- the document itself


def definitions():
    """Each function and method of the document, with the object of ours that has its name."""
    for block in seed_blocks("002"):
        for node in ast.parse(block).body:
            if isinstance(node, ast.ClassDef) and node.name in OURS:
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        ours = getattr(OURS[node.name], method.name)
                        yield f"{node.name}.{method.name}", method, ours
            elif isinstance(node, ast.FunctionDef) and node.name in OURS:
                yield node.name, node, OURS[node.name]


def test_every_parameter_and_default_of_the_document_exists():
    found = list(definitions())
    assert len(found) == len({name for name, _, _ in found}) == 7
    for name, node, ours in found:
        given = inspect.signature(ours).parameters
        static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
        names = [arg.arg for arg in node.args.args]
        assert not ("." in name and static and "self" in given)
        assert [n for n in names if n not in given] == []
        defaults = [ast.literal_eval(value) for value in node.args.defaults]
        for parameter, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            assert given[parameter].default == default
        if node.args.kwarg is not None:
            assert any(p.kind is p.VAR_KEYWORD for p in given.values())


def test_the_engine_of_the_document_runs_with_the_factory():
    names = run_block(seed_blocks("002", CHANGES)[ENGINE_BLOCK], {})
    engine = Engine(batch_size=8, spec_augment=True, standardize=True)
    check_engine(lambda *parts: names["_create_data_loaders"](engine, *parts))
