"""A block that cannot be read: an error, or the rows of another block, the same on every run."""

import json
import logging
import os
import pickle

import numpy as np
import pytest
import torch
import zarr

from penstock.atomic_files import read_entries
from penstock.errors import PlanError, SourceError
from penstock.loaders.stream import StreamLoader
from penstock.testing import WatchedSource

ROWS, BLOCK, BATCH = 200, 10, 10
BAD = range(70, 80)
DATA = np.arange(ROWS * 3, dtype="f4").reshape(ROWS, 3)


@pytest.fixture(params=["zstd", "raw"])
def store(request, tmp_path):
    """A Zarr array on disk, whose chunk of the rows `BAD` is damaged."""
    compressors = zarr.codecs.ZstdCodec() if request.param == "zstd" else ()
    path = tmp_path / "rows.zarr"
    array = zarr.create_array(
        path, shape=DATA.shape, dtype="f4", chunks=(BLOCK, 3), compressors=compressors
    )
    array[...] = DATA
    os.truncate(path / "c/7/0", 5)
    return path


def stream(store, **options):
    options = {"window_blocks": 4, "seed": 5, "drop_last": False, "lanes": 2} | options
    return StreamLoader(store, BATCH, **{"on_error": "replace", **options})


def epochs(loader, count=2):
    with loader:
        return [[batch.clone() for batch in loader] for _ in range(count)]


def rows_of(batches):
    """The numbers of the rows, whole ones only: no row is torn or made of two."""
    rows = torch.cat(batches)
    assert torch.equal(rows, torch.from_numpy(DATA)[rows[:, 0].long() // 3])
    return (rows[:, 0].long() // 3).tolist()


def test_the_default_raises_what_the_source_raises(store):
    for options in ({}, {"on_error": "raise"}):
        with StreamLoader(store, BATCH, **options) as loader, pytest.raises(SourceError, match="c"):
            list(loader)


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_another_block_take_the_place_of_a_bad_one(store, shuffle):
    lanes = {} if shuffle else {"lanes": None}
    loader = stream(store, shuffle=shuffle, **lanes)
    planned = [loader.samples_at(step, 0) for step in range(len(loader))]
    first, second = epochs(loader)
    assert [len(batch) for batch in first] == [BATCH] * (ROWS // BATCH) == [len(b) for b in second]
    found, wanted = rows_of(first), np.concatenate(planned).tolist()
    swapped = {want: got for want, got in zip(wanted, found, strict=True) if want != got}
    assert sorted(swapped) == list(BAD)  # every other row is where it was planned
    others = [swapped[row] for row in BAD]
    assert others == list(range(others[0], others[0] + BLOCK)) and others[0] % BLOCK == 0
    assert not {*others} & {*BAD}


def test_the_replacement_depends_on_the_epoch_and_the_seed_alone(store):
    once, again = epochs(stream(store), 3), epochs(stream(store, threads=1), 3)
    assert all(
        torch.equal(a, b)
        for x, y in zip(once, again, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    chosen = {
        tuple(sorted(r for r in set(rows) if rows.count(r) > 1)) for rows in map(rows_of, once)
    }
    assert len(chosen) > 1  # not the same block in every epoch


def test_two_ranks_read_what_one_reads_in_as_many_steps(store):
    def joined(world):
        ranks = [
            epochs(stream(store, rank=rank, world_size=world, window_blocks=4), 1)[0]
            for rank in range(world)
        ]
        assert len({len(batches) for batches in ranks}) == 1
        assert {len(batch) for batches in ranks for batch in batches} == {BATCH}
        return sorted(row for batches in ranks for row in rows_of(batches))

    assert joined(1) == joined(2)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("stop", [1, 7, 13])
def test_a_run_that_is_resumed_equals_one_that_is_not(store, stop, steps):
    whole = [batch for batches in epochs(stream(store, steps=steps)) for batch in batches]
    seen, loader = [], stream(store, steps=steps)
    with loader:
        for batch in loader:
            seen.append(batch.clone())
            if len(seen) == stop:
                break
        state = json.loads(json.dumps(loader.state_dict()))
    after = stream(store, steps=steps)
    after.load_state_dict(state)
    seen += [batch for batches in epochs(after) for batch in batches]
    assert len(seen) == len(whole)
    assert all(torch.equal(a, b) for a, b in zip(seen, whole, strict=True))


def test_windows_of_rows_that_touch_a_bad_block_are_windows_of_another(store):
    (batches,) = epochs(stream(store, steps=3), 1)
    windows = torch.cat(batches)
    assert windows.shape == (ROWS - 2, 3, 3)
    assert (windows[:, 1:, 0] - windows[:, :-1, 0] == 3).all()  # consecutive rows
    assert not {*(windows[..., 0].long() // 3).flatten().tolist()} & {*BAD}


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_bad_block_is_logged_once_and_listed_once(store, tmp_path, caplog, lanes):
    """Also where it is read in parts: the last blocks of an epoch are shared by all lanes."""
    listed = tmp_path / "bad.jsonl"
    with caplog.at_level(logging.WARNING, "penstock"):
        epochs(stream(store, quarantine=listed, lanes=lanes), 12)
    said = [r.getMessage() for r in caplog.records if "replaced" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith(
        "samples 70:80 are replaced by those of other blocks: "
    )
    assert "c/7/0" in said[0]
    (entry,) = read_entries(listed)
    assert entry.keys() == {"sample", "stop", "replaced_by", "epoch", "error"}
    assert (entry["sample"], entry["stop"], entry["epoch"]) == (70, 80, 0)
    assert entry["error"].startswith("SourceError: ") and "c/7/0" in entry["error"]
    epochs(stream(store, quarantine=str(listed), lanes=lanes), 1)  # another run, or a resumed one
    assert len(read_entries(listed)) == 1


def test_a_list_that_is_none_is_refused_and_kept(store, tmp_path):
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(SourceError, match="use another quarantine="):
        epochs(stream(store, quarantine=tmp_path / "notes.txt"))
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"
    epochs(stream(store, quarantine=tmp_path / "other.jsonl"), 1)
    assert len(read_entries(tmp_path / "other.jsonl")) == 1


def test_storage_of_which_nothing_can_be_read_is_an_error():
    def gone(start, stop):
        raise SourceError("the store is gone")

    with stream(WatchedSource(DATA, gone), block_samples=BLOCK) as loader:
        with pytest.raises(SourceError, match=r"nor 3 other blocks.*the store is gone"):
            next(iter(loader))


def test_the_only_block_has_no_other(tmp_path):
    def bad(start, stop):
        raise SourceError("damaged")

    source = WatchedSource(DATA, bad)
    with stream(source, block_samples=ROWS, window_blocks=1, lanes=1) as loader:
        with pytest.raises(
            SourceError, match="cannot read samples 0:200, and there is no other block"
        ):
            next(iter(loader))


def test_errors_of_other_kinds_are_never_replaced():
    def bug(start, stop):
        raise ZeroDivisionError("a bug")

    with stream(WatchedSource(DATA, bug), block_samples=BLOCK) as loader:
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))


def test_a_copy_replaces_too(store):
    loader = stream(store)
    copied = pickle.loads(pickle.dumps(loader))
    for a, b in zip(epochs(loader, 1)[0], epochs(copied, 1)[0], strict=True):
        assert torch.equal(a, b)


def test_a_list_without_replacing_is_refused_and_the_advice_works(store, tmp_path):
    with pytest.raises(PlanError, match='pass on_error="replace" with it'):
        StreamLoader(store, BATCH, quarantine=tmp_path / "bad.jsonl")
    StreamLoader(store, BATCH, on_error="replace", quarantine=tmp_path / "bad.jsonl").close()
    with pytest.raises(PlanError, match="on_error must be one of 'raise', 'replace', got 'skip'"):
        StreamLoader(store, BATCH, on_error="skip")
