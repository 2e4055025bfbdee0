"""The root package: light to import, and true to its ``__all__``."""

import ast
import builtins
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.extras import optional

HEAVY = [
    "torch",
    "numpy",
    "zarr",
    "zarrs",
    "numcodecs",
    "obstore",
    "pyarrow",
    "datasets",
    "soundfile",
    "soxr",
    "lightning",
    "pytorch_lightning",
    "hydra",
    "omegaconf",
    "sklearn",
    "plotly",
    "typer",
    "rich",
    "ray",
    "transformers",
    "accelerate",
    "h5py",
]


EXTRAS = {
    "lightning": "lightning pytorch_lightning",
    "train": "lightning hydra omegaconf yaml sklearn tensorboard",
    "cli": "typer",
    "zarr": "zarr zarrs numcodecs google_crc32c deflate",
    "remote": "obstore",
    "arrow": "pyarrow datasets PIL",
    "audio": "soundfile soxr",
    "hdf5": "h5py",
    "report": "plotly",
}
EXTRAS["all of them"] = " ".join([*EXTRAS.values(), "rich"])
DOMAINS = {
    "audio": "audio",
    "folds": "folds",
    "recording": "recording",
    "spectrograms": "spectrograms folds",  # folds is built on spectrograms
    "steering": "steering",
}
MOST_MODULES = 69  # that `from penstock import StreamLoader` loads


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """What a fresh interpreter finds after each import, and without each of the extras."""
    program = Path(__file__).with_name("import_program.py")
    result = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps({"extras": EXTRAS, "domains": DOMAINS}),
        check=True,
        capture_output=True,
        text=True,
        timeout=600,  # it takes 20 s, and much longer beside other work
    )
    return json.loads(result.stdout)


def test_importing_penstock_imports_neither_torch_nor_any_extra(fresh):
    assert not set(fresh["import penstock"]) & set(HEAVY)


def test_the_order_package_needs_no_torch(fresh):
    assert "torch" not in fresh["an order"]


def test_the_loaders_need_no_extra(fresh):
    assert "torch" in fresh["the loaders"]
    assert not set(fresh["the loaders"]) & set(HEAVY) - {"torch", "numpy"}


def test_a_loader_loads_few_modules(fresh):
    assert fresh["modules of StreamLoader"] <= MOST_MODULES


@pytest.mark.parametrize("domain", DOMAINS)
def test_without_a_domain_everything_else_can_be_imported(fresh, domain):
    assert fresh[domain] == []


def test_every_domain_is_left_out_once():
    folder = Path(penstock.__file__).parent / "domains"
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(DOMAINS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_without_an_extra_the_rest_is_usable(fresh, extra):
    """`import *`, `hasattr`, `inspect` and `help` raise nothing; an import says what to install."""
    gone = ["ChunkedTraining"] if "lightning" in EXTRAS[extra] else []
    assert fresh[extra] == gone


def test_every_name_in_all_is_there_and_lives_where_it_says():
    assert len(penstock.__all__) == len(set(penstock.__all__))
    assert set(dir(penstock)) >= set(penstock.__all__)
    for name in penstock.__all__:
        value = getattr(penstock, name)
        assert value is getattr(penstock, name)
        home = getattr(value, "__module__", "penstock")
        assert isinstance(home, str) and home.split(".")[0] in ("penstock", "builtins"), name


def seen_by_type_checkers(package: ModuleType) -> set[str]:
    """Return the names that the stub of a package imports."""
    stub = Path(package.__file__ or "").with_name("__init__.pyi")
    return {
        alias.asname
        for node in ast.walk(ast.parse(stub.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock")
        for alias in node.names
        if alias.asname
    }


def test_type_checkers_see_the_same_names():
    assert seen_by_type_checkers(penstock) == set(penstock._HOME)


@pytest.mark.parametrize(
    "name",
    [
        "collate",
        "datamodules",
        "datasets",
        "loaders",
        "metrics",
        "sources",
        "transforms",
        "domains.folds",
        "domains.recording",
        "domains.spectrograms",
        "domains.steering",
    ],
)
def test_a_package_that_imports_later_has_the_names_that_type_checkers_see(name):
    package = import_module(f"penstock.{name}")
    assert seen_by_type_checkers(package) == set(package.__all__) == set(dir(package))
    assert all(hasattr(package, each) for each in package.__all__)
    with pytest.raises(AttributeError, match=f"'penstock.{name}' has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_the_front_door_has_about_thirty_names():
    assert len(penstock.__all__) <= 36
    assert set(penstock.__all__) - {"__version__"} < set(penstock._HOME)


# the names that users are promised; all of them import from the root
PROMISED = """
ChunkedSampler ChunkedDataLoader SequenceDataset QuantizedAudioDataset
QuantizedAutoregressiveAudio ChunkedTraining RandomChunkLoader create_zarr_loader
load_column_slice load_metadata FlyVisSim NeuronData sample_batch_within_chunk
calculate_chunk_params ChunkLatencyStats open_source StreamLoader StandardizedDataset
WorkerSafeStandardizedDataset AugmentedDataset SpecAugment GaussianNoise worker_init_fn
compute_standardization DataLoaderFactory OptimalDataLoaderFactory
DataLoaderPerformanceMonitor tune cross_val_training single_fold_training
DataModuleProtocol CollatorRegistry TextCollator VisionCollator DefaultCollator TaskSpec
DataLoaderConfig UniversalDataModule TrainingConfig CheckpointManager
JASPERSteeringDataset create_loader set_epoch validate_first_batch validate_dataset
PenstockError PlanError SourceError StateError ConfigError BatchError MissingExtraError
Permutation SequentialOrder ShuffledOrder BlockOrder Topology Plan Cursor derive_key Occurrence
Mixture balanced pack
"""


@pytest.mark.parametrize("name", PROMISED.split())
def test_every_promised_name_is_importable_from_the_root(name):
    scope: dict[str, object] = {}
    exec(f"from penstock import {name}", scope)
    assert scope[name] is not None


def test_names_of_packages_are_hidden_but_work():
    assert "FlyVisSim" not in dir(penstock)
    assert penstock.FlyVisSim is import_module("penstock.domains.recording").FlyVisSim


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="has no attribute 'ChunkedDataloader'"):
        penstock.ChunkedDataloader  # noqa: B018
    assert not hasattr(penstock, "Nothing")


def test_packages_say_what_they_export():
    for package in ("order", "loaders", "testing"):
        module = import_module(f"penstock.{package}")
        assert all(hasattr(module, name) for name in module.__all__)


def test_threads_that_import_modules_of_one_package_do_not_see_it_unfinished(tmp_path, monkeypatch):
    """Decoders are imported by the reader threads, when the first chunk needs one."""
    package = tmp_path / "two_decoders"
    package.mkdir()
    (package / "a.py").write_text("name = 'a'")
    (package / "b.py").write_text("import two_decoders\nname = 'b'")
    (package / "__init__.py").write_text(
        "import builtins\n"
        "builtins.began.set()\n"
        "builtins.other.wait(0.3)\n"  # the other thread is then inside its import
        "from two_decoders.b import name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "began", threading.Event(), raising=False)
    monkeypatch.setattr(builtins, "other", threading.Event(), raising=False)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(optional, "two_decoders.a", "zarr")
        assert builtins.began.wait(10)
        second = pool.submit(optional, "two_decoders.b", "zarr")
        assert (first.result().name, second.result().name) == ("a", "b")
    for name in ("two_decoders", "two_decoders.a", "two_decoders.b"):
        del sys.modules[name]
