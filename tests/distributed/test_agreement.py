"""Ranks that are about to train on different data are stopped, all of them."""

import subprocess
import sys

import pytest
import torch

from penstock import ChunkedDataLoader, PlanError
from penstock.distributed import agree, topology_from_environment, topology_from_process_group

PROGRAM = """
import numpy as np
import torch, torch.distributed as dist
from penstock import ChunkedDataLoader
from penstock.distributed import agree, topology_from_environment, topology_from_process_group
dist.init_process_group("gloo")
for odd_seed in (42, 7):
    seed = odd_seed if dist.get_rank() == 1 else 42
    chunk_size = np.int64(2) if dist.get_rank() == 1 else 2  # the same, in numpy's words
    loader = ChunkedDataLoader(torch.arange(40), 5, chunk_size, seed=seed)
    assert topology_from_process_group().world == 2 == loader.sampler.num_replicas
    assert topology_from_environment() == topology_from_process_group()
    try:
        agree(loader)
        print(f"agreed {sum(len(batch) for _ in range(2) for batch in loader)}")
    except ValueError as error:
        print(f"refused: {error}")
dist.destroy_process_group()
"""


def torchrun(program):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    return subprocess.run(
        [*command, str(program)], capture_output=True, text=True, timeout=110, check=False
    )


def test_under_torchrun_ranks_agree_and_another_seed_on_one_is_refused_on_all(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = torchrun(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agreed 20") == 2
    assert done.stdout.count("refused:") == 2
    assert done.stdout.count("seed is 42 on rank 0 but 7 on rank 1") == 2


def test_ranks_whose_group_needs_a_device_agree_without_one_again_and_again(tmp_path):
    """As with nccl: training, validation and test loaders are compared, one after the other."""
    program = tmp_path / "program.py"
    program.write_text(
        PROGRAM.replace('"gloo"', '"cuda:gloo"').replace("(42, 7)", "(42, 42, 42, 7)")
    )
    done = torchrun(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("agreed 20") == 6
    assert done.stdout.count("seed is 42 on rank 0 but 7 on rank 1") == 2


SILENT = """
from datetime import timedelta
import torch, torch.distributed as dist
from penstock import ChunkedDataLoader
from penstock.distributed import agree
dist.init_process_group("gloo", timeout=timedelta(seconds=3))
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    try:
        agree(ChunkedDataLoader(torch.arange(40), 5, 2))
    except ValueError as error:
        print(f"refused: {error}", flush=True)
    store.set("said", "")
else:
    store.wait(["said"], timedelta(seconds=60))
"""


def test_a_rank_that_does_not_come_is_named(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SILENT)
    done = torchrun(program)
    assert done.returncode == 0, done.stderr
    assert "the same data: rank 1 did not answer in time" in done.stdout


def test_one_process_has_nobody_to_disagree_with():
    agree(ChunkedDataLoader(torch.arange(4), 2))


def test_what_torchrun_did_not_say_clearly_is_refused():
    assert topology_from_environment({}).world == 1
    with pytest.raises(PlanError, match="must both be numbers"):
        topology_from_environment({"RANK": "0"})
    with pytest.raises(PlanError, match="start the script with torchrun"):
        topology_from_process_group()
