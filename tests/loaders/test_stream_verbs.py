"""Any chain of verbs streams: held rows, expanded samples and `take` give the same."""

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from penstock import ChunkedDataLoader, StreamLoader
from penstock.errors import PlanError
from penstock.loaders import stream_settings
from penstock.sources.base import composed
from penstock.streaming import copies
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


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
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
