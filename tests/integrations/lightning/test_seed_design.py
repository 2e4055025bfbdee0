"""Every name of a design of chunked training is here, or is listed as not offered.

The design is a table of names below, and its document where that is available. The document's code
is read, not run, because most of its bodies are comments; its calls are run at the end.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from penstock import ChunkedDataLoader, ChunkedSampler, ChunkedTraining
from penstock.datamodules import SequenceDataset
from penstock.domains.audio import QuantizedAudioDataset, QuantizedAutoregressiveAudio
from tests.integrations.lightning.fits import fit, ids
from tests.seeds import seed_blocks

DOCS = Path(__file__).parents[3] / "docs"
OURS = {  # there are no Chunked... twins: chunks are built into the base
    "ChunkedSampler": ChunkedSampler,
    "ChunkedDataLoader": ChunkedDataLoader,
    "ChunkedSequenceDataset": SequenceDataset,
    "ChunkedTrainingMixin": ChunkedTraining,
    "ChunkedQuantizedAudioDataset": QuantizedAudioDataset,
    "ChunkedQuantizedAutoregressiveAudio": QuantizedAutoregressiveAudio,
}
CHANGED_LINES = {
    "ChunkedSampler(len(self.dataset), self.chunk_size)": "chunk_size is in samples there, in "
    "batches of the loader everywhere else: ChunkedSampler(n, chunk_size * batch_size)",
    "class ChunkedSequenceDataset(SequenceDataset)": "SequenceDataset as ChunkedSequenceDataset",
    "class ChunkedTrainingMixin": "a callback: Trainer(callbacks=[ChunkedTraining(config)])",
}
NOT_OFFERED = {  # reasons are in docs/decisions/0006-not-offered.md and docs/migration.md
    "ChunkedSampler": {"rng"},
    "ChunkedDataLoader": {
        "dataloader_kwargs",
        "standard_dataloader",
        "_calculate_total_chunks",
        "_setup_chunked_mode",
        "_setup_standard_mode",
    },
    "ChunkedSequenceDataset": {"_infer_missing_chunk_sizes"},
    "ChunkedTrainingMixin": {
        "config",
        "setup_chunked_training",
        "_infer_missing_chunk_sizes",
        "_get_train_partition_size",
        "_get_val_partition_size",
        "train_epoch_with_chunking",
        "standard_training_epoch",
    },
}
FILTERS = ["ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers"]
pytestmark = [pytest.mark.filterwarnings(each) for each in FILTERS]


class Numbers(SequenceDataset):
    """As small as a sequence dataset can be."""

    _name_ = "numbers of the design"

    def setup(self):
        sizes = {"train": 22, "val": 9, "test": 4}
        for side, size in sizes.items():
            numbers = torch.arange(size)
            setattr(self, f"dataset_{side}", TensorDataset(numbers, numbers))


def instances() -> dict[str, object]:
    config = {"train": {"train_chunk_size": 4}}
    numbers = Numbers(train_chunk_size=4, loader={"batch_size": 2})
    numbers.setup()
    return {
        "ChunkedSampler": ChunkedSampler(dataset_size=10, chunk_size=4, seed=42),
        "ChunkedDataLoader": ChunkedDataLoader(ids(22), batch_size=2, chunk_size=4, num_workers=0),
        "ChunkedSequenceDataset": numbers,
        "ChunkedTrainingMixin": fit(ChunkedTraining(config)).callback,
    }


SIZES = {"train_chunk_size": None, "val_chunk_size": None}
REQUIRED = object()
DESIGN = {  # class -> its methods, their arguments and defaults; and the attributes it uses
    "ChunkedSampler": (
        {
            "__init__": {"dataset_size": REQUIRED, "chunk_size": REQUIRED, "seed": 42},
            "get_chunk_indices": {"chunk_idx": REQUIRED},
            "set_chunk": {"chunk_idx": REQUIRED},
            "__iter__": {},
            "__len__": {},
        },
        "chunk_size current_chunk dataset_size get_chunk_indices rng",
    ),
    "ChunkedDataLoader": (
        {
            "__init__": {
                "dataset": REQUIRED,
                "batch_size": REQUIRED,
                "chunk_size": None,
                "limit_batches": None,
            },
            "__iter__": {},
            "__len__": {},
            "_calculate_total_chunks": {},
        },
        "batch_size chunk_size current_chunk dataloader_kwargs dataset effective_chunk_size "
        "standard_dataloader total_chunks use_chunked _calculate_total_chunks "
        "_setup_chunked_mode _setup_standard_mode",
    ),
    "ChunkedSequenceDataset": (
        {
            "__init__": SIZES,
            "train_dataloader": {},
            "val_dataloader": {},
            "_create_chunked_train_dataloader": {},
            "_create_chunked_val_dataloader": {},
            "_get_train_partition_size": {},
            "_get_val_partition_size": {},
            "_infer_chunk_sizes": {},
            "_infer_missing_chunk_sizes": {},
        },
        "current_train_chunk current_val_chunk dataset_train dataset_val explicit_train_chunk_size "
        "explicit_val_chunk_size train_chunk_size use_chunked_training val_chunk_size",
    ),
    "ChunkedTrainingMixin": (
        {
            "__init__": {"config": REQUIRED},
            "setup_chunked_training": {"config": REQUIRED},
            "standard_training_epoch": {},
            "train_epoch_with_chunking": {},
            "_get_train_partition_size": {},
            "_get_val_partition_size": {},
            "_infer_missing_chunk_sizes": {},
        },
        "chunked_training_enabled explicit_train_chunk_size explicit_val_chunk_size "
        "train_chunk_size val_chunk_size",
    ),
    "ChunkedQuantizedAudioDataset": ({}, ""),
    "ChunkedQuantizedAutoregressiveAudio": ({}, ""),
}
CONFIGURATIONS = [  # chunk sizes of train, limits, and what is detected
    ({"train_chunk_size": 2000, "val_chunk_size": 200}, {}, (True, 2000, 200)),
    ({"train_chunk_size": 2000}, {"limit_val_batches": 200}, (True, 2000, None)),
    ({"val_chunk_size": 200}, {"limit_train_batches": 2000}, (True, None, 200)),
    ({}, {"limit_train_batches": 2000, "limit_val_batches": 200}, (False, None, None)),
]


@dataclass(frozen=True)
class Interface:
    """A class of the design: arguments and defaults of its methods, and its attributes."""

    methods: list[tuple[str, dict[str, object]]]
    attributes: set[str]


def of_table() -> dict[str, Interface]:
    return {
        name: Interface([*methods.items()], set(attributes.split()))
        for name, (methods, attributes) in DESIGN.items()
    }


def of_document() -> dict[str, Interface]:
    """What the document's classes have; its loose functions are of two of them."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for block in seed_blocks("000"):
        tree = ast.parse(block)
        loose = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                defined = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found.setdefault(node.name, []).extend(defined)
        found["ChunkedDataLoader"] = found.get("ChunkedDataLoader", []) + loose[:1]
        found["ChunkedSequenceDataset"] = found.get("ChunkedSequenceDataset", []) + loose[1:]
    return {
        name: Interface(
            [(each.name, arguments_of(each)) for each in functions],
            set().union(*map(attributes_of, functions)) if functions else set(),
        )
        for name, functions in found.items()
    }


def arguments_of(function: ast.FunctionDef) -> dict[str, object]:
    """The arguments of a method, without ``self``, and their defaults."""
    names, defaults = function.args.args[1:], function.args.defaults
    values = [REQUIRED] * (len(names) - len(defaults)) + [*map(ast.literal_eval, defaults)]
    return {each.arg: value for each, value in zip(names, values, strict=True)}


def attributes_of(function: ast.FunctionDef) -> set[str]:
    """Attributes of ``self`` that a function sets, reads or calls."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.fixture(params=["our table", "the document"])
def design(request) -> dict[str, Interface]:
    return of_table() if request.param == "our table" else of_document()


@pytest.fixture(scope="module")
def ours() -> dict[str, object]:
    return instances()


def test_the_table_has_every_name_of_the_document():
    table = of_table()
    for name, interface in of_document().items():
        arguments = {}
        for method, found in table[name].methods:
            arguments.setdefault(method, {}).update(found)
        for method, found in interface.methods:
            assert found.items() <= arguments[method].items(), f"{name}.{method}"
        methods = {*arguments, *table[name].attributes}
        assert interface.attributes <= methods, name


def test_lines_that_had_to_change_are_of_the_document():
    blocks = "".join(seed_blocks("000"))
    assert all(line in blocks for line in CHANGED_LINES)


def test_every_class_is_here(design):
    assert set(design) == set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_method_parameter_and_default_is_here(name, design):
    missing = NOT_OFFERED.get(name, ())
    for method, arguments in design[name].methods:
        if method in missing:
            continue
        parameters = inspect.signature(getattr(OURS[name], method)).parameters
        anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for argument, default in arguments.items():
            if argument in missing:
                continue
            assert argument in parameters or anything, f"{method}({argument}=)"
            if default is not REQUIRED and argument in parameters:
                assert parameters[argument].default == default, argument


def test_every_attribute_is_here(design, ours):
    for name, interface in design.items():
        for attribute in interface.attributes - NOT_OFFERED.get(name, set()):
            assert hasattr(ours[name], attribute), f"{name}.{attribute}"


def test_what_is_not_offered_is_not_here_and_is_written_down(ours):
    written = "".join(
        page.read_text()
        for page in (DOCS / "decisions" / "0006-not-offered.md", DOCS / "migration.md")
    )
    for name, missing in NOT_OFFERED.items():
        for attribute in missing:
            assert not hasattr(ours[name], attribute), f"{name}.{attribute} is offered after all"
            assert re.search(rf"`[^`]*\b{attribute}\b", written), f"{name}.{attribute}: why not?"


def test_every_method_of_the_design_is_in_the_migration_guide(design):
    guide = (DOCS / "migration.md").read_text()
    for name, interface in design.items():
        assert name in guide
        for method, _ in interface.methods:
            assert f"`{method}" in guide, f"{name}.{method}"


# -- the calls


def test_the_calls_of_the_sampler_run():
    dataset, batch_size, chunk_size = ids(10), 2, 2
    sampler = ChunkedSampler(len(dataset), chunk_size * batch_size)  # a changed line
    sampler.set_chunk(1)
    assert list(iter(sampler)) == list(sampler.get_chunk_indices(sampler.current_chunk))
    assert len(sampler) == min(sampler.chunk_size, sampler.dataset_size)
    batches = list(DataLoader(dataset, batch_size=batch_size, sampler=sampler))
    assert torch.cat([ids for (ids,) in batches]).tolist() == list(sampler)


def test_the_calls_of_the_loader_run():
    dataset = ids(10)
    loader = ChunkedDataLoader(dataset, 2, chunk_size=2, limit_batches=1, num_workers=0)
    assert (loader.effective_chunk_size, loader.use_chunked, loader.total_chunks) == (2, True, 3)
    assert len(list(loader)) == len(loader) == 2 and loader.current_chunk == 1
    standard = ChunkedDataLoader(dataset, batch_size=2, chunk_size=None, num_workers=0)
    assert not standard.use_chunked and len(standard) == len(DataLoader(dataset, batch_size=2))
    assert [x.tolist() for (x,) in standard] == [x.tolist() for (x,) in DataLoader(dataset, 2)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((None, None), (None, None)), ((4, None), (4, 5)), ((None, 3), (11, 3)), ((4, 3), (4, 3))],
)
def test_the_calls_of_the_dataset_and_of_training_run(sizes, expected):
    given = dict(zip(("train_chunk_size", "val_chunk_size"), sizes, strict=True))
    data = Numbers(**given, loader={"batch_size": 2})
    callback = ChunkedTraining(SimpleNamespace(train=given))
    enabled = any(sizes)
    assert data.use_chunked_training == callback.chunked_training_enabled == enabled
    run = fit(callback, data=data, max_epochs=2)
    assert (callback.train_chunk_size, callback.val_chunk_size) == expected
    assert (callback.explicit_train_chunk_size, callback.explicit_val_chunk_size) == sizes
    if enabled:
        assert (data.train_chunk_size, data.val_chunk_size) == expected
    assert run.train_batches[0] == (sizes[0] or 11) and run.val_batches[0] == (sizes[1] or 5)


def detected(config: dict) -> tuple[bool, int | None, int | None]:
    callback = ChunkedTraining(config)
    sizes = callback.explicit_train_chunk_size, callback.explicit_val_chunk_size
    return callback.chunked_training_enabled, *sizes


@pytest.mark.parametrize(("train", "limits", "expected"), CONFIGURATIONS)
def test_configurations_are_detected(train, limits, expected):
    assert detected({"train": {**train, **limits}, "loader": {"batch_size": 32}}) == expected
    assert detected({"trainer": limits, "train": train}) == expected


def test_configurations_of_the_document_are_detected():
    found = []
    for block in seed_blocks("000", language="yaml"):
        for part in re.split(r"^# (?=\w.*:$)", block, flags=re.M):
            config = yaml.safe_load("#" + part)
            if config:
                found.append(detected(config | {"train": config.get("train") or {}}))
    both, train, val, none = (expected for *_, expected in CONFIGURATIONS)
    assert found == [both, train, val, none, none, both, train, val]
