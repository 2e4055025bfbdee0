"""The guide's code on the factory and the monitor: every name in it exists, every call runs."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock.loaders
from penstock.loaders import ChunkedDataLoader, worker_init_fn
from penstock.tuning import DataLoaderPerformanceMonitor, OptimalDataLoaderFactory
from tests.seeds import seed_document

HERE = Path(__file__).parent / "seed_002"
BLOCKS = sorted(path.stem for path in HERE.glob("*.txt"))
OURS = {
    "worker_init_fn": worker_init_fn,
    "OptimalDataLoaderFactory": OptimalDataLoaderFactory,
    "DataLoaderPerformanceMonitor": DataLoaderPerformanceMonitor,
}
CHANGED_LINES = {
    "from utils.dataloader_factory import OptimalDataLoaderFactory": (
        "from penstock.loaders import OptimalDataLoaderFactory"
    ),
}


def block(name):
    return (HERE / f"{name}.txt").read_text()


def definitions():
    """Each function and method of the blocks, with the object of ours that has its name."""
    for name in BLOCKS:
        for node in ast.parse(block(name)).body:
            if isinstance(node, ast.ClassDef) and node.name in OURS:
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        yield (
                            f"{node.name}.{method.name}",
                            method,
                            getattr(OURS[node.name], method.name),
                        )
            elif isinstance(node, ast.FunctionDef) and node.name in OURS:
                yield node.name, node, OURS[node.name]


def test_the_blocks_are_the_guides_own():
    assert len(BLOCKS) == 4
    seed = seed_document("002")
    for name in BLOCKS:
        assert f"```python\n{block(name)}```" in seed


@pytest.mark.parametrize(("name", "node", "ours"), list(definitions()))
def test_every_parameter_and_default_exists(name, node, ours):
    given = inspect.signature(ours).parameters
    static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
    names = [arg.arg for arg in node.args.args]
    if "." in name and static:
        assert "self" not in given
    assert [n for n in names if n not in given] == []
    defaults = [ast.literal_eval(value) for value in node.args.defaults]
    for parameter, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        assert given[parameter].default == default
    if node.args.kwarg is not None:
        assert any(p.kind is p.VAR_KEYWORD for p in given.values())


def test_seven_functions_and_methods_were_compared():
    found = [name for name, _, _ in definitions()]
    assert len(found) == len(set(found)) == 7


def test_the_attributes_of_the_blocks_exist():
    assert set(DataLoaderPerformanceMonitor().metrics) == {
        "batch_loading_times",
        "gpu_utilization",
        "memory_usage",
    }
    assert set(OptimalDataLoaderFactory.get_optimal_config(20_000)) >= {
        *("pin_memory", "persistent_workers", "drop_last", "num_workers"),
    }


def test_the_engines_method_runs_with_the_factory():
    (name,) = [name for name in BLOCKS if "engine" in name]
    source = "\n".join(
        line.replace(line.strip(), CHANGED_LINES.get(line.strip(), line.strip()))
        for line in block(name).splitlines()
    )
    names = {}
    exec(compile(source, name, "exec"), names)

    class Engine:
        create = names["_create_data_loaders"]

        def __init__(self):
            self.config = {"batch_size": 8, "spec_augment": True, "standardize": True}

    data = TensorDataset(torch.rand(100, 1, 4, 4), torch.arange(100))
    train, validation = torch.utils.data.random_split(data, [80, 20])
    loaders = Engine().create(train, validation)
    assert all(isinstance(loader, ChunkedDataLoader) for loader in loaders)
    assert [len(loader) for loader in loaders] == [10, 3]
    assert all(len(next(iter(loader))) == 2 for loader in loaders)


def test_the_monitors_calls_run(capsys):
    monitor = DataLoaderPerformanceMonitor()
    data = TensorDataset(torch.rand(64, 3), torch.arange(64))
    metrics = monitor.time_batch_loading(DataLoader(data, batch_size=4))
    assert {"mean_batch_time", "std_batch_time", "total_time"} <= set(metrics)
    results = monitor.benchmark_configurations(data, 4)
    assert list(results) == ["config_1", "config_2", "config_3", "config_4"]
    assert "Testing configuration 4/4" in capsys.readouterr().out
    for result in results.values():
        assert {"num_workers", "pin_memory", "mean_batch_time"} <= set(result)


def test_the_names_are_importable_from_the_package():
    assert set(OURS) <= set(penstock.loaders.__all__)
