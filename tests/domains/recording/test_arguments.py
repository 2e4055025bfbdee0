"""Every function of the recording domain checks its arguments."""

import numpy as np
import pytest

from penstock.domains.recording import (
    DataSplit,
    NeuronData,
    RecordingSource,
    create_zarr_loader,
    load_column_slice,
    load_metadata,
    write_recording,
)
from penstock.errors import PenstockError

WRONG_PATHS = [3, 1.5, True, None, b"bytes", "", "a\0b", object(), ["x"]]
WRONG_COUNTS = [-1, 1.5, True, "3", None, 2**70, float("nan")]
WRONG_COLUMNS = ["x", [], [1.5], [None], {"x": 1}, 3, True]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    write_recording(folder / "r", {"VOLTAGE": np.zeros((10, 3))})
    return folder


def calls(folder):
    """The name of each function, and a call of it with one wrong value."""
    recording, new = folder / "r", folder / "new"
    for wrong in WRONG_PATHS:
        yield "RecordingSource", lambda w=wrong: RecordingSource(w)
        yield "load_metadata", lambda w=wrong: load_metadata(w)
        yield "load_column_slice", lambda w=wrong: load_column_slice(w, 3, 0, 1)
        yield "create_zarr_loader", lambda w=wrong: create_zarr_loader(w, 3, 4, 2)
        yield "NeuronData", lambda w=wrong: NeuronData.from_metadata(w)
        yield "write_recording", lambda w=wrong: write_recording(w, {"VOLTAGE": [[1.0]]})
    for wrong in WRONG_COLUMNS:  # a column may be given by number
        yield "RecordingSource", lambda w=wrong: RecordingSource(recording, columns=w)
    for wrong in WRONG_COUNTS:
        if wrong is not None:
            yield "create_zarr_loader", lambda w=wrong: create_zarr_loader(recording, 3, 4, w)
            limits = {"VOLTAGE": wrong}
            yield "RecordingSource", lambda n=limits: RecordingSource(recording, neurons=n)
            yield "load_column_slice", lambda w=wrong: load_column_slice(recording, 3, 0, 5, w)
        yield "load_column_slice", lambda w=wrong: load_column_slice(recording, w, 0, 5)
        yield "load_column_slice", lambda w=wrong: load_column_slice(recording, 3, w, 5)
        yield "load_column_slice", lambda w=wrong: load_column_slice(recording, 3, 0, w)
        yield "create_zarr_loader", lambda w=wrong: create_zarr_loader(recording, w, 4, 2)
        yield "create_zarr_loader", lambda w=wrong: create_zarr_loader(recording, 3, w, 2)
        yield "DataSplit", lambda w=wrong: DataSplit(w, 5, 6, 7)
        columns = {"VOLTAGE": [[1.0]]}
        yield (
            "write_recording",
            lambda w=wrong, c=columns: write_recording(new, c, chunk_timesteps=w),
        )
    for wrong in ({}, None, {"X": [[1.0]]}, {"VOLTAGE": [1.0]}, {"VOLTAGE": "text"}, 3):
        yield "write_recording", lambda w=wrong: write_recording(new, w)


def test_a_wrong_argument_is_refused_with_one_line(folder):
    for number, (name, call) in enumerate(calls(folder)):
        with pytest.raises(PenstockError) as caught:
            call()
            pytest.fail(f"call {number}, of {name}, was accepted")
        assert "\n" not in str(caught.value), (number, name, caught.value)
