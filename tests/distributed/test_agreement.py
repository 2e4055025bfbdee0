"""Ranks that are about to train on different data are stopped, all of them."""

import subprocess
import sys

import pytest
import torch

from penstock import ChunkedDataLoader, PlanError
from penstock.distributed import agree, topology_from_environment, topology_from_process_group

PROGRAM = """
import sys, torch, torch.distributed as dist
from penstock import ChunkedDataLoader
from penstock.distributed import agree, topology_from_process_group
dist.init_process_group("gloo")
seed = 7 if dist.get_rank() == int(sys.argv[1]) else 42
loader = ChunkedDataLoader(torch.arange(40), 5, 2, seed=seed)
assert topology_from_process_group().world == 2 == loader.sampler.num_replicas
try:
    agree(loader)
    print("agreed", sum(len(batch) for _ in range(2) for batch in loader))
except ValueError as error:
    print("refused:", error)
dist.destroy_process_group()
"""


def on_two_ranks(tmp_path, odd):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(program), str(odd)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ranks_with_the_same_plan_agree_and_share_the_data(tmp_path):
    assert on_two_ranks(tmp_path, odd=9).count("agreed 20") == 2


def test_another_seed_on_one_rank_is_refused_on_all(tmp_path):
    said = on_two_ranks(tmp_path, odd=1)
    assert said.count("refused:") == 2
    assert said.count("seed is 42 on rank 0 but 7 on rank 1") == 2


def test_one_process_has_nobody_to_disagree_with():
    agree(ChunkedDataLoader(torch.arange(4), 2))


def test_what_torchrun_did_not_say_clearly_is_refused():
    assert topology_from_environment({}).world == 1
    with pytest.raises(PlanError, match="must both be numbers"):
        topology_from_environment({"RANK": "0"})
    with pytest.raises(PlanError, match="start the script with torchrun"):
        topology_from_process_group()
