"""The seed document's code runs; every changed line is listed here."""

from __future__ import annotations

import ast
import gc
import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    create_loader,
    set_epoch,
    validate_first_batch,
)
from tests.seeds import seed_document

HERE = Path(__file__).parent / "steering_seed_blocks"
LOADER = "from RAG_supporters.pytorch_datasets.loader import"
CHANGED_LINES = {
    f"{LOADER} create_loader": "from penstock.loaders import create_loader",
    f"{LOADER} create_loader, set_epoch": "from penstock.loaders import create_loader, set_epoch",
    f"{LOADER} create_loader, validate_first_batch": (
        "from penstock.loaders import create_loader, validate_first_batch"
    ),
    "from RAG_supporters.pytorch_datasets import JASPERSteeringDataset": (
        "from penstock.domains.spectrograms import JASPERSteeringDataset"
    ),
    # where the document names cuda
    'batch = {k: v.to("cuda") for k, v in batch.items()}': (
        'batch = {k: v.to("cpu") for k, v in batch.items()}'
    ),
    "torch.cuda.reset_peak_memory_stats()": "pass",
    "peak_mb = torch.cuda.max_memory_allocated() / 1024 / 1024": (
        "peak_mb = sum(v.nbytes for v in batch.values()) / 1024 / 1024"
    ),
    # the elided path of the tips
    'loader = create_loader("...", "train", batch_size=32)': (
        'loader = create_loader("output/dataset", "train", batch_size=32)'
    ),
    'dataset = JASPERSteeringDataset("...", split="train")': (
        'dataset = JASPERSteeringDataset("output/dataset", split="train")'
    ),
    'loader = create_loader("...", "train", batch_size=2, num_workers=0)': (
        'loader = create_loader("output/dataset", "train", batch_size=2, num_workers=0)'
    ),
}
BLOCKS = {path.stem[3:]: path.read_text() for path in sorted(HERE.glob("*.txt"))}
RUN = [name for name in BLOCKS if "signature" not in name and name != "ddp"]  # ddp: by torchrun
GROUPS = {"create_loader", "set_epoch"}  # these use distributed=True

warned = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def runnable(name: str) -> str:
    lines = []
    for line in BLOCKS[name].splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(indent + CHANGED_LINES.get(line.strip(), line.strip()))
    return "\n".join(lines)


@pytest.fixture
def there(tmp_path, monkeypatch):
    """The directory the document speaks of, and what it assumes to be defined."""
    build_steering_directory(
        tmp_path / "output/dataset",
        pairs=160,
        embedding_dim=8,
        config={"curriculum": {"mode": "linear"}},
    )
    monkeypatch.chdir(tmp_path)
    return {
        "model": torch.nn.Linear(1, 1),
        "torch": torch,
        "np": np,
        "create_loader": create_loader,
        "validate_first_batch": validate_first_batch,
    }


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run(name, names):
    exec(compile(runnable(name), name, "exec"), names)
    return names


def end(names):
    """Let go of what the block left behind: no worker outlives its loader."""
    names.clear()
    gc.collect()


def test_the_blocks_are_the_documents_own():
    assert len(BLOCKS) == 17
    text = seed_document("004")
    assert text.count("```python\n") == 17
    assert all(f"```python\n{block}```" in text for block in BLOCKS.values())


def test_only_listed_lines_are_changed():
    for name in RUN:
        for before, after in zip(
            BLOCKS[name].splitlines(), runnable(name).splitlines(), strict=True
        ):
            assert before.rstrip() == after.rstrip() or before.strip() in CHANGED_LINES


@warned
@pytest.mark.parametrize("name", [n for n in RUN if n not in {"progressive", *GROUPS}])
def test_a_block_runs(name, there):
    names = run(name, dict(there))
    end(names)


@warned
@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_block_with_ranks_runs_in_a_process_group(name, there, group):
    names = run(name, dict(there))
    loader = names["loader"] if name == "set_epoch" else names["train_loader"]
    assert loader.sampler_obj.num_replicas == 1
    end(names)


@warned
def test_a_new_loader_with_another_batch_size_in_every_epoch(there, monkeypatch):
    """The whole schedule, with workers; here the batches are looked at, too."""
    seen = []

    def watched(*args, **kwargs):
        loader = create_loader(*args, **{**kwargs, "num_workers": 0})
        seen.append(loader)
        return loader

    source = runnable("progressive").replace("pass", "sizes[epoch] = len(batch['relevance'])")
    names = dict(there) | {"sizes": {}}
    monkeypatch.setattr("penstock.loaders.create_loader", watched)
    exec(compile(source, "progressive", "exec"), names)
    assert names["sizes"] == {e: 16 if e < 10 else 32 if e < 30 else 64 for e in range(100)}
    assert len(seen) == 100
    assert seen[-1].dataset_obj.current_epoch == 99


@warned
def test_the_schedule_with_workers_runs_as_written(there):
    source = runnable("progressive").replace("range(100)", "range(9, 11)")
    names = dict(there)
    exec(compile(source, "progressive", "exec"), names)
    end(names)


def signature(name):
    block = BLOCKS[name].strip()
    return ast.parse(block + ": ..." if not block.endswith(":") else block + " ...").body[0]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("create_loader_signature", create_loader),
        ("set_epoch_signature", set_epoch),
        ("validate_signature", validate_first_batch),
    ],
)
def test_signatures_are_the_documents(name, ours):
    wanted = signature(name).args
    parameters = inspect.signature(ours).parameters
    names = [argument.arg for argument in wanted.args]
    assert list(parameters)[: len(names)] == names
    defaults = [ast.literal_eval(d) for d in wanted.defaults]
    assert [parameters[n].default for n in names[len(names) - len(defaults) :]] == defaults


def test_the_documents_errors_say_what_it_says(there):
    directory = Path("output/dataset")
    (directory / "val_idx.pt").unlink()
    with pytest.raises(ValueError, match=r"Split file not found: val_idx\.pt"):
        create_loader("output/dataset", "val", batch_size=32)

    index = torch.load(directory / "pair_index.pt")
    sources = len(torch.load(directory / "source_embs.pt"))
    wrong = index.clone()
    wrong[9, 1] = 500
    torch.save(wrong, directory / "pair_index.pt")
    message = f"pair_index references source 500, but only {sources} sources exist"
    with pytest.raises(ValueError, match=message):
        create_loader("output/dataset", "train", batch_size=32)
    torch.save(index, directory / "pair_index.pt")

    questions = torch.load(directory / "question_embs.pt")
    torch.save(torch.full_like(questions, float("nan")), directory / "question_embs.pt")
    loader = create_loader("output/dataset", "train", batch_size=32)
    with pytest.raises(AssertionError, match="NaN detected in question_emb"):
        validate_first_batch(loader)
    assert json.loads((directory / "config.json").read_text())["n_pairs"] == 160
    assert isinstance(loader.dataset_obj, JASPERSteeringDataset)
