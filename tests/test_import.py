"""The front door: light, true to its ``__all__``, and typed."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

import penstock

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


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return result.stdout.strip()


def test_importing_penstock_imports_neither_torch_nor_any_extra():
    code = f"import sys, penstock; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert fresh(code) == "[]"


def test_the_spine_needs_no_torch():
    code = "import sys, penstock; penstock.ShuffledOrder(9, 1); print('torch' in sys.modules)"
    assert fresh(code) == "False"


def test_the_loaders_need_no_extra():
    heavy = [name for name in HEAVY if name not in ("torch", "numpy")]
    code = "import sys; from penstock import ChunkedDataLoader; "
    assert fresh(f"{code} print(sorted(set({heavy!r}) & set(sys.modules)))") == "[]"


def test_every_name_in_all_is_there_and_lives_where_it_says():
    assert len(penstock.__all__) == len(set(penstock.__all__))
    assert set(dir(penstock)) >= set(penstock.__all__)
    for name in penstock.__all__:
        value = getattr(penstock, name)
        assert value is getattr(penstock, name)
        home = getattr(value, "__module__", "penstock")
        assert isinstance(home, str) and home.split(".")[0] in ("penstock", "builtins"), name


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(penstock.__file__).read_text())
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock")
        for alias in node.names
        if alias.asname
    }
    assert seen == set(penstock._HOME)


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
Permutation SequentialOrder ShuffledOrder BlockOrder Topology Plan Cursor derive_key
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
    for room in ("order", "loaders", "testing"):
        module = __import__(f"penstock.{room}", fromlist=["__all__"])
        assert all(hasattr(module, name) for name in module.__all__)


PROGRAM = """
from typing import Any

import numpy as np
import torch
from penstock import BlockOrder, ChunkedDataLoader, ChunkedSampler, StateError, sample_generator


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=sample_generator(index, "noise"))


def train(saved: dict[str, Any] | None) -> dict[str, Any]:
    order = BlockOrder(1000, seed=7, block=10, window=4)
    with ChunkedDataLoader(Noisy(), 32, chunk_size=10, order=order, num_workers=2) as loader:
        if saved is not None:
            loader.load_state_dict(saved)
        total: int = len(loader) + loader.remaining
        for batch in loader:
            print(batch, total)
        loader.set_epoch(3)
        indices: np.ndarray[Any, np.dtype[np.int64]] = loader.samples_at(3)
        print(indices, loader.describe(), ChunkedSampler(1000, 30).total_chunks + 1)
        return loader.state_dict()


try:
    train(None)
except StateError as error:
    print(error)
"""


def test_a_users_program_passes_mypy_strict(tmp_path, pytestconfig):
    assert files("penstock").joinpath("py.typed").is_file()
    program, wrong = tmp_path / "program.py", tmp_path / "wrong.py"
    program.write_text(PROGRAM)
    wrong.write_text(PROGRAM.replace("chunk_size=10, order", 'chunk_size="10", order'))
    cache = pytestconfig.cache.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache)]
    result = subprocess.run(
        [*command, str(program), str(wrong)], capture_output=True, text=True, timeout=300
    )
    lines = [line for line in result.stdout.splitlines() if ": error:" in line]
    assert len(lines) == 1 and "wrong.py" in lines[0] and "chunk_size" in lines[0], result.stdout


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
LOOK = """
import inspect, pydoc, sys
sys.modules.update(dict.fromkeys({missing!r}.split()))  # as if they were not installed
import penstock
before = {{name: hasattr(penstock, name) for name in penstock._HOME}}
scope = {{}}
exec("from penstock import *", scope)
assert set(penstock.__all__) <= set(scope)
assert {{name for name, _ in inspect.getmembers(penstock)}} >= set(penstock.__all__)
assert set(dir(penstock)) == set(penstock.__all__) and pydoc.render_doc(penstock)
gone = [name for name, there in before.items() if not there]
assert not set(gone) & set(penstock.__all__)
for name in gone:
    try:
        exec(f"from penstock import {{name}}")
    except penstock.MissingExtraError as error:
        assert "pip install 'penstock[" in str(error), error
print(*gone)
"""


@pytest.mark.parametrize("extra", EXTRAS)
def test_without_an_extra_the_rest_can_be_looked_at(extra):
    """`import *`, `hasattr`, `inspect` and `help` raise nothing; an import says what to install."""
    gone = fresh(LOOK.format(missing=EXTRAS[extra]))
    assert gone == ("ChunkedTraining" if "lightning" in EXTRAS[extra] else "")
