"""Any chain of verbs streams: held rows, expanded samples and `take` give the same."""

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from penstock import ChunkedDataLoader, StreamLoader
from penstock.errors import PlanError
from penstock.loaders import stream_settings
from penstock.order import Cursor
from penstock.sources.base import composed
from penstock.sources.memory import MemorySource
from penstock.streaming import copies
from penstock.streaming.planner import Segment, plan_parts
from penstock.testing import WatchedSource

ROWS = np.arange(60 * 6 * 8, dtype="i4").reshape(60, 6, 8)


class Chunked(WatchedSource):
    """A source that decodes chunks of rows, and has seams if asked."""

    def __init__(self, array, chunk, seams=()):
        super().__init__(array, block_samples=chunk)
        self._seams = list(seams)

    @property
    def seams(self):
        return self._seams


@st.composite
def chains(draw):
    """A source, with one to three verbs applied."""
    cuts = draw(st.sets(st.integers(1, 59), max_size=3))
    source = composed(Chunked(ROWS, draw(st.integers(1, 20)), sorted(cuts)))
    verbs = draw(
        st.lists(st.sampled_from(["select", "windows", "patches"]), min_size=1, max_size=3)
    )
    for verb in verbs:
        if verb == "select":
            keep = draw(st.lists(st.booleans(), min_size=len(source), max_size=len(source)))
            source = source.select(np.array(keep, bool)) if any(keep) else source
        elif verb == "windows":
            offsets = draw(st.sampled_from([range(2), range(5), [0, 1, 4], [-1, 7]]))
            try:
                source = source.windows(offsets=list(offsets), stride=draw(st.integers(1, 3)))
            except PlanError:
                assume(False)
        else:
            stride = draw(st.sampled_from([None, (2, 2), (1, 3)]))
            try:
                source = source.patches((2, 3), stride=stride, random=draw(st.booleans()))
            except PlanError:
                assume(False)
        assume(len(source) >= 1)
    return source


def taken(source, samples, seed, epoch):
    field = source.fields[""]
    out = np.empty((len(samples), *field.shape), field.dtype)
    source.drawn(seed, epoch).take(np.asarray(samples), {"": out})
    return out


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    chains(),
    st.integers(2, 9),
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["held", "expanded", "as chosen"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_every_chain_delivers_what_take_returns(
    source, batch, block, window, world, way, compiled, drop_last, data
):
    assume(len(source) >= batch * world)
    options = {
        "block_samples": block, "window_blocks": window, "seed": 3, "drop_last": drop_last,
        "world_size": world, "threads": 2,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        if way != "as chosen":
            patch.setattr(stream_settings, "HELD_EXPANSION", 0 if way == "held" else 10**9)
        if way == "held":
            patch.setattr(stream_settings, "ENOUGH_BLOCKS", 10**9)
        patch.setattr(copies, "COMPILED", compiled and copies.COMPILED)
        seen = []
        for rank in range(world):
            with StreamLoader(source, batch, rank=rank, **options) as loader:
                stop = data.draw(st.integers(0, len(loader)))
                for epoch in range(2):
                    for step, found in enumerate(loader):
                        samples = loader.samples_at(step, epoch)
                        assert np.array_equal(found, taken(source, samples, 3, epoch))
                        if epoch == 0:
                            seen += samples.tolist()
                        if epoch == 1 and step + 1 == stop:
                            break
                state = loader.state_dict()
            with StreamLoader(source, batch, rank=rank, **options) as again:
                again.load_state_dict(state)
                samples = again.samples_at(0, 2) if stop in (0, len(again)) else None
                found = next(iter(again))
                if samples is not None:
                    assert np.array_equal(found, taken(source, samples, 3, 2))
                else:
                    samples = again.samples_at(stop, 1)
                    assert np.array_equal(found, taken(source, samples, 3, 1))
    assert len(set(seen)) == len(seen)
    if not drop_last:
        assert sorted(seen) == list(range(len(source)))


class Tiled(MemorySource):
    """Images that are decoded in chunks of 1 x 8 x 8, and count them."""

    def __init__(self, images):
        super().__init__(images)
        self.decoded = 0

    @property
    def chunks(self):
        return {"": (1, 8, 8)}

    @property
    def block_samples(self):
        return 1

    def _view(self, start, stop):
        return None

    def read_box(self, field, start, stop, low, high, out):
        (y, x), (v, w) = low, high
        self.decoded += (stop - start) * (-(-v // 8) - y // 8) * (-(-w // 8) - x // 8)
        out[...] = self._arrays[""][start:stop, y:v, x:w]

    def _read(self, start, stop, out):
        if "" in out:
            self.read_box("", start, stop, (0, 0), self._fields[""].shape, out[""])


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 1.0), ({"stride": (2, 2)}, 2.3), ({"random": True}, 3.3)],
    ids=["grid", "overlapping", "random"],
)
def test_chunks_of_patches_are_decoded_as_often_as_the_page_says(options, most):
    images = np.arange(60 * 32 * 32, dtype="i4").reshape(60, 32, 32)
    source = Tiled(images)
    patches = source.patches((4, 4), **options)
    with StreamLoader(patches, 20, memory_budget="2MB", drop_last=False) as loader:
        (page,) = [line for line in loader.describe().splitlines() if "decoding" in line]
        source.decoded = 0
        for step, batch in enumerate(loader):
            wanted = taken(patches, loader.samples_at(step, 0), loader.seed, 0)
            assert np.array_equal(batch, wanted)
        assert loader.buffer_bytes <= 2_000_000
    with StreamLoader(patches, 20, memory_budget="2MB", threads=1) as again:
        reads = list(epoch_reads(again))
        source.decoded = 0
        for read in reads:
            out = {"": np.empty((read.count, 4, 4), "i4")}
            patches.read(read.start, read.start + read.count, out)
    assert source.decoded / (60 * 16) <= most
    said = float(page.split()[1]) * len(patches) * 16 / (60 * 32 * 32)
    assert said == pytest.approx(source.decoded / (60 * 16), rel=0.15)


def epoch_reads(loader):
    """The blocks that one epoch reads."""
    plan, cursor = loader.plan, Cursor()
    segment = Segment.of(plan.steps, cursor, plan.steps.steps_from(0))
    for part in plan_parts(plan, plan.order, iter([segment])):
        yield from part.reads


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_random_patches_are_the_same_from_every_loader(executor):
    patches = composed(Chunked(ROWS, 7)).patches((2, 3), random=True)
    stream = StreamLoader(patches, 16, seed=3, drop_last=False)
    chunked = ChunkedDataLoader(patches, 16, seed=3, shuffle=True, executor=executor)
    with stream, chunked:
        epochs = []
        for _ in range(2):
            of_each = [np.concatenate([b.numpy() for b in loader]) for loader in (stream, chunked)]
            bags = [sorted(map(bytes, samples)) for samples in of_each]
            assert bags[0] == bags[1] and len(bags[0]) == len(patches)
            epochs.append(bags[0])
    assert epochs[0] != epochs[1]
