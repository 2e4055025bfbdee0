"""What an array means: packed values, dimension names, arrays of subgroups, scalars."""

import json
import logging
import math
import pickle
import re

import numpy as np
import pytest
import torch
import zarr

from penstock import StreamLoader
from penstock.errors import PlanError, SourceError
from penstock.sources import ZarrSource, cf, open_source

STORED = np.full((40, 4), -32767, "i2")
NAN = "AAAAAAAA+H8="  # as xarray writes it in version 3


def written(path, version=3, dtype="i2", attributes=None, **options):
    array = zarr.create_array(
        path, data=STORED.astype(dtype), chunks=(10, 4), zarr_format=version, **options
    )
    array.attrs.update(attributes or {})
    return path


# -- packed data

MARKED = [  # attributes, and the data that they make of -32767
    ("i2", {"scale_factor": 0.01}, np.float32(-32767 * 0.01)),
    ("i2", {"add_offset": 280.0}, np.float32(280 - 32767)),
    ("i2", {"scale_factor": 2}, np.int64(-2 * 32767)),
    ("i2", {"_FillValue": -32767}, np.float32("nan")),
    ("i2", {"missing_value": [-1, -32767]}, np.float32("nan")),
    ("i2", {"_FillValue": 0}, np.float32(-32767)),
    ("i2", {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}, np.float32("nan")),
    ("i2", {"_FillValue": "NaN"}, np.int16(-32767)),
    ("i2", {"_Unsigned": "true"}, np.uint16(32769)),
    ("i2", {"_Unsigned": "true", "_FillValue": -32767}, np.float32("nan")),
    ("i4", {"_FillValue": -32767}, np.float64("nan")),
    ("f4", {"_FillValue": -32767.0}, np.float32("nan")),
    ("f4", {"missing_value": [1e20]}, np.float32(-32767)),
    ("f4", {"scale_factor": 2.0, "_FillValue": math.nan}, np.float32(-2 * 32767)),
    ("i2", {"units": "K", "valid_min": 0}, np.int16(-32767)),
    ("f4", {"_FillValue": math.nan}, np.float32(-32767)),
    ("f4", {"_FillValue": "NaN"}, np.float32(-32767)),
    ("f8", {"_FillValue": NAN, "missing_value": math.nan}, np.float64(-32767)),
]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("dtype", "attributes", "expected"), MARKED)
def test_packed_arrays_are_decoded(tmp_path, direct, dtype, attributes, expected):
    path = written(tmp_path / "a", 3, dtype, attributes)
    source = open_source(path, direct=direct)
    assert source.fields[""].dtype == expected.dtype
    for samples in ([3], [0, 11, 39]):
        out = {"": np.zeros((len(samples), 4), expected.dtype)}
        source.take(np.array(samples), out)
        assert np.array_equal(out[""], np.full_like(out[""], expected), equal_nan=True)
    with StreamLoader(open_source(path, decode=False, direct=direct), 10) as loader:
        assert (torch.cat(list(loader)) == torch.from_numpy(STORED.astype(dtype))).all()


WRONG = [
    ({"scale_factor": "0.01"}, "scale_factor='0.01', which is not one number"),
    ({"add_offset": [1, 2]}, "not one number"),
    ({"_FillValue": "none"}, "not a number"),
    ({"units": "hours since 1900-01-01"}, "holds times"),
    ({"dtype": "timedelta64[s]", "units": "seconds"}, "holds times"),
]


@pytest.mark.parametrize(("attributes", "sentence"), WRONG)
def test_what_cannot_be_decoded_is_refused(tmp_path, attributes, sentence):
    path = written(tmp_path / "a", attributes=attributes)
    with pytest.raises(SourceError, match=sentence) as caught:
        open_source(path)
    assert "decode=False" in str(caught.value) and "\n" not in str(caught.value)
    assert len(open_source(path, decode=False)) == 40


@pytest.mark.parametrize(
    ("dtype", "fill", "decoded"),
    [("i2", -32767, "f4"), ("i2", 0, "f4"), ("f4", math.nan, "f4"), ("f4", -32767.0, "f4")],
)
def test_the_fill_value_of_version_2_is_xarrays_mark(tmp_path, dtype, fill, decoded):
    dimensions = {"_ARRAY_DIMENSIONS": ["time", "x"]}
    path = written(tmp_path / "a", 2, dtype, dimensions, fill_value=fill)
    out = {"": np.empty((40, 4), decoded)}
    open_source(path).read(0, 40, out)
    assert np.isnan(out[""]).all() == (fill == -32767)
    # of an array that xarray has not written, it is only the value of missing chunks
    plain = open_source(written(tmp_path / "b", 2, dtype, fill_value=fill))
    assert plain.fields[""].dtype == np.dtype(dtype)


def test_decode_is_a_flag_that_every_kind_of_source_takes(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    for kind in (tmp_path / "x.npy", np.arange(3), {"x": np.arange(3)}, [np.arange(3)]):
        assert len(open_source(kind, decode=False)) == len(open_source(kind)) == 3
        with pytest.raises(PlanError, match="decode must be True or False"):
            open_source(kind, decode="no")


# -- the axis of samples by name


@pytest.mark.parametrize("version", [2, 3])
def test_the_axis_of_samples_by_dimension_name(tmp_path, version):
    data = np.arange(24).reshape(4, 6)
    names = {"dimension_names": ["x", "time"]} if version == 3 else {"fill_value": None}
    array = zarr.create_array(tmp_path / "a", data=data, zarr_format=version, **names)
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["x", "time"]
    for options in ({"along": "time"}, {"axis": "time"}, {"along": 1}, {"axis": 1}):
        source = open_source(tmp_path / "a", **options)
        out = {"": np.empty((6, 4), data.dtype)}
        source.read(0, 6, out)
        assert np.array_equal(out[""], data.T)
        assert len(ZarrSource(tmp_path / "a", **options)) == 6
    assert len(open_source(tmp_path / "a", along="x")) == len(open_source(tmp_path / "a")) == 4
    with pytest.raises(SourceError, match=r"has dimensions \['x', 'time'\], so along='tim'"):
        open_source(tmp_path / "a", along="tim")
    with pytest.raises(PlanError, match="pass one"):
        open_source(tmp_path / "a", along="time", axis=1)
    for wrong in (1.5, True, [1], 2**70):
        with pytest.raises(PlanError, match="along"):
            open_source(tmp_path / "a", along=wrong)
    for wrong in (2, -1):
        with pytest.raises(SourceError, match="from 0 to 1"):
            open_source(tmp_path / "a", along=wrong)


def test_an_array_without_names_and_other_sources_say_so(tmp_path):
    zarr.create_array(tmp_path / "a", data=np.zeros((4, 6)))
    with pytest.raises(SourceError, match="has no dimension names, so along='time'"):
        open_source(tmp_path / "a", axis="time")
    np.save(tmp_path / "x.npy", np.zeros((4, 6)))
    for kind in (np.zeros((4, 6)), {"x": np.zeros((4, 6))}, tmp_path / "x.npy"):
        assert [len(open_source(kind, along=along)) for along in (0, 1)] == [4, 6]
        with pytest.raises(SourceError, match="has no axis along='time'"):
            open_source(kind, along="time")
    np.zeros(4, "uint16").tofile(tmp_path / "x.bin")
    assert len(open_source(tmp_path / "x.bin", dtype="uint16", along=0)) == 4
    for along in (1, "time"):
        with pytest.raises(SourceError, match="along its first axis"):
            open_source(tmp_path / "x.bin", dtype="uint16", along=along)


# -- groups


@pytest.fixture(params=[2, 3])
def nested(tmp_path, request):
    group = zarr.create_group(tmp_path / "n", zarr_format=request.param)
    group.create_array("img/raw", data=np.arange(100 * 4, dtype="u2").reshape(100, 2, 2))
    group.create_array("img/deep/er/mask", data=np.arange(100) % 3 == 0)
    group.create_array("label", data=np.arange(100))
    return tmp_path / "n"


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("consolidated", [False, True])
def test_arrays_of_subgroups_are_fields_by_their_path(nested, consolidated):
    if consolidated:
        zarr.consolidate_metadata(nested)
    with StreamLoader(nested, 10) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["img/deep/er/mask", "img/raw", "label"]
    assert (batch["img/raw"][:, 0, 0].long() == 4 * batch["label"]).all()
    assert ((batch["label"] % 3 == 0) == batch["img/deep/er/mask"]).all()
    with StreamLoader(open_source(nested, fields=["img/raw", "label"]), 10) as loader:
        assert list(next(iter(loader))) == ["img/raw", "label"]


def test_a_folder_without_metadata_hides_no_arrays(tmp_path):
    zarr.create_group(tmp_path / "g")
    zarr.create_array(tmp_path / "g/x", data=np.arange(10))
    zarr.create_array(tmp_path / "g/plain/y", data=np.arange(10))
    assert list(open_source(tmp_path / "g").fields) == ["plain/y", "x"]


def test_different_lengths_name_the_fields_to_choose(tmp_path):
    group = zarr.create_group(tmp_path / "era")
    for name, shape in {"t": (96, 4, 8), "u": (96, 4, 8), "lat": (4,), "lon": (8,)}.items():
        group.create_array(name, data=np.zeros(shape, "f4"))
    with pytest.raises(SourceError, match="different lengths") as caught:
        StreamLoader(tmp_path / "era", 8)
    advice = re.search(r"open_source\(.*\)", str(caught.value)).group()
    with StreamLoader(eval(advice), 8) as loader:  # noqa: S307 - as the message says
        assert list(next(iter(loader))) == ["t", "u"]


def test_scalars_are_left_out_with_one_line_in_the_log(tmp_path, caplog):
    group = zarr.create_group(tmp_path / "g")
    group.create_array("t", data=np.zeros((96, 4), "f4"))
    group.create_array("crs", shape=(), dtype="i4")
    group.create_array("img/crs", shape=(), dtype="i4")
    with caplog.at_level(logging.INFO, "penstock"):
        assert list(open_source(tmp_path / "g").fields) == ["t"]
    assert [record.getMessage() for record in caplog.records] == [
        f"reading t of {tmp_path / 'g'}; leaving out crs, img/crs"
    ]
    with pytest.raises(SourceError, match="is a scalar"):
        open_source(tmp_path / "g", fields=["crs"])
    with pytest.raises(SourceError, match="is a scalar"):
        open_source(tmp_path / "g/crs")
    with pytest.raises(SourceError, match="no arrays of samples"):
        open_source(tmp_path / "g/img")


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_items_of_variable_size_are_left_out_as_advised(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    group.create_array("names", shape=(10,), dtype="str")
    group.create_array("x", data=np.arange(10))
    with pytest.raises(SourceError, match=r"g/names holds items of dtype.*fields=\[") as caught:
        StreamLoader(tmp_path / "g", 5)
    assert "\n" not in str(caught.value)
    assert list(open_source(tmp_path / "g", fields=["x"]).fields) == ["x"]


@pytest.mark.parametrize(
    "path", ["../secret", "/etc", "a/../../secret", "", ".", "x//y", "\0", 3, None]
)
def test_paths_stay_inside_of_the_store(tmp_path, path):
    zarr.create_array(tmp_path / "secret", data=np.arange(10))
    zarr.create_group(tmp_path / "g").create_array("x", data=np.arange(10))
    with pytest.raises((SourceError, PlanError)):
        ZarrSource(tmp_path / "g", fields=[path])
    metadata = json.loads((tmp_path / "g/zarr.json").read_text())
    array = json.loads((tmp_path / "g/x/zarr.json").read_text())
    metadata["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": {str(path): array},
    }
    (tmp_path / "g/zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(SourceError):
        ZarrSource(tmp_path / "g")


@pytest.mark.parametrize("separator", ["/../../secret/", "..", "", "\\", "//", None, 5, ["/"]])
@pytest.mark.parametrize("version", [2, 3])
def test_separators_that_lead_elsewhere_are_refused(tmp_path, version, separator):
    path = tmp_path / "g/a"
    zarr.create_array(path, data=np.arange(10), zarr_format=version)
    file = path / ("zarr.json" if version == 3 else ".zarray")
    metadata = json.loads(file.read_text())
    if version == 3:
        metadata["chunk_key_encoding"]["configuration"] = {"separator": separator}
    else:
        metadata["dimension_separator"] = separator
    file.write_text(json.dumps(metadata))
    for direct in (True, False):
        with pytest.raises(SourceError, match="separator"):
            ZarrSource(path, direct=direct)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", ">i2"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -7, "missing_value": 9},
        {"scale_factor": 1e-3},
        {"add_offset": 1 / 3, "_Unsigned": "true"},
        {"_FillValue": 5},
    ],
)
def test_all_values_of_few_bits_are_decoded_as_numpy_does_it(monkeypatch, dtype, attributes):
    decoding = cf.decoding_of(attributes, np.dtype(dtype), "x")
    stored = np.arange(1 << 16).astype(dtype).reshape(256, 256)
    found, expected = (np.empty(stored.shape, decoding.dtype) for _ in range(2))
    decoding.apply(stored, found)
    monkeypatch.setattr(cf, "native", None)
    pickle.loads(pickle.dumps(decoding)).apply(stored, expected)
    assert found.tobytes() == expected.tobytes()
