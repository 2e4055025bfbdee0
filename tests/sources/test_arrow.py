"""Tables: in memory, in files, and as Hugging Face datasets."""

import os

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import SourceError
from penstock.sources.arrow import ArrowSource
from penstock.testing.source_contract import SourceContract

N = 157
RNG = np.random.default_rng(0)
COLUMNS = {
    "scalar": RNG.standard_normal(N),
    "half": RNG.standard_normal(N).astype("f2"),
    "vector": RNG.standard_normal((N, 3)).astype("f4"),
    "matrix": RNG.integers(0, 9, (N, 2, 3)).astype("i2"),
    "flag": RNG.integers(0, 2, N).astype(bool),
    "when": RNG.integers(0, 1000, N).astype("M8[ms]"),
    "byte": RNG.integers(0, 256, N).astype("u1"),
}


def as_arrow(array):
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(
        as_arrow(array.reshape(-1, *array.shape[2:])), array.shape[1]
    )


def table(**more):
    return pa.table({**{name: as_arrow(array) for name, array in COLUMNS.items()}, **more})


class ArrowContract(SourceContract):
    def expected(self):
        return COLUMNS


class TestTable(ArrowContract):
    def make_source(self):
        return ArrowSource(table())


class TestTableInPieces(ArrowContract):
    def make_source(self):
        whole = table()
        return ArrowSource(
            pa.concat_tables([whole.slice(0, 50), whole.slice(50, 7), whole.slice(57)])
        )


class TestParquet(ArrowContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "t.parquet"
        pq.write_table(table(), self.path, row_group_size=40)

    def make_source(self):
        return ArrowSource(self.path)

    def test_a_block_is_a_row_group(self):
        assert self.make_source().block_samples == 40


class TestParquetDirectory(ArrowContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        self.path = tmp_path
        pq.write_table(table().slice(0, 100), tmp_path / "0.parquet", row_group_size=30)
        pq.write_table(table().slice(100), tmp_path / "1.parquet")

    def make_source(self):
        return ArrowSource(self.path)


class TestArrowFile(ArrowContract):
    @pytest.fixture(autouse=True, params=["file", "stream"])
    def _file(self, tmp_path, request):
        self.path = tmp_path / "t.arrow"
        new = pa.ipc.new_file if request.param == "file" else pa.ipc.new_stream
        with new(str(self.path), table().schema) as writer:
            writer.write_table(table(), max_chunksize=64)

    def make_source(self):
        return ArrowSource(self.path)


class TestHuggingFace(SourceContract):
    @pytest.fixture(autouse=True)
    def _offline(self, tmp_path, monkeypatch):
        datasets.disable_progress_bars()
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
        features = datasets.Features(
            {
                "vector": datasets.Sequence(datasets.Value("float32"), length=3),
                "label": datasets.Value("int64"),
                "matrix": datasets.Array2D((2, 3), "int16"),
                "text": datasets.Value("string"),
            }
        )
        data = {
            "vector": list(COLUMNS["vector"]),
            "label": list(range(N)),
            "matrix": COLUMNS["matrix"].tolist(),
            "text": ["x"] * N,
        }
        self.dataset = datasets.Dataset.from_dict(data, features=features)

    def make_source(self):
        chosen = self.dataset.select(range(N - 1, -1, -1))
        return ArrowSource(chosen, columns=["vector", "label", "matrix"])

    def expected(self):
        return {
            "vector": np.ascontiguousarray(COLUMNS["vector"][::-1]),
            "label": np.arange(N)[::-1].copy(),
            "matrix": np.ascontiguousarray(COLUMNS["matrix"][::-1]),
        }

    def test_text_is_a_ragged_field(self):
        assert ArrowSource(self.dataset).fields["text"].ragged


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([["a"]] * N), "'bad' holds list<"),
        (pa.array([{"a": 1}] * N), "'bad' holds struct"),
    ],
)
def test_columns_that_cannot_be_fields_are_refused_by_name(column, says):
    with pytest.raises(SourceError, match=says) as caught:
        ArrowSource(table(bad=column))
    assert "columns=['scalar'" in str(caught.value)
    assert "bad" not in ArrowSource(table(bad=column), columns=["flag"]).fields


def test_missing_values_are_refused_by_name():
    source = ArrowSource(table(bad=pa.array([1, None] * (N // 2) + [3])))
    with pytest.raises(SourceError, match="'bad' has 78 missing values"):
        source.read(0, N, {"bad": np.empty(N, "i8")})


def test_unknown_columns_are_refused():
    with pytest.raises(SourceError, match="did you mean 'vector'"):
        ArrowSource(table(), columns=["vectr"])


def test_a_table_in_one_piece_is_looked_at_in_place():
    source = ArrowSource(table(), columns=["vector", "scalar"])
    assert source.view(3, 9)["vector"].shape == (6, 3)
    assert ArrowSource(table(), columns=["flag"]).view(3, 9) is None


def test_damaged_parquet_is_a_sentence(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(), path)
    source = ArrowSource(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:100] + bytes(2000) + raw[2100:])
    with pytest.raises(SourceError, match=r"t\.parquet"):
        source.read(0, N, {"scalar": np.empty(N)})
    os.truncate(path, 50)
    with pytest.raises(SourceError, match=r"t\.parquet"):
        ArrowSource(path)


@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_garbage_and_missing_files_are_a_sentence(tmp_path, name):
    with pytest.raises(SourceError, match="no file"):
        ArrowSource(tmp_path / name)
    (tmp_path / name).write_bytes(b"garbage" * 10)
    with pytest.raises(SourceError, match="pyarrow cannot read"):
        ArrowSource(tmp_path / name)


def test_a_changed_value_changes_the_fingerprint(tmp_path):
    prints = set()
    for value in (0.0, 1.0):
        changed = COLUMNS["scalar"].copy()
        changed[70] = value
        pq.write_table(pa.table({"x": changed}), tmp_path / f"{value}.parquet")
        prints.add(ArrowSource(tmp_path / f"{value}.parquet").fingerprint())
        prints.add(ArrowSource(pa.table({"x": changed})).fingerprint())
    assert len(prints) == 4


def test_a_mapped_file_that_shrinks_is_an_error_and_not_a_crash(tmp_path):
    table = pa.table({"x": np.arange(100_000)})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    source = ArrowSource(tmp_path / "a.arrow")
    source.view(0, 10)
    child = os.fork()  # SIGBUS would end the process
    if child == 0:
        os.truncate(tmp_path / "a.arrow", 4096)
        refused = 0
        for access in (
            lambda: source.view(90_000, 90_010),
            lambda: source.read(90_000, 90_010, {"x": np.empty(10, "i8")}),
            lambda: source.take(np.array([90_000]), {"x": np.empty(1, "i8")}),
        ):
            try:
                access()
            except SourceError as error:
                refused += "shrunk" in str(error)
        os._exit(0 if refused == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
