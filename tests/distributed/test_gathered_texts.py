"""Texts of all ranks: those that do not answer are left out, after one limit for all of them."""

from time import monotonic

import pytest
from torch.distributed import HashStore

from penstock import ranks
from penstock.order import Topology


@pytest.mark.parametrize("absent", [{1}, {0, 2, 3}, {*range(1, 40)}])
def test_absent_ranks_are_waited_for_together(monkeypatch, absent):
    store, world = HashStore(), 40
    here = min({*range(world)} - absent)
    monkeypatch.setattr(ranks, "GATHER_SECONDS", 0.2)
    monkeypatch.setattr(ranks, "current_topology", lambda *_: Topology(here, world))
    monkeypatch.setattr(ranks, "shared_store", lambda prefix: store)
    present = [rank for rank in range(world) if rank not in absent]
    for rank in present:
        store.set(f"1/{rank}", f"of {rank}")
    begin = monotonic()
    assert ranks.gathered_texts(f"of {here}") == [f"of {rank}" for rank in present]
    assert monotonic() - begin < 5  # with a limit for each rank, 8 s for 39


def test_one_process_has_its_own_text():
    assert ranks.gathered_texts("mine") == ["mine"]
