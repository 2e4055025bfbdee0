"""Laws of the verbs, against plain enumeration with numpy."""

import warnings
from collections import Counter
from itertools import chain, pairwise, product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import concatenate, open_source, zip_sources
from penstock.errors import PlanError, SourceError
from penstock.sources import MemorySource
from penstock.sources.assembly import gather_patches, read_span
from penstock.sources.base import BaseSource, composed
from penstock.sources.contract import Field

EXTENT = (5, 6)


class Chunked(BaseSource):
    """Rows in chunks; counts how often each chunk is decoded, and has no view."""

    def __init__(self, rows, chunks, dims=(), *, boxes=True, seams=()):
        super().__init__(len(rows), {"": Field(rows.shape[1:], rows.dtype)})
        self.rows, self.decoded = rows, Counter()
        self._chunks, self._dims, self._seams = chunks, dims, list(seams)
        if boxes:
            self.read_box = self._box

    @property
    def chunks(self):
        return {"": self._chunks}

    @property
    def dims(self):
        return {"": self._dims}

    @property
    def seams(self):
        return self._seams

    def fingerprint(self):
        return str(self.rows.sum())

    def _box(self, field, start, stop, low, high, out):
        bounds = [(start, stop), *zip(low, high, strict=True)]
        touched = [
            range(a // c, -(-b // c)) for (a, b), c in zip(bounds, self._chunks, strict=True)
        ]
        self.decoded.update(product(*touched))
        out[...] = self.rows[tuple(slice(a, b) for a, b in bounds)]

    def _read(self, start, stop, out):
        self._box("", start, stop, (0,) * (self.rows.ndim - 1), self.rows.shape[1:], out[""])

    def _take(self, indices, out):
        whole = [
            range(-(-n // c)) for n, c in zip(self.rows.shape[1:], self._chunks[1:], strict=True)
        ]
        self.decoded.update(product({row // self._chunks[0] for row in indices.tolist()}, *whole))
        out[""][...] = self.rows[indices]


class Model:
    """The same by enumeration: runs of samples, each sample an array."""

    def __init__(self, runs):
        self.runs = [run for run in runs if run]

    @property
    def samples(self):
        return [sample for run in self.runs for sample in run]

    def select(self, indices):
        chosen, runs, number = set(indices), [], 0
        for run in self.runs:
            runs.append([])
            for sample in run:
                if number in chosen:
                    runs[-1].append(sample)
                else:
                    runs.append([])
                number += 1
        return Model(runs)

    def windows(self, offsets, stride):
        low, high = min(offsets), max(offsets)
        return Model(
            [
                np.stack([run[a + o - low] for o in offsets])
                for a in range(0, len(run) - (high - low), stride)
            ]
            for run in self.runs
        )

    def patches(self, size, stride):
        tiles = [range(0, e - s + 1, t) for e, s, t in zip(EXTENT, size, stride, strict=True)]
        cut = [
            sample[..., y : y + size[0], x : x + size[1]]
            for sample in self.samples
            for y, x in product(*tiles)
        ]
        return Model([each] for each in cut)


@st.composite
def stores(draw, most=23):
    lengths = draw(st.lists(st.integers(0, most), min_size=1, max_size=3))
    sources, runs, first = [], [], 0
    for length in lengths:
        rows = np.arange(first, first + length * 30).reshape(length, *EXTENT)
        first += length * 30
        chunks = (draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.integers(1, 7)))
        kind = draw(st.sampled_from(["memory", "boxes", "rows"]))
        inside = st.sets(st.integers(1, length - 1), max_size=2) if length > 1 else st.just(())
        seams = [] if kind == "memory" else sorted(draw(inside))
        made = Chunked(rows, chunks, ("y", "x"), boxes=kind == "boxes", seams=seams)
        sources.append(MemorySource(rows) if kind == "memory" else made)
        runs += [list(run) for run in np.split(rows, seams)]
    return sources, Model(runs)


OFFSETS = st.lists(st.integers(-4, 6), min_size=1, max_size=4, unique=True)
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 6))


@st.composite
def verbs(draw, source, model, allowed):
    verb = draw(st.sampled_from(allowed))
    if verb == "select":
        mask = np.array(
            draw(st.lists(st.booleans(), min_size=len(source), max_size=len(source))), bool
        )
        chosen = (
            mask if draw(st.booleans()) else draw(st.permutations(np.flatnonzero(mask).tolist()))
        )
        return (
            source.select(np.array(chosen, mask.dtype if chosen is mask else int)),
            model.select(np.flatnonzero(mask)),
            verb,
        )
    if verb == "windows":
        offsets, stride = draw(OFFSETS), draw(st.integers(1, 4))
        return source.windows(offsets=offsets, stride=stride), model.windows(offsets, stride), verb
    size, stride = draw(SIZES), draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return source.patches(size, stride=stride), model.patches(size, stride), verb


def taken(source, samples):
    out = {n: np.full((len(samples), *f.shape), -1, f.dtype) for n, f in source.fields.items()}
    source.take(np.asarray(samples, np.int64), out)
    return out if "" not in out else list(out[""])


def everything(source):
    out = {n: np.full((len(source), *f.shape), -1, f.dtype) for n, f in source.fields.items()}
    source.read(0, len(source), out)
    return out if "" not in out else list(out[""])


def bag(samples):
    return Counter((sample.shape, sample.tobytes()) for sample in samples)


def same(found, expected):
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


@given(st.data())
def test_chains_of_rows_equal_their_enumeration_in_order(data):
    sources, model = data.draw(stores())
    source = concatenate(sources)
    for _ in range(data.draw(st.integers(1, 3))):
        source, model, _ = data.draw(verbs(source, model, ["select", "windows"]))
    assert same(everything(source), model.samples)
    borders = np.cumsum([len(run) for run in model.runs])[:-1].tolist()
    assert source.seams == borders
    some = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=9)) if len(source) else []
    assert same(taken(source, some), [model.samples[i] for i in some])
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(source))] * 2)))
    view = source.view(start, stop)
    assert view is None or same(list(view[""]), model.samples[start:stop])


@given(st.data())
def test_verbs_before_and_after_concatenation_agree(data):
    sources, _ = data.draw(stores())
    offsets, stride = data.draw(OFFSETS), data.draw(st.integers(1, 3))
    before = concatenate([s.windows(offsets=offsets, stride=stride) for s in sources])
    after = concatenate(sources).windows(offsets=offsets, stride=stride)
    assert same(everything(before), everything(after))
    assert (before.seams, before.cells.tolist()) == (after.seams, after.cells.tolist())


@given(st.data())
def test_patches_in_any_chain_are_each_delivered_once(data):
    sources, model = data.draw(stores(most=9))
    rows, source = model, concatenate(sources)
    source, model, verb = data.draw(verbs(source, model, ["select", "windows", "patches"]))
    if verb == "patches":  # windows of it are the same tile over time
        tiles = source.layout.size, source.layout.step
        offsets, stride = data.draw(OFFSETS), data.draw(st.integers(1, 3))
        source = source.windows(offsets=offsets, stride=stride)
        model = rows.windows(offsets, stride).patches(*tiles)
    else:
        source, model, _ = data.draw(verbs(source, model, ["patches"]))
    found = everything(source)
    assert bag(found) == bag(model.samples)
    some = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=9)) if found else []
    assert same(taken(source, some), [found[i] for i in some])
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found))), bool
    )
    chosen = source.select(mask)
    assert same(everything(chosen), [found[i] for i in np.flatnonzero(mask)])
    with pytest.raises(PlanError, match=r"then windows, then patches"):
        chosen.windows(2)
    with pytest.raises(PlanError, match="smaller sizes at once"):
        source.patches((1, 1))


def locations(source, samples):
    found = source.locate(np.asarray(samples, np.int64))[""]
    return found.leaf, found.rows.reshape(len(samples), -1), found.corner


@given(st.data())
def test_a_cell_is_of_one_file_and_begins_in_one_chunk(data):
    sources, model = data.draw(stores())
    source = concatenate(sources)
    for allowed in (["select", "windows"], ["patches", "select", "windows"]):
        source, model, _ = data.draw(verbs(source, model, allowed))
    cells = source.cells.tolist()
    grids = {leaf.chunks[1:] for leaf in source.leaves}
    assert cells[0] == 0 and cells[-1] == len(source) and (np.diff(cells) > 0).all()
    assert len(source.cells) == len(cells) - 1
    sizes = sorted(np.diff(cells).tolist())
    assert not sizes or source.block_samples == sizes[(len(sizes) - 1) // 2]
    for begin, end in pairwise(cells):
        leaf, rows, corner = locations(source, np.arange(begin, end))
        first, last = source.cells.around(np.arange(begin, end))
        assert set(first.tolist()) == {begin} and set(last.tolist()) == {end}
        assert len(np.unique(leaf)) == 1
        chunks = source.leaves[int(leaf[0])].chunks
        assert len(np.unique(rows.min(1) // chunks[0])) == 1
        if len(grids) == 1:  # files of different chunking: tiles of a row are one cell
            assert len(np.unique(corner // chunks[1:], axis=0)) == 1


@given(st.data())
def test_spans_hold_every_row_once_and_places_find_the_samples(data):
    sources, model = data.draw(stores(most=12))
    source = concatenate(sources)
    for allowed in (["select", "windows"], ["patches", "select", "windows"]):
        source, model, _ = data.draw(verbs(source, model, allowed))
    if not len(source):
        return
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(source))] * 2)))
    stop = max(stop, start + 1) if start < len(source) else stop
    block = np.arange(min(start, len(source) - 1), stop)
    (spans,) = source.needs(block).values()
    held = [np.full(span.shape, -1) for span in spans]
    for span, array in zip(spans, held, strict=True):
        read_span(source.leaves[span.leaf], span, array)
    batch = block[
        np.array(data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1, max_size=5)))
    ]
    output = source.outputs[""]
    places = source.places(batch, {output.store: spans})[""]
    if output.cut:
        found = np.empty((len(batch), *output.shape), int)
        gather_patches(found, places, output, spans, held)
    else:
        rows = [(span.leaf, row) for span in spans for row in range(span.start, span.stop)]
        assert len(set(rows)) == len(rows)
        found = np.concatenate(held)[places.index]
    assert same(found, taken(source, batch))


@given(st.data())
def test_patches_of_pairs_and_static_maps_equal_their_enumeration(data):
    length = data.draw(st.integers(1, 12))
    rows = np.arange(length * 30).reshape(length, *EXTENT)
    chunks = tuple(data.draw(st.integers(1, 5)) for _ in range(3))
    stores = [Chunked(each, chunks, ("y", "x")) for each in (rows, -rows[:1])]
    both = zip_sources(dict(zip(["f", "map"], stores, strict=True)), rates={"map": 0})
    offsets = {"a": ("f", data.draw(OFFSETS)), "b": ("f", data.draw(OFFSETS)), "map": [0]}
    size, random = data.draw(SIZES), data.draw(st.booleans())
    source = both.windows(offsets=offsets).patches(size, random=random).drawn(1, 2)
    if not len(source):
        return
    found, at = everything(source), source.locate(np.arange(len(source)))
    for name in offsets:
        for value, row, (y, x) in zip(found[name], at[name].rows, at[name].corner, strict=True):
            whole = -rows[0] if name == "map" else rows[row]
            assert np.array_equal(value, whole[..., y : y + size[0], x : x + size[1]])
        assert np.array_equal(at[name].corner, at["a"].corner)
    low = min(offsets["a"][1] + offsets["b"][1])
    anchors = at["a"].rows[:, 0] - offsets["a"][1][0] + low
    assert np.array_equal(
        at["b"].rows - anchors[:, None], np.tile(offsets["b"][1], (len(source), 1)) - low
    )
    spans = source.needs(np.arange(len(source)))
    held = {store: [np.empty(span.shape, int) for span in each] for store, each in spans.items()}
    for store, each in spans.items():
        for span, array in zip(each, held[store], strict=True):
            read_span(source.leaves[span.leaf], span, array)
    for name, places in source.places(np.arange(len(source)), spans).items():
        output, out = source.outputs[name], np.empty_like(found[name])
        gather_patches(out, places, output, spans[output.store], held[output.store])
        assert np.array_equal(out, found[name])


@given(st.data())
def test_a_read_decodes_each_chunk_once(data):
    length = data.draw(st.integers(1, 40))
    store = Chunked(
        np.arange(length * 30).reshape(length, *EXTENT), (data.draw(st.integers(1, 8)), *EXTENT)
    )
    source, model = store.select(range(length)), Model([list(store.rows)])
    for _ in range(2):
        source, model, _ = data.draw(verbs(source, model, ["select", "windows"]))
    everything(source)
    assert all(count == 1 for count in store.decoded.values())


@given(st.data(), st.integers(0, 2**64 - 1), st.integers(0, 50))
def test_random_patches_are_a_function_of_seed_epoch_and_sample(data, seed, epoch):
    sources, _ = data.draw(stores(most=9))
    size = data.draw(SIZES)
    source = concatenate(sources).patches(size, random=True).drawn(seed, epoch)
    if not len(source):
        return
    samples = np.array(data.draw(st.permutations(range(len(source))))[:7])
    leaf, rows, corner = locations(source, samples)
    assert (corner >= 0).all() and (corner + size <= EXTENT).all()
    for i in range(len(samples)):  # alone, in any order, on any rank: the same
        alone = locations(source, samples[i : i + 1])
        assert all(
            np.array_equal(a[0], b[i]) for a, b in zip(alone, (leaf, rows, corner), strict=True)
        )
    for value, at, row, (y, x) in zip(taken(source, samples), leaf, rows, corner, strict=True):
        whole = everything(source.leaves[at].source)
        assert np.array_equal(value, whole[row[0]][y : y + size[0], x : x + size[1]])


def test_random_corners_are_uniform_over_epochs():
    source = MemorySource(np.zeros((1, 40, 40))).patches((9, 9), random=True)
    counts = np.zeros(32)
    for epoch in range(500):
        corner = source.drawn(3, epoch).locate(np.arange(len(source)))[""].corner
        counts += np.bincount(corner[:, 0], minlength=32)
    expected = counts.sum() / 32
    assert ((counts - expected) ** 2 / expected).sum() < 62  # 31 degrees of freedom, p = 0.001


def test_joined_parts_do_not_share_their_draws():
    part = MemorySource(np.zeros((50, 400, 400), "i1")).patches((9, 9), random=True)
    joined, n = concatenate([part, part]), len(part)
    first, second = (joined.locate(np.arange(n) + k)[""].corner for k in (0, n))
    assert (first == second).all(axis=1).mean() < 0.02


def test_image_and_mask_get_the_same_random_crop_and_labels_stay_whole():
    image = Chunked(np.zeros((6, 3, 40, 40)), (1, 3, 16, 16), ("c", "y", "x"))
    mask = Chunked(np.zeros((6, 40, 40)), (1, 16, 16), ("y", "x"))
    label = Chunked(np.arange(6), (6,))
    sizes = {"y": 9, "x": 9}
    both = zip_sources({"image": image, "mask": mask, "label": label}).patches(sizes, random=True)
    cut_first = zip_sources(
        {"image": image.patches(sizes, random=True), "mask": mask.patches((9, 9), random=True)}
    )
    for source in (both, cut_first):
        found = source.drawn(5, 2).locate(np.arange(len(source)))
        assert np.array_equal(found["image"].corner[:, 1:], found["mask"].corner)
        assert np.array_equal(found["image"].rows, found["mask"].rows)
    assert both.fields["label"].shape == () and both.fields["image"].shape == (3, 9, 9)
    assert np.array_equal(everything(both)["label"], found["image"].rows)


def test_windows_of_windows_follow_the_stride():
    made = MemorySource(np.arange(20)).windows(offsets=[0, 1], stride=3).windows(2, stride=2)
    assert everything(made)[1].tolist() == [[6, 7], [9, 10]]


def test_gaps_inside_of_a_chunk_are_no_borders_of_cells():
    chosen = Chunked(np.arange(40), (10,)).select([0, 2, 3, 9, 10, 19, 35])
    assert chosen.cells.tolist() == [0, 4, 6, 7]
    assert chosen.seams == [1, 3, 5, 6]
    windows = Chunked(np.arange(16), (4,), seams=[6]).windows(3)  # anchors 0 to 3 and 6 to 13
    assert windows.cells.tolist() == [0, 4, 6, 10, 12]


def test_names_and_their_own_offsets():
    rows = np.arange(20)
    source = MemorySource({"t2m": rows, "z": rows + 100})
    made = source.windows(offsets={"x": ("t2m", [-1, 0]), "y": ("t2m", [6]), "z": [0]})
    batch = everything(made)
    assert len(made) == 13
    assert batch["x"][0].tolist() == [0, 1] and batch["y"][0].tolist() == [7]
    assert batch["z"][0].tolist() == [101] and batch["y"][-1].tolist() == [19]
    assert len(source.windows(offsets=[6])) == 20  # alone, an offset loses nothing


def test_rates():
    lengths = {"base": 12, "audio": 24, "video": 6, "map": 1}
    sources = {name: MemorySource(np.arange(n)) for name, n in lengths.items()}
    made = zip_sources(sources, rates={"audio": 2, "video": 0.5, "map": 0})
    assert made.fields["audio"].shape == (2,) and made.fields["map"].shape == ()
    windows = made.windows(4, stride=2)
    batch = everything(windows)
    assert len(windows) == 5
    assert batch["base"][1].tolist() == [2, 3, 4, 5]
    assert batch["audio"][1].ravel().tolist() == list(range(4, 12))
    assert batch["video"][1].tolist() == [1, 2]
    assert batch["map"].tolist() == [0] * 5
    with pytest.raises(PlanError, match="whole number of rows"):
        made.windows(3)


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_zipped_windows_equal_their_enumeration(data, fast, slow, stride):
    size = data.draw(st.integers(0, 8)) * slow
    length = data.draw(st.integers(1, 3)) * slow
    sources = {
        "base": Chunked(np.arange(size), (data.draw(st.integers(1, 5)),)),
        "fast": Chunked(np.arange(size * fast), (data.draw(st.integers(1, 5)),)),
        "slow": Chunked(np.arange(size // slow), (data.draw(st.integers(1, 5)),)),
    }
    made = zip_sources(sources, rates={"fast": fast, "slow": 1 / slow}).windows(
        length, stride=stride
    )
    anchors = np.arange(0, max(0, size - length + 1), stride)
    rows = anchors[:, None] + np.arange(length)
    batch = everything(made)
    assert np.array_equal(batch["base"], rows)
    steps = rows[..., None] * fast + np.arange(fast)
    assert np.array_equal(batch["fast"], steps if fast > 1 else rows)
    assert np.array_equal(batch["slow"], rows[:, ::slow] // slow)


def test_cell_numbering_keeps_thick_chunks_together():
    store = Chunked(np.zeros((2, 2, 64, 64, 64), "i1"), (1, 1, 32, 16, 16), ("c", "z", "y", "x"))
    planes = store.patches({"c": 1, "z": 1, "y": 32, "x": 32})
    assert planes.block_samples == 32
    for start in range(0, len(planes), 32):
        out = np.empty((32, 1, 1, 32, 32), "i1")
        planes.read(start, start + 32, {"": out})
    assert set(store.decoded.values()) == {1}


def test_random_patches_of_a_plane_decode_each_chunk_once():
    store = Chunked(np.zeros((3, 64, 64), "i1"), (1, 16, 16))
    everything(store.patches((8, 8), random=True).drawn(1, 2))
    assert set(store.decoded.values()) == {1}


def test_patches_are_split_before_they_are_made():
    patches = Chunked(np.zeros((9, 8, 8)), (4, 8, 8)).patches((4, 4))
    with pytest.raises(PlanError, match="split first"):
        patches.split({"a": 0.5, "b": 0.5}, by="time")


def test_images_of_different_shapes_are_joined_as_patches():
    images = [
        np.arange(a * b).reshape(1, a, b) + 1000 * i
        for i, (a, b) in enumerate([(9, 12), (7, 5), (20, 4)])
    ]
    sources = [Chunked(image, (1, 4, 4), ("y", "x")) for image in images]
    joined = concatenate([source.patches({"y": 3, "x": 4}) for source in sources])
    expected = [
        image[0, y : y + 3, x : x + 4]
        for image in images
        for y in range(0, image.shape[1] - 2, 3)
        for x in range(0, image.shape[2] - 3, 4)
    ]
    assert bag(everything(joined)) == bag(expected)


def test_windows_over_joined_patches_are_those_of_each_part():
    rows = [np.arange(n * 30).reshape(n, *EXTENT) + 10_000 * n for n in (5, 8)]
    joined = concatenate([Chunked(r, (2, 3, 3)).patches((2, 3)) for r in rows]).windows(3)
    model = Model([list(r) for r in rows]).windows([0, 1, 2], 1).patches((2, 3), (2, 3))
    assert bag(everything(joined)) == bag(model.samples)


def test_huge_sources_take_no_memory():
    class Huge(Chunked):
        def __init__(self):
            super().__init__(np.zeros((1, 64, 64), "i1"), (3, 16, 16), ("y", "x"))
            self._length = 10**15

    source = Huge()
    parts = source.split({"train": 0.9, "val": 0.1}, by="time")
    for stride in (1, 2, 3):
        made = parts["train"].windows(7, stride=stride).patches({"y": 20, "x": 20})
        found = made.locate(np.array([0, len(made) - 1]))[""]
        assert found.rows[0].tolist() == list(range(7))
        assert 9 * 10**14 - 3 <= found.rows[-1][-1] < 9 * 10**14
        assert made.block_samples in (1, 2, 3)


class Own:
    """A class that only has the members of `Source`."""

    block_samples = 4

    @property
    def fields(self):
        return {"x": Field((2,), np.dtype("i8"))}

    def __len__(self):
        return 10

    def fingerprint(self):
        return "own"

    def read(self, start, stop, out):
        self.take(np.arange(start, stop), out)

    def take(self, indices, out):
        out["x"][: len(indices)] = indices[:, None] * [1, 10]


@pytest.mark.parametrize("wrap", [lambda own: concatenate([own]), composed, open_source])
def test_a_class_of_your_own_has_the_verbs(wrap):
    windows = wrap(Own()).windows(3).select([0, 5])
    assert everything(windows)["x"][1, :, 1].tolist() == [50, 60, 70]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.select([3, 3]), "sample 3 twice"),
        (lambda s: s.select([True] * 3), r"mask of shape \(3,\)"),
        (lambda s: s.select([10]), "indices must be from 0 to 9"),
        (lambda s: s.select([0.5]), "flat array of integers"),
        (lambda s: s.windows(), "either length or offsets"),
        (lambda s: s.windows(0), "length must be at least 1 row"),
        (lambda s: s.windows(2, stride=0), "stride must be at least 1"),
        (lambda s: s.windows(offsets=[]), "one or more integers"),
        (lambda s: s.windows(offsets={"a": [0], "b": ("x", [1])}), "no field 'x'"),
        (lambda s: s.patches((9, 9)), "no field has the axes"),
        (lambda s: s.patches({"t": 9}), "no field has the dimension 't'"),
        (lambda s: s.patches((0,)), "at least 1"),
        (lambda s: s.patches(3), "dict by dimension name or a tuple"),
        (lambda s: s.patches({"y": 2}, stride={"x": 2}), "stride of patches"),
    ],
)
def test_refusals_say_what_was_asked(call, words):
    with pytest.raises(PlanError, match=words):
        call(Chunked(np.zeros((10, 4)), (4, 4), ("y",)))


def test_sources_that_do_not_fit_together_are_described():
    with pytest.raises(SourceError) as refused:
        concatenate([np.zeros((3, 2), "f4"), np.arange(3)])
    assert "source 1 has fields {'': 'int64 []'}, the first {'': 'float32 [2]'}" in str(
        refused.value
    )
    odd = {"neurons": np.arange(803), "labels": np.arange(401)}
    with pytest.raises(SourceError, match=r"or use select\(range\(802\)\) of 'neurons'$"):
        zip_sources(odd, rates={"labels": 0.5})
    cut = open_source(odd["neurons"]).select(range(802))
    assert len(zip_sources({**odd, "neurons": cut}, rates={"labels": 0.5})) == 802


# -- splits


@given(st.data(), st.integers(0, 2**64 - 1))
def test_a_split_has_each_sample_once_and_keeps_seams(data, seed):
    sources, model = data.draw(stores())
    source = concatenate(sources)
    count = data.draw(st.integers(1, 3))
    if len(source) < count:
        return
    cuts = sorted(data.draw(st.sets(st.integers(1, 99), min_size=count - 1, max_size=count - 1)))
    shares = np.diff([0, *cuts, 100]) / 100
    parts = dict(zip("abc", shares.tolist(), strict=False))
    by = data.draw(st.sampled_from(["random", "time"]))
    made = source.split(parts, by=by, seed=seed)
    samples = [sample for part in made.values() for sample in everything(part)]
    assert bag(samples) == bag(model.samples)
    for name, part in made.items():
        assert len(part) >= 1 and abs(len(part) - parts[name] * len(source)) <= count
        rows = [sample[0, 0] // 30 for sample in everything(part)]
        assert rows == sorted(rows)
        jumps = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
        assert set(jumps) <= set(part.seams)
    assert by != "time" or same(samples, model.samples)


@given(st.data())
def test_no_group_is_in_two_parts(data):
    groups = data.draw(st.lists(st.integers(0, 9), min_size=4, max_size=60))
    if len(set(groups)) < 3:
        return
    source = MemorySource({"g": np.array(groups)})
    parts = source.split(
        {"a": 0.6, "b": 0.3, "c": 0.1}, by="group", groups=data.draw(st.sampled_from([groups, "g"]))
    )
    found = {name: everything(part)["g"].tolist() for name, part in parts.items()}
    assert sorted(chain(*found.values())) == sorted(groups)
    assert all(found.values())
    assert sum(len(set(each)) for each in found.values()) == len(set(groups))


def test_a_random_split_is_of_whole_chunks_and_sessions_are_groups():
    store = Chunked(np.arange(1000), (10,))
    parts = store.split({"train": 0.8, "val": 0.2})
    chunks = [{row // 10 for row in everything(part)} for part in parts.values()]
    assert [len(part) for part in parts.values()] == [800, 200]
    assert not chunks[0] & chunks[1]
    sessions = concatenate([MemorySource(np.full(n, n)) for n in (5, 6, 7, 8, 9)])
    found = [
        set(map(int, everything(p)))
        for p in sessions.split({"a": 0.6, "b": 0.4}, by="group").values()
    ]
    assert not found[0] & found[1] and found[0] | found[1] == {5, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"a": 0.5},), "add up to 1"),
        (({"a": 5, "b": 6},), "add up to 10 samples"),
        (({"a": 1.5, "b": -0.5},), "at least 0"),
        (({f"{i}": 1 / 16 for i in range(16)},), "cannot split 10 samples into 16"),
        (({"a": 0.5, "b": 0.5}, "shuffle"), "by must be one of"),
        (({"a": 0.5, "b": 0.5}, "time", [0]), "groups is for by='group'"),
        (({"a": 0.5, "b": 0.5}, "group", [0]), "one per sample"),
        (({"a": 0.5, "b": 0.5}, "group"), "cannot split 1 groups"),
        ((7,), "dict of shares"),
    ],
)
def test_splits_that_cannot_be_are_refused(arguments, words):
    parts, by, groups = (
        (*arguments, "random", None)[:3] if len(arguments) == 1 else (*arguments, None)[:3]
    )
    with pytest.raises(PlanError, match=words):
        MemorySource(np.arange(10)).split(parts, by=by, groups=groups)


# -- statistics


VALUES = st.one_of(st.floats(-1e6, 1e6, width=32), st.just(float("nan")))


@given(st.data())
def test_statistics_equal_those_of_numpy(data):
    shape = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 3), st.integers(1, 2)))
    items = data.draw(st.lists(VALUES, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    offset = data.draw(st.sampled_from([0, 1e9]))
    rows = np.array(items, "f8").reshape(shape) + offset
    source = Chunked(rows, (data.draw(st.integers(1, 5)), *shape[1:]), ("level", "x"))
    for per in (None, "level", 1):
        axes = {None: (0, 1, 2), "level": (0, 2), 1: (0, 1)}[per]
        found = source.statistics(per=per, progress=False)[""]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of slices that are all NaN
            expected = [f(rows, axis=axes) for f in (np.nanmean, np.nanstd, np.nanmin, np.nanmax)]
        np.testing.assert_allclose(found.mean, expected[0], rtol=1e-12)
        np.testing.assert_allclose(found.std, expected[1], rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found.min, expected[2])
        np.testing.assert_array_equal(found.max, expected[3])
        np.testing.assert_array_equal(found.nans, np.isnan(rows).sum(axis=axes))
        np.testing.assert_array_equal(found.count, (~np.isnan(rows)).sum(axis=axes))


def test_statistics_of_many_blocks_integers_and_infinite_values():
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((9000, 1000)) + 1e6).astype("f4")  # one block has 16 MB
    rows += np.arange(9000, dtype="f4")[:, None] / 100
    found = Chunked(rows, (100, 1000)).statistics(progress=False)[""]
    np.testing.assert_allclose(found.mean, rows.mean(dtype="f8"), rtol=1e-14)
    np.testing.assert_allclose(found.std, rows.std(dtype="f8"), rtol=1e-9)
    big = MemorySource({"i": np.array([2**62, 2**62 + 1]), "s": np.array([b"a", b"b"])})
    assert big.statistics()["i"].max == 2**62 + 1 and "s" not in big.statistics()
    infinite = MemorySource(np.array([1.0, np.inf, 2.0])).statistics()[""]
    assert infinite.mean == np.inf and np.isnan(infinite.std)
    assert infinite.to_dict()["count"] == 3
    with pytest.raises(PlanError, match="no field has the axis per='z'"):
        big.statistics(per="z")


def test_groups_are_texts_or_numbers_and_texts_may_be_a_ragged_field():
    names = ["ann", "bo", "ann", "cy", "bo", "ann"]
    table = open_source(pa.table({"name": names, "id": range(6)}))
    for groups in ("name", names, np.array(names, object)):
        parts = table.split({"a": 0.5, "b": 0.5}, by="group", groups=groups)
        found = []
        for part in parts.values():
            out = {"id": np.empty(len(part), np.int64)}
            part.read(0, len(part), out)
            found.append({names[i] for i in out["id"]})
        assert set.union(*found) == set(names) and not set.intersection(*found)
    for wrong in ([None] * 6, ["ann", 1, None, 2, 3, 4]):
        with pytest.raises(PlanError, match="groups must all be numbers or all be text"):
            table.split({"a": 0.5, "b": 0.5}, by="group", groups=np.array(wrong, object))


def test_lists_of_different_lengths_are_refused():
    source, ragged = open_source(np.zeros((3, 2))), [[1], [2, 3], [1]]
    with pytest.raises(PlanError, match="indices_or_mask must be an array"):
        source.select(ragged)
    with pytest.raises(PlanError, match="groups must be one label per sample"):
        source.split({"a": 0.5, "b": 0.5}, by="group", groups=ragged)


def test_names_of_offsets_are_strings_and_sizes_may_be_an_array():
    with pytest.raises(PlanError, match="names of outputs must be strings, got 1"):
        open_source(np.zeros(9)).windows(offsets={1: [0]})
    assert len(open_source(np.zeros((2, 8, 8))).patches(np.array([4, 4]))) == 8


def test_one_number_is_the_stride_of_every_axis():
    source = MemorySource(np.zeros((3, 64, 32)))
    assert len(source.patches((16, 16), stride=8)) == 3 * 7 * 3
    with pytest.raises(PlanError, match="stride"):
        source.patches((16, 16), stride=True)


def test_a_split_of_samples_that_overlap_warns_and_following_the_advice_does_not(caplog):
    source, parts = open_source(np.arange(100)), {"train": 0.8, "val": 0.2}
    overlapping = [source.windows(5), source.windows(5).select(range(50))]
    overlapping.append(open_source(np.zeros((9, 8, 8))).patches((4, 4), stride=2))
    for each in overlapping:
        caplog.clear()
        each.split(parts)
        assert "call split first, then windows or patches" in caplog.text
    caplog.clear()
    apart = [part.windows(5) for part in source.split(parts, by="time").values()]
    rows = [np.empty((len(part), 5), np.int64) for part in apart]
    for part, out in zip(apart, rows, strict=True):
        part.read(0, len(part), {"": out})
    assert not np.intersect1d(*rows).size
    source.windows(5, stride=5).split(parts)
    open_source(np.zeros((9, 8, 8))).patches((4, 4)).split(parts)
    assert not caplog.text


def test_sizes_of_patches_that_cannot_be_meant_are_named():
    images = zip_sources({"image": open_source(np.zeros((2, 3, 32, 48)))})
    assert "none fits into (32, 48)" in repr(images.patches((64, 8), random=True))
    named = Chunked(np.zeros((2, 32, 48)), (1, 8, 8), ("lat", "lon"))
    with pytest.raises(PlanError, match=r"'lt' of sizes=.*did you mean 'lat'"):
        named.patches({"lt": 8, "lon": 8})
