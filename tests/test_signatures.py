"""Public signatures: documented arguments, one meaning for one name, and types instead of Any."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.loaders.partition import validation_loader

PACKAGES = """
checks collate datamodules datasets distributed domains.audio domains.folds domains.recording
domains.spectrograms domains.steering integrations.huggingface integrations.lightning
integrations.ray loaders metrics order sources testing training transforms tuning
"""


def exports(name: str) -> list[str]:
    """Return the public names of a package: ``__all__``, or what it imports as itself."""
    package = import_module(f"penstock.{name}")
    if hasattr(package, "__all__"):
        return list(package.__all__)
    tree = ast.parse(Path(package.__file__ or "").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports for alias in node.names if alias.asname == alias.name]


def public() -> dict[str, Any]:
    """Return the public classes and functions by their first name."""
    names = [("penstock", name) for name in penstock._HOME]
    names += [
        (f"penstock.{package}", name) for package in PACKAGES.split() for name in exports(package)
    ]
    found = {f"{package}.{name}": getattr(import_module(package), name) for package, name in names}
    once = {id(value): name for name, value in reversed(found.items()) if is_called(value)}
    return {name: found[name] for name in once.values()}


def is_called(value: Any) -> bool:
    """Return whether users call it with arguments of ours: not errors, enums and types."""
    if inspect.isclass(value):
        return not issubclass(value, Enum | BaseException)
    return inspect.isroutine(value)


def methods() -> dict[str, Any]:
    """Return the public methods of the classes that most programs use."""
    kinds = [getattr(penstock, name) for name in penstock.__all__]
    return {
        f"{kind.__name__}.{name}": method
        for kind in kinds
        if inspect.isclass(kind)
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_")
        if not name.startswith("on_") and name not in ("setup", "teardown")  # Lightning's own
    }


def signature_of(value: Any) -> inspect.Signature:
    """Return the signature: of ``__init__`` for a class whose ``__new__`` takes anything."""
    signature = inspect.signature(value)
    if inspect.isclass(value) and "args" in signature.parameters:
        return inspect.signature(value.__init__)
    return signature


def arguments(value: Any) -> list[inspect.Parameter]:
    """Return the arguments that users pass by name or position."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = signature_of(value).parameters.values()
    return [each for each in found if each.kind not in kinds and each.name not in ("self", "cls")]


def documented(value: Any) -> set[str]:
    """Return the arguments that a docstring describes; of a class, also those of its bases."""
    found: set[str] = set()
    for each in value.__mro__[:-1] if inspect.isclass(value) else [value]:
        section = re.search(
            r"^(?:Args|Attributes):\n((?: .*\n|\n)*)", f"{inspect.getdoc(each)}\n", re.M
        )
        names = re.findall(r"^ {4}((?:\w+(?:,\s+)?)+):", section[1], re.M) if section else []
        found |= {name for several in names for name in re.split(r",\s+", several)}
    return found


CONTRACTS = ("Order", "Source")  # their methods are described once, in the protocol


def missing(found: dict[str, Any]) -> dict[str, list[str]]:
    contract = {
        name: documented(method)
        for kind in CONTRACTS
        for name, method in vars(getattr(penstock, kind)).items()
        if inspect.isfunction(method)
    }
    lacking = {}
    for name, value in found.items():
        known = documented(value) | contract.get(name.rpartition(".")[2], set())
        lacking[name] = [each.name for each in arguments(value) if each.name not in known]
    return {name: names for name, names in lacking.items() if names}


def test_every_argument_of_what_is_exported_is_described():
    assert len(public()) > 150
    assert missing(public()) == {}


def test_every_argument_of_the_methods_that_most_programs_use_is_described():
    assert len(methods()) > 60
    assert missing(methods()) == {}


def test_an_argument_that_is_not_described_is_found():
    def described(one: int, two: int) -> None:
        """Do it.

        Args:
            one: The first.
        """

    assert missing({"described": described}) == {"described": ["two"]}


# -- the same argument has the same default in everything that loads; the exceptions say why

LOADERS: dict[str, Callable[..., Any]] = {
    "ChunkedDataLoader": penstock.ChunkedDataLoader,
    "StreamLoader": penstock.StreamLoader,
    "ReplayLoader": penstock.ReplayLoader,
    "ChunkedSampler": penstock.ChunkedSampler,
    "validation_loader": validation_loader,
    "RandomChunkLoader": penstock.RandomChunkLoader,
    "create_loader": penstock.create_loader,
    "DataLoaderConfig": penstock.DataLoaderConfig,
    "UniversalDataModule": penstock.UniversalDataModule,
    "SequenceDataset": penstock.SequenceDataset,
    "ChunkedTraining": penstock.ChunkedTraining,
    "tune": penstock.tune,
    "AugmentedDataset": penstock.AugmentedDataset,
    "ReplacingDataset": penstock.ReplacingDataset,
}
REQUIRED = inspect.Parameter.empty
DEFAULTS: dict[str, Any] = {
    "batch_size": REQUIRED,
    "chunk_size": None,
    "collate_fn": None,
    "device": None,
    "drop_last": False,
    "evaluation": False,
    "executor": None,
    "memory_budget": "1GB",
    "num_workers": 0,
    "rank": None,
    "seed": 42,
    "shuffle": True,
    "threads": None,
    "timeout": 0,
    "tune": None,
    "world_size": None,
}
EXCEPTIONS = {
    ("ChunkedDataLoader", "batch_size"): (1, "as in torch's DataLoader"),
    ("DataLoaderConfig", "batch_size"): (32, "a configuration is complete without arguments"),
    ("UniversalDataModule", "batch_size"): (32, "that of its configuration"),
    ("DataLoaderConfig", "num_workers"): (2, "as promised to users of its seed"),
    ("UniversalDataModule", "num_workers"): (2, "that of its configuration"),
    ("ChunkedDataLoader", "shuffle"): (None, "with chunks True, without torch's False"),
    ("StreamLoader", "drop_last"): (True, "batches of one shape: a stream is for training"),
    ("create_loader", "drop_last"): (None, "True for training, False else"),
    ("ChunkedSampler", "chunk_size"): (REQUIRED, "in samples; a sampler has nothing else"),
    ("RandomChunkLoader", "chunk_size"): (REQUIRED, "in timesteps; the loader has nothing else"),
    ("RandomChunkLoader", "seed"): (None, "as promised to users of its seed"),
    ("create_loader", "seed"): (None, "that of the dataset"),
}
# other names for the same thing, which users of the first edition and of the seeds may pass
ALIASES = {
    ("StreamLoader", "collate"): "collate_fn",
    ("ReplayLoader", "collate"): "collate_fn",
    ("SequenceDataset", "chunk_seed"): "seed",
}
UNWANTED = """
collate collator batch bs workers n_workers n_threads num_threads budget memory_limit is_eval
eval_mode random_state random_seed chunk_seed ranks num_replicas world drop_remainder shuffled
"""


def defaults() -> dict[tuple[str, str], Any]:
    """Return the default of each argument that has one name in all loaders."""
    return {
        (name, each.name): each.default
        for name, value in LOADERS.items()
        for each in arguments(value)
        if each.name in DEFAULTS
    }


def test_the_same_argument_has_the_same_default_everywhere():
    found = defaults()
    assert len(found) > 40
    expected = {key: DEFAULTS[key[1]] for key in found}
    expected |= {key: value for key, (value, _) in EXCEPTIONS.items()}
    assert found == expected


def test_every_exception_is_needed():
    for (name, argument), (value, why) in EXCEPTIONS.items():
        assert value != DEFAULTS[argument] and why, (name, argument)


def test_no_loader_has_another_name_for_the_same_argument():
    found = {
        (name, each.name)
        for name, value in LOADERS.items()
        for each in arguments(value)
        if each.name in UNWANTED.split()
    }
    assert found == set(ALIASES)


def test_every_loader_can_evaluate_and_be_seeded():
    for name in ("ChunkedDataLoader", "StreamLoader", "ReplayLoader"):
        assert {"evaluation", "seed", "batch_size"} <= {
            each.name for each in arguments(LOADERS[name])
        }


def test_what_torch_names_is_passed_on_by_its_name():
    torchs = {"collate_fn", "num_workers", "timeout", "pin_memory"}
    options = signature_of(penstock.ChunkedDataLoader).parameters
    assert options["dataloader_kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    assert not torchs & set(options)


# -- types

MOST_ANY = 23  # arguments that take any object: batches, tokenizers, trainers, values by column
LIKE = {
    ("ChunkedDataLoader", "dataset"): "DatasetLike",
    ("StreamLoader", "source"): "SourceLike",
    ("open_source", "where"): "SourceLike",
    ("tune", "dataset"): "DatasetLike",
    ("UniversalDataModule", "train_data"): "SourceLike",
}


def typed_as_any(found: dict[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        for each in arguments(value):
            if re.fullmatch(r"(typing\.)?Any( \| None)?", str(each.annotation)):
                yield f"{name}: {each.name}"


def test_few_arguments_take_anything():
    found = sorted(typed_as_any(public() | methods()))
    assert len(found) <= MOST_ANY, found


@pytest.mark.parametrize(("name", "argument"), LIKE)
def test_data_has_a_type_that_says_what_is_accepted(name, argument):
    signature = signature_of(getattr(penstock, name))
    assert signature.parameters[argument].annotation == LIKE[name, argument]
