"""Every name in the code of the chunked-training design is here, or is listed as not offered.

The blocks are copies of the design's; they are read, not run: most of their bodies are comments.
The calls in them are run below, with the lines that had to change listed beside them.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

from penstock import ChunkedDataLoader, ChunkedSampler, ChunkedTraining
from penstock.datamodules import SequenceDataset
from penstock.domains.audio import QuantizedAudioDataset, QuantizedAutoregressiveAudio
from tests.modules.chunking.runs import fit, ids
from tests.seeds import seed_document

HERE = Path(__file__).parent
ROOM, DOCS = HERE / "seed_blocks", HERE.parents[2] / "docs"
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


def classes() -> dict[str, list[ast.FunctionDef]]:
    """Class of the design -> its functions; the guards' loose ones are of two of them."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(ROOM.glob("*.txt")):
        tree = ast.parse(path.read_text())
        loose = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                defined = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found.setdefault(node.name, []).extend(defined)
        found["ChunkedDataLoader"] = found.get("ChunkedDataLoader", []) + loose[:1]
        found["ChunkedSequenceDataset"] = found.get("ChunkedSequenceDataset", []) + loose[1:]
    return found


def names_of(function: ast.FunctionDef) -> set[str]:
    """Attributes of ``self`` that a function sets, reads or calls."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_the_copies_are_the_blocks_of_the_design():
    copies = [path.read_text() for path in sorted(ROOM.iterdir())]
    assert len(copies) == 8
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```", seed_document("000"), re.M | re.S)
    assert sorted(blocks) == sorted(copies)


def test_the_lines_that_had_to_change_are_of_the_design():
    blocks = "".join(path.read_text() for path in ROOM.iterdir())
    assert all(line in blocks for line in CHANGED_LINES)


def test_every_class_is_here():
    assert set(classes()) == set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_every_method_parameter_and_default_is_here(name):
    for function in classes()[name]:
        if function.name in NOT_OFFERED.get(name, ()):
            continue
        method = getattr(OURS[name], function.name)
        parameters = inspect.signature(method).parameters
        anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        given = function.args.args[1:]
        defaults = [None] * (len(given) - len(function.args.defaults)) + function.args.defaults
        for argument, default in zip(given, defaults, strict=True):
            if argument.arg in NOT_OFFERED.get(name, ()):
                continue
            assert argument.arg in parameters or anything, f"{function.name}({argument.arg}=)"
            if default is not None and argument.arg in parameters:
                assert parameters[argument.arg].default == ast.literal_eval(default), argument.arg


def test_every_attribute_is_here():
    ours = instances()
    for name, functions in classes().items():
        wanted = set().union(*map(names_of, functions)) if functions else set()
        for attribute in wanted - NOT_OFFERED.get(name, set()):
            assert hasattr(ours[name], attribute), f"{name}.{attribute}"


def test_what_is_not_offered_is_not_here_and_is_written_down():
    ours = instances()
    written = "".join(
        page.read_text()
        for page in (DOCS / "decisions" / "0006-not-offered.md", DOCS / "migration.md")
    )
    for name, missing in NOT_OFFERED.items():
        for attribute in missing:
            assert not hasattr(ours[name], attribute), f"{name}.{attribute} is offered after all"
            assert re.search(rf"`[^`]*\b{attribute}\b", written), f"{name}.{attribute}: why not?"


def test_every_method_of_the_design_is_in_the_migration_guide():
    guide = (DOCS / "migration.md").read_text()
    for name, functions in classes().items():
        assert name in guide
        for function in functions:
            assert f"`{function.name}" in guide, f"{name}.{function.name}"


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


def test_the_configurations_are_detected():
    detected = []
    for path in sorted(ROOM.glob("*.yaml")):
        for part in re.split(r"^# (?=\w.*:$)", path.read_text(), flags=re.M):
            config = yaml.safe_load("#" + part)
            if config:
                config["train"] = config.get("train") or {}
                callback = ChunkedTraining(config)
                sizes = callback.explicit_train_chunk_size, callback.explicit_val_chunk_size
                detected.append((callback.chunked_training_enabled, *sizes))
    both, train, val, none = (
        (True, 2000, 200),
        (True, 2000, None),
        (True, None, 200),
        (False, None, None),
    )
    assert detected == [both, train, val, none, none, both, train, val]
