"""Ranks that are about to train on different data are stopped, all of them."""

import pytest
import torch

from penstock import ChunkedDataLoader, PlanError
from penstock.distributed import agree, topology_from_environment, topology_from_process_group

PROGRAM = """
import os, socket
from datetime import timedelta
import numpy as np
import torch, torch.distributed as dist
from penstock import ChunkedDataLoader
from penstock.distributed import agree, topology_from_environment, topology_from_process_group

def compare(part, seeds):
    for odd_seed in seeds:
        seed = odd_seed if dist.get_rank() == 1 else 42
        chunk_size = np.int64(2) if dist.get_rank() == 1 else 2  # the same, in another type
        loader = ChunkedDataLoader(torch.arange(40), 5, chunk_size, seed=seed)
        assert topology_from_process_group().world == 2 == loader.sampler.num_replicas
        assert topology_from_environment() == topology_from_process_group()
        try:
            agree(loader)
            print(f"{part}: agreed {sum(len(batch) for _ in range(2) for batch in loader)}")
        except ValueError as error:
            print(f"{part}: refused: {error}")

def without_rank_1():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set_timeout(timedelta(seconds=1))
        try:
            agree(ChunkedDataLoader(torch.arange(40), 5, 2))
        except ValueError as error:
            print(f"absent: refused: {error}", flush=True)
        store.set("said", "")
    else:
        store.wait(["said"], timedelta(seconds=60))

def use_another_port():
    # a rank that begins again may meet the store that rank 0 has not closed yet
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            store.set("port", str(free.getsockname()[1]))
    os.environ["MASTER_PORT"] = store.get("port").decode()
    dist.barrier()

dist.init_process_group("gloo")
compare("gloo", (42, 7))
use_another_port()
dist.destroy_process_group()
dist.init_process_group("cuda:gloo")  # needs a device, as nccl does
compare("cuda", (42, 42, 42, 7))
without_rank_1()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def printed(commands, tmp_path_factory):
    """What two ranks print."""
    folder = tmp_path_factory.mktemp("agreement")
    (folder / "program.py").write_text(PROGRAM)
    done = commands.ranks(2, folder, folder / "program.py")
    assert done.code == 0, done.err
    return done.out + (folder / ".out.1").read_text()


def test_ranks_agree_and_another_seed_on_one_is_refused_on_all(printed):
    assert printed.count("gloo: agreed 20") == 2
    assert printed.count("gloo: refused:") == 2
    pattern = "gloo: refused: the ranks would not train on the same data: seed is 42 on rank"
    assert printed.count(f"{pattern} 0 but 7 on rank 1") == 2


def test_ranks_whose_group_needs_a_device_agree_without_one_again_and_again(printed):
    """As with nccl: training, validation and test loaders are compared, one after the other."""
    assert printed.count("cuda: agreed 20") == 6
    assert printed.count("cuda: refused:") == 2
    assert printed.count("seed is 42 on rank 0 but 7 on rank 1") == 4


def test_a_rank_that_does_not_come_is_named(printed):
    assert "absent: refused: the ranks would not train" in printed
    assert "the same data: rank 1 did not answer in time" in printed


def test_one_process_has_nobody_to_disagree_with():
    agree(ChunkedDataLoader(torch.arange(4), 2))


def test_what_torchrun_did_not_say_clearly_is_refused():
    assert topology_from_environment({}).world == 1
    with pytest.raises(PlanError, match="must both be numbers"):
        topology_from_environment({"RANK": "0"})
    with pytest.raises(PlanError, match="start the script with torchrun"):
        topology_from_process_group()
