"""Code written for another steering loader runs on Penstock, with only its imports changed.

Programs of our own make the same calls; the document's blocks run where the document is available.
"""

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
from torch.utils.data import DataLoader

from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    create_loader,
    set_epoch,
    validate_first_batch,
)
from tests.seeds import run_block, seed_blocks

DATA = "output/dataset"
CHANGES = {
    "RAG_supporters.pytorch_datasets.loader": "penstock",
    "RAG_supporters.pytorch_datasets": "penstock",
    "range(100)": "range(epochs)",
    '("..."': f'("{DATA}"',  # a path that the document leaves out
    '.to("cuda")': '.to("cpu")',
    "torch.cuda.reset_peak_memory_stats()": "pass",
    "torch.cuda.max_memory_allocated()": "sum(v.nbytes for v in batch.values())",
}
SIGNATURES = {0: create_loader, 2: set_epoch, 4: validate_first_batch}
IN_A_GROUP = {1: "train_loader", 3: "loader"}  # blocks with distributed=True, and its loader
DDP, SCHEDULE = 7, 9  # run by torchrun (tests/distributed), and below
ALONE = [n for n in range(17) if n not in {*SIGNATURES, *IN_A_GROUP, DDP, SCHEDULE}]

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def names(tmp_path, monkeypatch):
    """The directory that the programs read, and the names that they assume."""
    build_steering_directory(
        tmp_path / DATA, pairs=160, embedding_dim=8, config={"curriculum": {"mode": "linear"}}
    )
    monkeypatch.chdir(tmp_path)
    found = {
        "model": torch.nn.Linear(1, 1),
        "torch": torch,
        "np": np,
        "create_loader": create_loader,
        "validate_first_batch": validate_first_batch,
        "epochs": 2,
    }
    yield found
    found.clear()
    gc.collect()  # no worker outlives its loader


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# -- the document's blocks


@pytest.mark.parametrize("number", ALONE)
def test_a_block_runs(number, names):
    run_block(seed_blocks("004", CHANGES)[number], names)


@pytest.mark.parametrize("number", IN_A_GROUP)
def test_a_block_with_ranks_runs_in_a_process_group(number, names, group):
    run_block(seed_blocks("004", CHANGES)[number], names)
    assert names[IN_A_GROUP[number]].sampler_obj.num_replicas == 1


def test_the_block_that_changes_the_batch_size_runs(names, monkeypatch):
    def watched(*args, **kwargs):
        loaders.append(create_loader(*args, **kwargs | {"num_workers": 0}))
        return loaders[-1]

    loaders: list = []
    monkeypatch.setattr("penstock.create_loader", watched)
    source = seed_blocks("004", CHANGES)[SCHEDULE]
    names |= {"sizes": {}, "epochs": 100}
    run_block(source.replace("pass", "sizes[epoch] = len(batch['relevance'])"), names)
    assert names["sizes"] == {e: 16 if e < 10 else 32 if e < 30 else 64 for e in range(100)}
    assert len(loaders) == 100
    assert loaders[-1].dataset_obj.current_epoch == 99


@pytest.mark.parametrize("number", SIGNATURES)
def test_signatures_are_those_of_the_document(number):
    ours = SIGNATURES[number]
    wanted = ast.parse(f"{seed_blocks('004')[number].strip()}: ...").body[0].args
    parameters = inspect.signature(ours).parameters
    names = [argument.arg for argument in wanted.args]
    assert list(parameters)[: len(names)] == names
    defaults = [ast.literal_eval(d) for d in wanted.defaults]
    assert [parameters[n].default for n in names[len(names) - len(defaults) :]] == defaults


# -- the same calls, in programs of our own


def test_signatures_of_the_three_functions():
    expected = {"dataset_dir": ..., "split": ..., "batch_size": ..., "num_workers": 0}
    expected |= {"distributed": False, "epoch": 0, "drop_last": None, "pin_memory": True}
    found = list(inspect.signature(create_loader).parameters.values())[:8]
    empty = inspect.Parameter.empty
    assert {p.name: ... if p.default is empty else p.default for p in found} == expected
    assert list(inspect.signature(set_epoch).parameters) == ["loader", "epoch"]
    assert next(iter(inspect.signature(validate_first_batch).parameters)) == "loader"


def test_training_and_validation_with_workers(names):
    train = create_loader(dataset_dir=DATA, split="train", batch_size=16, num_workers=1)
    val = create_loader(DATA, "val", batch_size=8, num_workers=1)
    assert validate_first_batch(train) is True
    sizes = []
    for epoch in range(2):
        set_epoch(train, epoch)
        sizes.append(sum(len(batch["relevance"]) for batch in train))
        assert sum(len(batch["relevance"]) for batch in val) == len(val.dataset_obj)
        assert train.dataset_obj.current_epoch == epoch
    assert sizes == [len(train) * 16] * 2
    train.close()
    val.close()


def test_a_distributed_loader_has_a_sampler_and_follows_the_epoch(names, group):
    loader = create_loader(DATA, "train", batch_size=32, distributed=True)
    for epoch in range(2):
        set_epoch(loader, epoch)
        assert len(list(loader)) == len(loader)
    assert loader.sampler_obj.num_replicas == 1
    assert create_loader(DATA, "train", batch_size=32).sampler_obj is None


def test_a_new_loader_in_every_epoch_continues_the_curriculum(names):
    sizes = {}
    for epoch, batch_size in [(0, 16), (9, 16), (10, 32), (30, 64)]:
        loader = create_loader(DATA, "train", batch_size=batch_size)
        set_epoch(loader, epoch)
        sizes[epoch] = {len(batch["relevance"]) for batch in loader}
        assert loader.dataset_obj.current_epoch == epoch
    assert sizes == {0: {16}, 9: {16}, 10: {32}, 30: {64}}


def test_a_forced_variant_in_a_loader_of_torch(names):
    dataset = JASPERSteeringDataset(DATA, split="val")
    dataset.force_steering("centroid")
    batches = list(DataLoader(dataset, batch_size=8))
    assert {v for batch in batches for v in batch["steering_variant"].tolist()} == {1}


def test_a_batch_and_a_sample_are_plain_tensors(names):
    batch = next(iter(create_loader(DATA, "train", batch_size=2, num_workers=0)))
    assert batch["question_emb"].shape == batch["steering"].shape == (2, 8)
    assert batch["negative_embs"].shape == (2, 4, 8)
    sample = JASPERSteeringDataset(DATA, split="train")[0]
    assert sample.keys() == batch.keys()
    assert all(torch.is_tensor(value) for value in sample.values())


def test_errors_say_what_the_document_promises(names):
    directory = Path(DATA)
    (directory / "val_idx.pt").unlink()
    with pytest.raises(ValueError, match=r"Split file not found: val_idx\.pt"):
        create_loader(DATA, "val", batch_size=32)

    index = torch.load(directory / "pair_index.pt")
    sources = len(torch.load(directory / "source_embs.pt"))
    wrong = index.clone()
    wrong[9, 1] = 500
    torch.save(wrong, directory / "pair_index.pt")
    message = f"pair_index references source 500, but only {sources} sources exist"
    with pytest.raises(ValueError, match=message):
        create_loader(DATA, "train", batch_size=32)
    torch.save(index, directory / "pair_index.pt")

    questions = torch.load(directory / "question_embs.pt")
    torch.save(torch.full_like(questions, float("nan")), directory / "question_embs.pt")
    loader = create_loader(DATA, "train", batch_size=32)
    with pytest.raises(AssertionError, match="NaN detected in question_emb"):
        validate_first_batch(loader)
    assert json.loads((directory / "config.json").read_text())["n_pairs"] == 160
    assert isinstance(loader.dataset_obj, JASPERSteeringDataset)
