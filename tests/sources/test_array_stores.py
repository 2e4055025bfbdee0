"""Stores of arrays, written by the tools of their fields: equal to what their readers return."""

import json
import logging
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import icechunk
import netCDF4
import numpy as np
import pytest
import tensorstore
import torch
import xarray
import zarr

from penstock import StreamLoader
from penstock.errors import SourceError
from penstock.sources import open_source
from penstock.testing.source_contract import SourceContract

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
]

ROWS = np.arange(240, dtype="f4").reshape(40, 6)
PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}


def rows_of(source):
    out = {name: np.empty((len(source), *f.shape), f.dtype) for name, f in source.fields.items()}
    source.read(0, len(source), out)
    return out


def check_equal(source, expected):
    """The source reads the expected arrays: as a whole, by index, by part, by thread, pickled."""
    assert list(source.fields) == list(expected)
    for name, wanted in expected.items():
        assert source.fields[name].dtype == wanted.dtype and len(source) == len(wanted)
    indices = np.array([len(source) - 1, 0, 1, 1])
    taken = {name: np.empty((4, *each.shape[1:]), each.dtype) for name, each in expected.items()}
    source.take(indices, taken)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(rows_of, [source, source, pickle.loads(pickle.dumps(source))]))
    for name, wanted in expected.items():
        assert all(each[name].tobytes() == wanted.tobytes() for each in read)
        assert taken[name].tobytes() == wanted[indices].tobytes()
        if wanted.ndim > 1:
            low, high = [0] * (wanted.ndim - 1), list(wanted.shape[1:])
            low[-1], high[0] = wanted.shape[-1] - 1, wanted.shape[1] if wanted.ndim == 2 else 1
            last = min(9, len(wanted))
            key = (slice(1, last), *map(slice, low, high))
            box = np.empty(wanted[key].shape, wanted.dtype)
            source.read_box(name, 1, last, low, high, box)
            assert box.tobytes() == wanted[key].tobytes()


# -- xarray


@pytest.fixture(scope="module")
def weather():
    rng = np.random.default_rng(0)
    t2m = rng.normal(280, 10, (24, 4, 6)).astype("f4")
    t2m[3, 1, 2] = np.nan
    return xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "wind": (("time", "lat", "lon"), rng.normal(size=(24, 4, 6))),
            "code": (("time",), np.arange(24, dtype="u1")),
            "wet": (("time", "lat"), t2m[:, :, 0] > 280),
            "orography": (("lat", "lon"), t2m[0]),
            "crs": ((), np.int32(4326)),
        },
        coords={
            "time": np.datetime64("2020-01-01", "ns") + np.arange(24) * np.timedelta64(1, "D"),
            "lat": np.linspace(-90, 90, 4),
            "lon": np.arange(6.0),
            "station": ("time", np.arange(24) * 2),
        },
    )


def encoding(**chunking):
    unsigned = {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}
    wind = {"dtype": "i4", "scale_factor": 1e-4, "_FillValue": 2**31 - 1}
    return {"t2m": PACKED | chunking, "code": unsigned, "wind": wind}


def data_variables(reference):
    """What xarray reads; packed values of 16 bits are rounded to float32."""
    found = {name: reference[name].values for name in ("code", "t2m", "wet", "wind")}
    return found | {"t2m": found["t2m"].astype("f4")}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("version", [2, 3])
def test_groups_that_xarray_writes_are_read_as_it_reads_them(
    tmp_path, weather, version, consolidated, caplog
):
    path = tmp_path / "era.zarr"
    weather.to_zarr(
        path,
        zarr_format=version,
        consolidated=consolidated,
        encoding=encoding(chunks=(5, 4, 3)),
    )
    reference = xarray.open_zarr(path, consolidated=consolidated)
    with caplog.at_level(logging.INFO, "penstock"):
        source = open_source(path, along="time")
    assert len(caplog.records) == 1 and "leaving out crs, lat, lon, orography, station, time" in (
        caplog.text
    )
    check_equal(source, data_variables(reference))
    check_equal(open_source(path, direct=False), data_variables(reference))
    assert source.dims["t2m"] == ("lat", "lon") and source.chunks["t2m"] == (5, 4, 3)
    assert source.reader == "direct"
    check_equal(open_source(path, fields=["station"]), {"station": reference.station.values})
    with pytest.raises(SourceError, match="holds times"):
        open_source(path, fields=["t2m", "time"])
    stored = xarray.open_zarr(path, consolidated=consolidated, decode_cf=False)
    names = ["t2m", "time"]
    check_equal(
        open_source(path, fields=names, decode=False), {name: stored[name].values for name in names}
    )
    by_latitude = {"t2m": np.moveaxis(data_variables(reference)["t2m"], 1, 0).copy()}
    check_equal(open_source(path, fields=["t2m"], along="lat"), by_latitude)
    with pytest.raises(SourceError, match=r"along='tim': did you mean 'time'"):
        open_source(path, along="tim")


@pytest.mark.parametrize(
    ("engine", "kind", "library"),
    [
        ("netcdf4", "NETCDF4", "h5py"),
        ("h5netcdf", "NETCDF4", "h5py"),
        ("netcdf4", "NETCDF3_64BIT", "netCDF4"),
        ("scipy", "NETCDF3_CLASSIC", "netCDF4"),
    ],
)
def test_netcdf_files_are_read_as_xarray_reads_them(tmp_path, weather, engine, kind, library):
    path, chunked = tmp_path / "era.nc", kind == "NETCDF4"
    weather.to_netcdf(
        path,
        engine=engine,
        format=kind,
        encoding=encoding(**({"chunksizes": (5, 4, 3)} if chunked else {})),
    )
    source = open_source(path, along="time")
    with xarray.open_dataset(path, engine=engine) as reference:
        expected = data_variables(reference)
        check_equal(source, {name: expected[name] for name in source.fields})
        assert sorted(source.fields) == sorted(expected)
        # the object itself: loaded where it is read
        decoded = {"": reference["t2m"].values}  # by xarray
        check_equal(open_source(reference["t2m"], along="time"), decoded)
        names = ["t2m", "station"]
        found = rows_of(open_source(reference, fields=names))
        assert all(np.array_equal(found[n], reference[n].values, equal_nan=True) for n in names)
    assert set(source.readers.values()) == {library}
    assert source.chunks["t2m"] == ((5, 4, 3) if chunked else (24, 4, 6))


def test_netcdf_groups_written_by_netcdf4(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        group = file.createGroup("model")
        group.createDimension("time", None)
        group.createDimension("level", 6)
        variable = group.createVariable("q", "f4", ("time", "level"), fill_value=7.0, zlib=True)
        variable[:] = ROWS
        expected = variable[:].filled(np.nan)
    source = open_source(tmp_path / "a.nc", along="time")
    check_equal(source, {"model/q": expected})
    assert np.isnan(expected).sum() == 1 and source.dims == {"model/q": ("level",)}


# -- HDF5


@pytest.fixture
def hdf5(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("img/raw", data=ROWS.astype(">i4"), chunks=(7, 6), compression="gzip")
        file["img/mask"] = ROWS[:, 0] > 60
        file["label"] = np.arange(40)
        file["note"] = "text"
    return tmp_path / "a.h5"


def test_hdf5_files_and_objects(hdf5):
    with pytest.raises(SourceError, match=r"a\.h5/label.*fields|fixed|lengths|dtype") as caught:
        with h5py.File(hdf5, "a") as file:
            file["names"] = ["a"] * 40
        open_source(hdf5)
    assert "names" in str(caught.value) and "\n" not in str(caught.value)
    with h5py.File(hdf5) as file:
        wanted = {name: file[name][...] for name in ("img/mask", "img/raw", "label")}
        wanted["img/raw"] = wanted["img/raw"].astype("i4")
        check = {name: open_source(file[name]) for name in wanted}
        for name, source in check.items():
            check_equal(source, {"": wanted[name]})
        check_equal(
            open_source(file["img"]), {"mask": wanted["img/mask"], "raw": wanted["img/raw"]}
        )
        across = np.moveaxis(wanted["img/raw"], 1, 0).copy()
        assert np.array_equal(rows_of(open_source(file["img/raw"], along=1))[""], across)
        later = open_source(file["label"])
    check_equal(later, {"": wanted["label"]})  # the file is closed, and opened again by its path
    check_equal(open_source(hdf5, fields=list(wanted)), wanted)
    with StreamLoader(open_source(hdf5, fields=["img/raw", "label"]), 10) as loader:
        batches = list(loader)
    labels = torch.cat([batch["label"] for batch in batches])
    assert sorted(labels.tolist()) == list(range(40))
    for batch in batches:
        assert (batch["img/raw"][:, 0] == 6 * batch["label"]).all()


def test_an_hdf5_file_leads_to_no_other_file(tmp_path, hdf5):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner/a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = ROWS
        file["out"] = h5py.ExternalLink("../a.h5", "/label")
    assert list(open_source(path).fields) == ["x"]
    with pytest.raises(SourceError, match=r"'out' of .* is missing"):
        open_source(path, fields=["out"])
    with h5py.File(path, "a") as file:
        layout = h5py.VirtualLayout((40,), "i8")
        layout[:] = h5py.VirtualSource("../a.h5", "label", (40,))
        file.create_virtual_dataset("virtual", layout)
    with pytest.raises(SourceError, match=r"is stored in '\.\./a\.h5', outside"):
        open_source(path)


def test_damaged_hdf5_files_are_refused_in_a_sentence(tmp_path, hdf5):
    whole = hdf5.read_bytes()
    for size in (0, 3, 8, 100, len(whole) // 2, len(whole) - 100):
        (tmp_path / "cut.h5").write_bytes(whole[:size])
        with pytest.raises(SourceError) as caught:
            rows_of(open_source(tmp_path / "cut.h5", fields=["img/raw", "label"]))
        assert "\n" not in str(caught.value) and "cut.h5" in str(caught.value)
    with pytest.raises(SourceError, match="there is nothing at"):
        open_source(tmp_path / "none.h5")
    rng = np.random.default_rng(0)
    for _ in range(60):  # any byte: right values, or one sentence
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 4):
            damaged[at] = rng.integers(256)
        (tmp_path / "bad.h5").write_bytes(damaged)
        try:
            rows_of(open_source(tmp_path / "bad.h5", fields=["img/raw", "label"]))
        except SourceError as error:
            assert "\n" not in str(error)


def test_a_file_that_is_written_or_huge_is_refused_or_read_within_bounds(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=ROWS, maxshape=(None, 6), chunks=(4, 6))
        file.create_dataset("vast", (10**18, 6), "f4", chunks=(4, 6))
    vast = open_source(tmp_path / "a.h5", fields=["vast"])
    out = {"vast": np.ones((3, 6), "f4")}
    vast.read(10**18 - 3, 10**18, out)
    assert len(vast) == 10**18 and not out["vast"].any()
    del vast  # closes the file
    with h5py.File(tmp_path / "a.h5", "a") as file:
        source = open_source(file["x"])
        file["x"].resize((50, 6))
        with pytest.raises(SourceError, match="do not write to a file that is being read"):
            rows_of(source)


def test_a_file_that_another_process_writes_is_refused(hdf5):
    program = (
        "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print('open', flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(hdf5)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(SourceError, match="is locked by a program that writes it"):
            open_source(hdf5)
        writer.communicate(b"\n", timeout=30)
    assert len(open_source(hdf5, fields=["label"])) == 40


class TestStoresKeepTheContract(SourceContract):
    """Packed values in HDF5, in a zip store and in netCDF 3: one decoded field, one plain."""

    stored = np.random.default_rng(0).integers(-100, 100, (100, 3)).astype("i2")

    @pytest.fixture(autouse=True, params=["a.h5", "a.zarr.zip", "a.nc"])
    def _store(self, tmp_path, request):
        self.path = tmp_path / request.param
        packed = {"scale_factor": 0.5, "_FillValue": np.int16(-7)}
        if request.param == "a.h5":
            with h5py.File(self.path, "w") as file:
                file.create_dataset("x", data=self.stored, chunks=(7, 3)).attrs.update(packed)
                file["y"] = np.arange(100)
        elif request.param == "a.nc":
            with netCDF4.Dataset(self.path, "w", format="NETCDF3_64BIT_DATA") as file:
                file.createDimension("n", 100)
                file.createDimension("k", 3)
                x = file.createVariable("x", "i2", ("n", "k"), fill_value=np.int16(-7))
                x.scale_factor = 0.5
                x.set_auto_maskandscale(False)
                x[:] = self.stored
                file.createVariable("y", "i8", ("n",))[:] = np.arange(100)
        else:
            with zarr.storage.ZipStore(self.path, mode="w") as store:
                group = zarr.create_group(store)
                attributes = packed | {"_FillValue": -7}
                group.create_array("x", data=self.stored, chunks=(7, 3), attributes=attributes)
                group.create_array("y", data=np.arange(100), chunks=(9,))

    def make_source(self):
        return open_source(self.path)

    def expected(self):
        x = (self.stored * 0.5).astype("f4")
        x[self.stored == -7] = np.nan
        return {"x": x, "y": np.arange(100)}


# -- zarr-python, icechunk, zip, tensorstore, OME-Zarr


def fill_group(group):
    group.create_array("img/raw", data=ROWS, chunks=(7, 6))
    group.create_array("label", data=np.arange(40), chunks=(8,), shards=(16,))
    group.create_array(
        "turned", data=ROWS, chunks=(7, 6), filters=[zarr.codecs.TransposeCodec(order=(1, 0))]
    )


def open_groups(tmp_path):
    """One group in each kind of store, and the path of those that have one."""
    yield zarr.create_group(tmp_path / "a.zarr"), tmp_path / "a.zarr"
    yield zarr.create_group(zarr.storage.MemoryStore()), None
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    yield zarr.create_group(session.store), None


def test_open_groups_and_arrays_of_zarr_python(tmp_path):
    for group, path in open_groups(tmp_path):
        fill_group(group)
        expected = {name: group[name][...] for name in ("img/raw", "label", "turned")}
        source = open_source(group)
        if "Memory" not in repr(group.store) and "Icechunk" not in type(group.store).__name__:
            check_equal(source, expected)
        assert all(np.array_equal(each, expected[n]) for n, each in rows_of(source).items())
        assert source.readers["img/raw"] == source.readers["label"] == "direct"
        assert source.readers["turned"].startswith("zarr-python")
        inner = open_source(group["img"])
        assert np.array_equal(rows_of(inner)["raw"], ROWS)
        assert np.array_equal(rows_of(open_source(group["label"]))[""], np.arange(40))
        assert np.array_equal(rows_of(open_source(group["turned"], along=1))[""], ROWS.T)
        if path is not None:
            assert source.fingerprint() == open_source(path).fingerprint()


def test_a_bare_store_is_opened_and_a_repository_is_refused_with_the_line_to_write():
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    zarr.create_array(session.store, data=ROWS, chunks=(7, 6))
    session.commit("rows")
    reading, memory = repository.readonly_session("main"), zarr.storage.MemoryStore()
    zarr.create_array(memory, data=ROWS, chunks=(7, 6))
    for where in (reading, reading.store, memory):
        source = open_source(where)
        assert source.readers == {"": "direct"}
        assert np.array_equal(rows_of(source)[""], ROWS)
    line = r"pass open_source\(repository\.readonly_session\(.main.\)\.store\)"
    with pytest.raises(SourceError, match=line):
        open_source(repository)


def test_version_2_arrays_in_a_zip_file_are_found_without_consolidated_metadata(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = zarr.create_group(store, zarr_format=2)
        for name in ("x", "deep/y"):
            group.create_array(name, data=ROWS, chunks=(7, 6))
    found = rows_of(open_source(tmp_path / "a.zip"))
    assert sorted(found) == ["deep/y", "x"]
    assert all(np.array_equal(rows, ROWS) for rows in found.values())


def test_a_committed_icechunk_session_can_be_pickled(tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path / "ice"))
    repository = icechunk.Repository.create(storage)
    session = repository.writable_session("main")
    fill_group(zarr.create_group(session.store))
    session.commit("rows")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    check_equal(open_source(group, fields=["img/raw"]), {"img/raw": ROWS})


@pytest.mark.parametrize("compression", [0, 8])
def test_zip_stores(tmp_path, compression):
    path = tmp_path / "a.zarr.zip"
    with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
        fill_group(zarr.create_group(store))
    source = open_source(path)
    check_equal(source, {"img/raw": ROWS, "label": np.arange(40), "turned": ROWS})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="truncated or damaged"):
        open_source(path)
    with pytest.raises(SourceError):
        rows_of(source)


def test_tensorstores_are_read_as_they_are(tmp_path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    options = {"chunk_layout": tensorstore.ChunkLayout(chunk_shape=(8, 6))}
    schema = {
        "domain": tensorstore.IndexDomain(shape=ROWS.shape, labels=["t", "x"]),
        "dtype": tensorstore.float32,
    }
    store = tensorstore.open(spec, create=True, **schema, **options).result()
    store.write(ROWS).result()
    source = open_source(store)
    check_equal(source, {"": ROWS})
    assert source.chunks[""] == (8, 6) and source.dims == {"": ("x",)}
    check_equal(open_source(store[10:30]), {"": ROWS[10:30]})  # its domain begins with 10
    check_equal(open_source(store, along="x"), {"": ROWS.T.copy()})
    check_equal(open_source(tmp_path / "a"), {"": ROWS})


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr_by_level_and_dimension_name(tmp_path, version):
    models = pytest.importorskip("ome_zarr_models.v04", reason="not published for Python 3.14")
    image = np.arange(3 * 2 * 8 * 8, dtype="u2").reshape(3, 2, 8, 8)
    levels = {"0": image, "1": image[..., ::2, ::2].copy()}
    axes = [
        models.axes.Axis(name=name, type="channel" if name == "c" else "space") for name in "czyx"
    ]
    datasets = [
        {"path": name, "coordinateTransformations": [{"type": "scale", "scale": [1.0] * 4}]}
        for name in levels
    ]
    multiscale = {"version": version, "axes": [each.model_dump(exclude_none=True) for each in axes]}
    multiscale |= {"datasets": datasets}
    if version == "0.4":
        models.multiscales.Multiscale.model_validate(multiscale)
    metadata = {"multiscales": [multiscale]}
    group = zarr.create_group(
        tmp_path / "image.zarr",
        zarr_format=2 if version == "0.4" else 3,
        attributes=metadata if version == "0.4" else {"ome": metadata},
    )
    for name, data in levels.items():
        group.create_array(name, data=data, chunks=(1, 1, 4, 4))
    path = tmp_path / "image.zarr"
    source = open_source(path, along="z")
    check_equal(source, {"0": np.moveaxis(image, 1, 0).copy()})
    assert source.dims == {"0": ("c", "y", "x")} and len(source.patches({"y": 4, "x": 4})) == 8
    check_equal(open_source(path, fields=["1"]), {"1": levels["1"]})
    check_equal(open_source(path), {"0": image})


# -- any object


class Simulator:
    """An array that is computed when it is sliced, and counts how many threads do so at once."""

    shape, dtype, dims = (40, 6), np.dtype("f4"), ("time", "x")
    inside = most = 0

    def __getitem__(self, key):
        self.inside += 1
        self.most = max(self.most, self.inside)
        found = ROWS[key]
        self.inside -= 1
        return found


def test_anything_with_shape_dtype_and_slicing_is_read_by_one_thread_at_a_time():
    simulator = Simulator()
    check_equal(open_source(simulator), {"": ROWS})
    assert simulator.most == 1
    assert np.array_equal(rows_of(open_source(simulator, along="x"))[""], ROWS.T)
    with StreamLoader(simulator, 10) as loader:
        assert torch.cat(list(loader)).sum() == ROWS.sum()
    with pytest.raises(SourceError, match="without fields"):
        open_source(simulator, fields=["x"])
    simulator.shape = (41, 6)  # more than slicing returns
    with pytest.raises(SourceError, match="cannot read a Simulator at samples"):
        rows_of(open_source(simulator))


def test_metadata_of_images_that_is_wrong_is_not_used(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    group.create_array("0", data=ROWS)
    file = tmp_path / "g/zarr.json"
    for wrong in (3, [], [3], [{"datasets": 3}], [{"datasets": [{}], "axes": [1]}]):
        found = json.loads(file.read_text())
        file.write_text(json.dumps(found | {"attributes": {"multiscales": wrong}}))
        assert list(open_source(tmp_path / "g").fields) == ["0"]
