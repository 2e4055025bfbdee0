"""Recordings of the fly visual system, in all their layouts."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

from penstock.domains.recording import (
    TYPE_NAMES,
    DataSplit,
    FlyVisSim,
    NeuronData,
    RecordingSource,
    create_zarr_loader,
    layout,
    load_column_slice,
    load_metadata,
    source,
    write_recording,
)
from penstock.errors import ConfigError, PlanError, SourceError
from penstock.testing.source_contract import SourceContract

T, N, CHUNK = 130, 12, 40
RNG = np.random.default_rng(0)
WHOLE = RNG.standard_normal((T, N, 9)).astype("f4")
WHOLE[:, :, 0] = np.arange(N)
WHOLE[:, :, 5] = 3
WHOLE[:, :, 6] = np.arange(N) % 4
for _static in (1, 2):
    WHOLE[:, :, _static] = WHOLE[0, :, _static]
DYNAMIC = ["VOLTAGE", "STIMULUS", "CALCIUM", "FLUORESCENCE"]
METADATA = WHOLE[0][:, [0, 1, 2, 5, 6]]


@pytest.fixture(params=["zarr_v2", "zarr_v1", "npy"])
def path(request, tmp_path):
    return stored(tmp_path / "x_list_0", request.param)


def stored(path, kind):
    if kind == "zarr_v2":
        columns = {name: WHOLE[:, :, FlyVisSim[name]] for name in DYNAMIC}
        write_recording(path, columns, metadata=METADATA, chunk_timesteps=CHUNK)
    elif kind == "zarr_v1":
        array = zarr.create_array(
            f"{path}.zarr", shape=WHOLE.shape, chunks=(50, N, 9), dtype="f4", zarr_format=2
        )
        array[...] = WHOLE
    else:
        np.save(f"{path}.npy", WHOLE)
    return path


class TestRecording(SourceContract):
    @pytest.fixture(autouse=True)
    def _recording(self, path):
        self.path = path

    def make_source(self):
        return RecordingSource(self.path, neurons={"STIMULUS": 5})

    def expected(self):
        whole = {name: np.ascontiguousarray(WHOLE[:, :, FlyVisSim[name]]) for name in DYNAMIC}
        return {**whole, "STIMULUS": np.ascontiguousarray(whole["STIMULUS"][:, :5])}


def test_columns_are_chosen_by_name_number_or_member(path):
    for chosen in ("CALCIUM", 7, FlyVisSim.CALCIUM):
        assert list(RecordingSource(path, columns=[chosen]).fields) == ["CALCIUM"]
    with pytest.raises(PlanError, match="did you mean 'VOLTAGE'"):
        RecordingSource(path, columns=["VOLTGE"])
    with pytest.raises(PlanError, match="0 to 8"):
        RecordingSource(path, columns=[9])


def test_the_newest_layout_is_written_as_the_original_does(tmp_path):
    stored(tmp_path / "r", "zarr_v2")
    series = json.loads((tmp_path / "r/timeseries.zarr/.zarray").read_text())
    blosc = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}
    compressor = series.pop("compressor")
    assert {k: compressor[k] for k in blosc} == blosc
    assert series == {
        "shape": [T, N, 4],
        "chunks": [CHUNK, N, 1],
        "dtype": "<f4",
        "fill_value": None,
        "order": "C",
        "filters": None,
        "dimension_separator": ".",
        "zarr_format": 2,
    }
    static = json.loads((tmp_path / "r/metadata.zarr/.zarray").read_text())
    assert (static["shape"], static["chunks"]) == ([N, 5], [N, 5])
    assert (tmp_path / "r/timeseries.zarr/3.0.2").exists()


def test_layouts_are_found_in_order_and_suffixes_are_stripped(tmp_path):
    path = tmp_path / "x_list_0"
    for kind in ("npy", "zarr_v1", "zarr_v2"):
        stored(path, kind)
        for given in (path, f"{path}.npy", f"{path}.zarr"):
            assert RecordingSource(given).layout == kind
    with pytest.raises(SourceError, match=r"timeseries\.zarr"):
        RecordingSource(tmp_path / "nothing")


def test_column_slices(path):
    for column in DYNAMIC:
        found = load_column_slice(path, FlyVisSim[column].value, 33, 97)
        assert found.dtype == np.float32 and found.flags.c_contiguous
        assert np.array_equal(found, WHOLE[33:97, :, FlyVisSim[column]])


def test_a_neuron_limit_of_zero_means_no_neurons(path):
    assert load_column_slice(path, 3, 0, 10, neuron_limit=0).shape == (10, 0)
    assert load_column_slice(path, 3, 0, 10, neuron_limit=7).shape == (10, 7)
    assert load_column_slice(path, 3, 0, 10).shape == (10, N)
    for limit in (-1, N + 1):
        with pytest.raises(ValueError, match="neuron_limit"):
            load_column_slice(path, 3, 0, 10, neuron_limit=limit)


def test_static_columns_have_no_timesteps(path):
    for column in (0, 1, 2, 5, 6):
        with pytest.raises(AssertionError, match="load_metadata"):
            load_column_slice(path, column, 0, 10)


def test_static_columns_are_refused_without_assertions_too(tmp_path):
    """``python -O`` removes assert statements; the refusal must not be one."""
    stored(tmp_path / "r", "npy")
    optimized = {}
    for module in (layout, source):
        names = {"__name__": module.__name__}
        exec(compile(Path(module.__file__).read_text(), module.__file__, "exec", optimize=1), names)
        optimized[module] = names
    optimized[source]["dynamic_column"] = optimized[layout]["dynamic_column"]
    with pytest.raises(AssertionError, match="load_metadata"):
        optimized[source]["load_column_slice"](tmp_path / "r", 0, 0, 10)


def test_reading_past_the_end_is_a_value_error(path):
    with pytest.raises(ValueError, match=str(T)):
        load_column_slice(path, 3, 0, T + 1)


def test_metadata(path):
    found = load_metadata(path)
    assert found.dtype == np.float32
    assert np.array_equal(found, METADATA)


def test_neuron_data():
    neurons = NeuronData.from_metadata(METADATA)
    assert neurons.ix.dtype == np.int32 and neurons.ix.tolist() == list(range(N))
    assert neurons.pos.shape == (N, 2) and neurons.group_type.dtype == np.uint8
    assert neurons.type.dtype == np.uint8
    assert [i.tolist() for i in neurons.indices_per_type] == [[k, k + 4, k + 8] for k in range(4)]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [(4, 9, "exactly 0 to"), (4, 0.5, "TYPE"), (4, 300, "TYPE"), (0, np.nan, "INDEX")],
)
def test_metadata_that_cannot_be_is_refused(column, value, says):
    bad = METADATA.copy()
    bad[3, column] = value
    with pytest.raises(SourceError, match=says):
        NeuronData.from_metadata(bad)


def test_there_are_65_types_in_order():
    assert len(TYPE_NAMES) == len(set(TYPE_NAMES)) == 65
    assert (TYPE_NAMES[0], TYPE_NAMES[-1]) == ("Am", "TmY9")
    assert list(TYPE_NAMES) == sorted(TYPE_NAMES)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_loader_reads_both_columns(path, threads):
    load = create_zarr_loader(path, 3, 4, 5, threads=threads)
    data, stim = load(17, 101)
    assert np.array_equal(data, WHOLE[17:101, :, 3])
    assert np.array_equal(stim, WHOLE[17:101, :5, 4])
    assert load.total_timesteps == T


def test_the_loader_fills_given_buffers(path):
    load = create_zarr_loader(path, 3, 4, 5)
    out = tuple(np.full((90, *field.shape), 7, field.dtype) for field in load.fields)
    data, stim = load(17, 101, out=out)
    assert np.shares_memory(data, out[0]) and np.shares_memory(stim, out[1])
    assert np.array_equal(data, WHOLE[17:101, :, 3])
    assert (out[0][84:] == 7).all() and (out[1][84:] == 7).all()
    with pytest.raises(PlanError, match="2 buffers"):
        load(0, 5, out=out[:1])
    with pytest.raises(PlanError, match="needs"):
        load(0, 91, out=out)


def test_the_loader_is_picklable_and_thread_safe(path):
    load = pickle.loads(pickle.dumps(create_zarr_loader(path, 3, 4, 5)))
    starts = [int(s) for s in RNG.integers(0, T - 30, 50)]
    with ThreadPoolExecutor(4) as pool:
        for start, (data, _) in zip(
            starts, pool.map(lambda s: load(s, s + 30), starts), strict=True
        ):
            assert np.array_equal(data, WHOLE[start : start + 30, :, 3])


def test_memory_of_chunks_that_are_gone_is_used_again_and_never_pickled(path):
    load = create_zarr_loader(path, 3, 4, 5)
    small = len(pickle.dumps(load))
    kept, where = None, set()
    for start in range(0, 100, 10):
        chunk = load(start, start + 10)
        if kept is not None:  # one is in use while the next is read
            assert np.array_equal(kept[0], WHOLE[start - 10 : start, :, 3])
        kept = chunk
        where.add(chunk[0].ctypes.data)
        del chunk
    assert len(where) <= 3 and len(pickle.dumps(load)) == small


def test_the_loader_opens_the_store_once(tmp_path, monkeypatch):
    load = create_zarr_loader(stored(tmp_path / "r", "zarr_v2"), 3, 4, 5)
    (tmp_path / "r/timeseries.zarr/.zarray").unlink()
    assert load(0, 10)[0].shape == (10, N)


@pytest.mark.parametrize(
    "split",
    [(-1, 5, 6, 7), (5, 5, 6, 7), (0, 5, 7, 7), (0, 5, 4, 7), (4, 9, 0, 5), (0.0, 5, 6, 7)],
)
def test_splits_that_cannot_be_are_refused(split):
    with pytest.raises(ConfigError):
        DataSplit(*split)


def test_splits():
    split = DataSplit(train_start=0, train_end=100, validation_start=100, validation_end=130)
    assert split.within(T) is split
    assert (split.train_timesteps, split.validation_timesteps) == (100, 30)
    with pytest.raises(ConfigError, match="129"):
        split.within(129)
    with pytest.raises(TypeError):
        DataSplit(0, 1, 2, 3, test_start=5)
