"""`Ragged`, and rows of different lengths through sources and streams."""

import copy
import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import ChunkedDataLoader, Mixture, PlanError, Ragged, StreamLoader, open_source, pack
from penstock.datasets.gather import SourceDataset
from penstock.errors import BatchError, SourceError
from penstock.ragged import dense_tensor
from penstock.sources.base import BaseSource
from penstock.sources.contract import Field
from penstock.sources.ragged_rows import checked_offsets, take_by_blocks
from tests.sources.ragged_contract import check, text

rows_of_numbers = st.lists(st.lists(st.integers(0, 255), max_size=6), min_size=1, max_size=12)


@given(rows_of_numbers, st.integers(1, 5), st.data())
def test_a_ragged_batch_is_its_rows(rows, multiple, data):
    ragged = Ragged.from_rows([torch.tensor(row, dtype=torch.int64) for row in rows])
    assert ragged.tolist() == rows == [row.tolist() for row in ragged]
    assert len(ragged) == len(rows) and ragged.lengths.tolist() == [len(row) for row in rows]
    padded = ragged.padded(-1, multiple_of=multiple)
    width = -(-max(map(len, rows)) // multiple) * multiple
    assert padded.tolist() == [row + [-1] * (width - len(row)) for row in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    assert ragged[chosen].tolist() == [rows[i] for i in chosen]
    assert ragged[1:].tolist() == rows[1:]
    assert ragged[ragged.lengths > 2].tolist() == [row for row in rows if len(row) > 2]
    assert ragged[-1].tolist() == rows[-1]
    for other in (pickle.loads(pickle.dumps(ragged)), copy.deepcopy(ragged), ragged.to("cpu")):
        assert other.tolist() == rows
    assert ragged.to(torch.float32).dtype == torch.float32


def test_a_ragged_batch_as_nested_tensor_and_as_text():
    ragged = Ragged.from_rows([[1.0, 2.0], [], [3.0]])
    nested = ragged.nested()
    assert nested.is_nested and [row.tolist() for row in nested.unbind()] == ragged.tolist()
    words = Ragged.from_rows(text(["é", "", "ab"]))
    assert words.strings() == ["é", "", "ab"]
    assert Ragged(torch.zeros(0, 3), [0, 0]).padded().shape == (1, 0, 3)
    assert "3 rows" in repr(words)


@pytest.mark.parametrize("value", [0.5, -1, 256, float("nan"), "0", None])
def test_padding_that_the_values_cannot_have_is_refused(value):
    rows = Ragged(torch.tensor([7, 8, 9], dtype=torch.uint8), [0, 2, 3])
    with pytest.raises(BatchError, match="cannot be padding among values of torch"):
        rows.padded(value)
    assert rows.padded(2.0).tolist() == [[7, 8], [9, 2]]
    assert rows.to(torch.float32).padded(0.1)[1, 1].item() == pytest.approx(0.1)


def test_a_row_is_chosen_by_a_tensor_of_one_number():
    rows = Ragged(torch.tensor([7, 8, 9]), [0, 2, 3])
    assert rows[torch.tensor(-1)].tolist() == [9] and rows[torch.tensor([1])].tolist() == [[9]]


@pytest.mark.parametrize(
    ("values", "offsets"),
    [([1, 2], [0, 1]), ([1, 2], [1, 2]), ([1, 2], [0, 2, 1, 2]), (3, [0]), ([1], []), ("a", [0])],
)
def test_offsets_that_do_not_fit_are_refused(values, offsets):
    with pytest.raises(BatchError):
        Ragged(values, offsets)
    with pytest.raises(BatchError, match="rows of bytes"):
        Ragged([1.0], [0, 1]).strings()
    with pytest.raises(SourceError, match="decrease at sample 1"):
        checked_offsets(np.array([0, 2, 1]), 1, "x")


class Lists(BaseSource):
    """Lists in memory: a source of a user, with blocks of a given size."""

    def __init__(self, rows, block):
        self.rows, self.block = [np.array(row, np.int16) for row in rows], block
        self.ends = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int64)
        fields = {"x": Field((), np.dtype(np.int16), ragged=True), "i": Field((), np.dtype("i8"))}
        super().__init__(len(rows), fields)

    block_samples = property(lambda self: self.block)

    def offsets(self, name):
        return self.ends if name == "x" else super().offsets(name)

    def fingerprint(self):
        return str(len(self))

    def _read(self, start, stop, out):
        if "x" in out:
            out["x"][:] = np.concatenate([*self.rows[start:stop], np.empty(0, np.int16)])
        if "i" in out:
            out["i"][:] = np.arange(start, stop)

    def _take(self, indices, out):
        take_by_blocks(self, indices, out, self.block)


def lists(length, seed, most=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 99, rng.integers(0, most)) for _ in range(length)]


def test_a_source_of_lists():
    rows = lists(50, 1)
    check(Lists(rows, 7), {"x": rows, "i": np.arange(50)})


def stream(rows, batch, world, *, state=None, steps=None, **options):
    """The samples that all ranks deliver in one epoch, checked against the rows; and a state."""
    seen, saved = [], None
    for rank in range(world):
        options |= {"rank": rank, "world_size": world}
        with StreamLoader(Lists(rows, 5), batch, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for number, batch_ in enumerate(loader):
                index = batch_["i"].tolist()
                assert batch_["x"].tolist() == [rows[i].tolist() for i in index]
                seen += index
                if steps is not None and number + 1 == steps:
                    saved = loader.state_dict()
                    break
    return seen, saved


@given(st.data())
@settings(max_examples=25)
def test_a_stream_delivers_every_row_once_and_resumes_on_other_ranks(data):
    length = data.draw(st.integers(6, 60))
    rows = lists(length, data.draw(st.integers(0, 99)))
    batch, world = data.draw(st.integers(3, 9)), data.draw(st.sampled_from([1, 2, 3]))
    options = {
        "block_samples": data.draw(st.integers(1, 12)),
        "window_blocks": data.draw(st.integers(1, 5)),
        "shuffle": data.draw(st.booleans()),
        "seed": data.draw(st.integers(0, 5)),
        "drop_last": False,
        "lanes": world * 2 if data.draw(st.booleans()) else 6,
    }
    seen, _ = stream(rows, batch, world, **options)
    assert len(set(seen)) == len(seen) > length - world  # fewer than one for each rank are dropped
    before, state = stream(rows, batch, world, steps=1, **options)
    other = data.draw(st.sampled_from([1, 2, 3]))
    if state["epoch"] == 0 and length - len(before) >= other:  # fewer are dropped: the next epoch
        after, _ = stream(rows, data.draw(st.integers(3, 9)), other, state=state, **options)
        found = before + after
        assert len(set(found)) == len(found) > length - other


def test_selections_keep_ragged_rows():
    rows = lists(40, 3)
    source = Lists(rows, 7)
    chosen = [3, 4, 5, 11, 30, 31]
    check(source.select(chosen), {"x": [rows[i] for i in chosen], "i": np.array(chosen)})
    with pytest.raises(PlanError, match=r"'x' is ragged.*windows"):
        source.windows(3)
    with pytest.raises(PlanError, match="'x' is ragged"):
        StreamLoader(source, 4, steps=2)


def test_memory_is_that_of_the_largest_blocks():
    rows = [np.zeros(10, np.int16)] * 99 + [np.zeros(40_000, np.int16)]
    with pytest.raises(PlanError, match=r"sample 99 has 80 kB, more than memory_budget=50 kB"):
        StreamLoader(Lists(rows, 1), 4, memory_budget=50_000)
    with pytest.raises(PlanError, match=r"samples 90:100 have 80.3 kB") as caught:
        StreamLoader(Lists(rows, 5), 4, block_samples=10, memory_budget=50_000)
    advised = re.search(r'memory_budget="(\w+)"', str(caught.value)).group(1)
    StreamLoader(Lists(rows, 5), 4, block_samples=10, memory_budget=advised).close()
    with StreamLoader(Lists(rows, 5), 4, memory_budget="1MB") as loader:
        assert loader.buffer_bytes <= 1_000_000
        assert sum(len(batch["x"]) for batch in loader) == 100


def test_a_damaged_matrix_and_a_replaced_block():
    class Broken(Lists):
        def _read(self, start, stop, out):
            if start <= 12 < stop:
                raise SourceError("broken")
            super()._read(start, stop, out)

    rows = lists(30, 4)
    with StreamLoader(Broken(rows, 5), 5, on_error="replace", drop_last=False) as loader:
        seen = [i for batch in loader for i in batch["i"].tolist()]
    assert len(seen) == 30 and not {10, 11, 12, 13, 14} & set(seen)
    with StreamLoader(Broken(rows, 5), 5) as loader, pytest.raises(SourceError, match="broken"):
        list(loader)


def test_transforms_and_collate_functions_get_ragged_batches():
    source = open_source(pa.table({"x": [[1, 2], [3], []]}))
    with StreamLoader(
        source, 3, shuffle=False, transform=lambda batch, rng: batch["x"].padded(9)
    ) as loader:
        assert next(iter(loader)).tolist() == [[1, 2], [3, 9], [9, 9]]
    with StreamLoader(source, 3, shuffle=False, collate_fn=lambda b: b["x"].lengths) as loader:
        assert next(iter(loader)).tolist() == [2, 1, 0]


def test_documents_of_a_table_are_packed():
    rows = [[1, 2, 3], [4], [5, 6, 7, 8, 9], []]
    source = open_source(pa.table({"tokens": rows}))
    packed = pack(source, 4)
    tokens = [int(t) for i in range(len(packed)) for t in packed[i]["tokens"]]
    assert sorted(t for t in tokens if t) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_chunked_loader_delivers_ragged_batches():
    rows = lists(23, 6)
    with ChunkedDataLoader(Lists(rows, 5), 4, chunk_size=2) as loader:
        seen = []
        for _ in range(3):
            for batch in loader:
                index = batch["i"].tolist()
                assert batch["x"].tolist() == [rows[i].tolist() for i in index]
                seen += index
    assert sorted(seen) == list(range(23))
    sample = SourceDataset(Lists(rows, 5))[7]
    assert sample["x"].tolist() == rows[7].tolist() and int(sample["i"]) == 7


def test_a_buffer_of_another_length_is_refused():
    source = Lists([[1], [2, 3]], 1)
    for items in (2, 4):  # two samples, three items
        with pytest.raises(PlanError, match=r"needs \(3, \*\(\)\)"):
            source.read(0, 2, {"x": np.empty(items, np.int16)})


def test_mixtures_of_ragged_sources_are_streamed():
    first, second = lists(50, 7), lists(30, 8)
    mixture = Mixture({"a": Lists(first, 5), "b": Lists(second, 5)}, weights={"a": 0.5, "b": 0.5})
    with StreamLoader(mixture, 8, block_samples=4, window_blocks=3) as loader:
        for step, batch in enumerate(loader):
            names = mixture.locate(loader.samples_at(step, epoch=0))
            assert len(batch["x"]) == 8 and len(names) > 0
            rows = {tuple(row) for part in (first, second) for row in map(np.ndarray.tolist, part)}
            assert all(tuple(row) in rows for row in batch["x"].tolist())


@pytest.mark.parametrize("kind", ["float32", "float64", "int16"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("way", ["compiled", "torch"])
def test_a_matrix_with_its_zeros_is_scipys(monkeypatch, kind, index, way):
    if way == "torch":
        monkeypatch.setattr("penstock.ragged.native", None)
    values = torch.arange(1, 8).to(getattr(torch, kind))
    columns = torch.tensor([4, 0, 0, 2, 2, 2, 4], dtype=getattr(torch, index))  # 0 and 2 again
    offsets = torch.tensor([0, 1, 1, 6, 7])
    parts = [each.numpy() for each in (values, columns, offsets)]
    out = torch.full((4, 5), 7).to(values.dtype)
    found = dense_tensor(values, columns, offsets, 5, out=out)
    assert found is out
    assert (found.numpy() == scipy.sparse.csr_matrix(tuple(parts), shape=(4, 5)).toarray()).all()
