"""Mixtures with members of rows of different lengths, from storage: they end, and resume."""

import json
import threading

import numpy as np
import pytest

from penstock import Mixture, StreamLoader, open_source

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SIZES = {"a": 90, "b": 40}
SECONDS = 60


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")
    for number, (name, size) in enumerate(SIZES.items()):
        rows = [[1000 * number + i] * (1 + i % 5) for i in range(size)]
        parquet.write_table(pa.table({"x": rows}), folder / f"{name}.parquet", row_group_size=8)
    return {name: str(folder / f"{name}.parquet") for name in SIZES}


def within_deadline(function):
    """What a function returns; it must end in time."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"still running after {SECONDS} s"
    return found[0]


def make(members, **options):
    data = Mixture({n: open_source(p) for n, p in members.items()}, weights=[2, 1], until=90)
    data.then(45, [1, 1])
    geometry = {"block_samples": 8, "window_blocks": 2, "lanes": 2, "drop_last": False}
    return StreamLoader(data, 6, chunk_size=4, **geometry, **options)


def rows_of(batch):
    ragged = batch["x"] if isinstance(batch, dict) else batch
    return [row.tolist() for row in ragged]


def deliver(members, state=None, steps=None, **options):
    def run():
        found = []
        with make(members, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            while len(found) != steps and loader.state_dict()["epoch"] < 2:
                for batch in loader:
                    found.append(rows_of(batch))
                    if len(found) == steps:
                        break
            return found, json.loads(json.dumps(loader.state_dict()))

    return within_deadline(run)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_the_one_that_the_order_names(members, shuffle):
    got, _ = deliver(members, shuffle=shuffle)
    numbers = np.array([row[0] for batch in got for row in batch])
    assert len(numbers) == 180
    for row in (row for batch in got for row in batch):
        assert row == [row[0]] * (1 + row[0] % 1000 % 5)
    with make(members, shuffle=shuffle) as loader:
        order = np.concatenate(
            [loader.samples_at(step, epoch) for epoch in (0, 1) for step in range(15)]
        )
    assert np.array_equal(numbers, np.where(order < 90, order, order - 90 + 1000))
    shares = [np.mean(numbers[:42] < 1000), np.mean(numbers[54:] < 1000)]
    assert abs(shares[0] - 2 / 3) < 0.1 and abs(shares[1] - 1 / 2) < 0.05


@pytest.mark.parametrize("cut", [1, 4, 5, 15, 16, 29])
def test_a_resume_delivers_exactly_the_rest(members, cut):
    whole, last = deliver(members)
    first, state = deliver(members, steps=cut)
    rest, end = deliver(members, state)
    assert first + rest == whole and end == last


def test_ragged_members_are_also_read_by_ranks(members):
    whole, _ = deliver(members)
    parts = [deliver(members, rank=rank, world_size=2)[0] for rank in range(2)]
    got = sorted(row for part in parts for batch in part for row in batch)
    assert got == sorted(row for batch in whole for row in batch)
