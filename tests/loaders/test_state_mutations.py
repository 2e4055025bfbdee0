"""A state with any field changed is loaded and works, or is refused in one sentence."""

import json

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from penstock import ChunkedDataLoader, ChunkedSampler, RandomChunkLoader, StreamLoader
from penstock.errors import StateError

ARRAY = np.arange(97)
DATASET = TensorDataset(torch.arange(97))


class Chunks(RandomChunkLoader):
    """A chunk loader that is iterated as the others are."""

    def __init__(self, **options):
        super().__init__(lambda a, b: ARRAY[a:b], 97, 10, **options)

    def __iter__(self):
        self.start_epoch(4)
        while (chunk := self.get_next_chunk())[0] is not None:
            yield chunk


LOADERS = {
    "stream": lambda: StreamLoader(ARRAY, 8, chunk_size=3),
    "stream in order": lambda: StreamLoader(ARRAY, 8, shuffle=False),
    "stream, drawn seed": lambda: StreamLoader(ARRAY, 8, seed=None),
    "stream, evaluation": lambda: StreamLoader(ARRAY, 8, evaluation=True),
    "chunked": lambda: ChunkedDataLoader(DATASET, 8, 3),
    "chunked, drawn seed": lambda: ChunkedDataLoader(DATASET, 8, 3, seed=None),
    "threads": lambda: ChunkedDataLoader(DATASET, 8, executor="threads", shuffle=True),
    "sampler": lambda: ChunkedSampler(97, 10),
    "chunks": lambda: Chunks(seed=3),
    "chunks, drawn seed": lambda: Chunks(),
}
HUGE = [2**31, 2**62, 2**62 + 1, 2**63, 2**64 - 1, 2**64, 10**30]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 120)
    | st.sampled_from(HUGE)
    | st.sampled_from([-number for number in HUGE])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["abc", "block", "shuffled", "penstock/1", "penstock/2"])
    | st.lists(st.integers(0, 3), max_size=2)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=1)
)
NAMES = [
    *("format", "epoch", "position", "order", "samples", "seed", "block", "window", "lanes"),
    *("fingerprint", "chunk", "align", "overlap", "skipped", "something"),
]


@pytest.mark.parametrize("kind", LOADERS)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=2), st.data())
@example({"samples": "abc"}, None)
@example({"epoch": 2**64}, None)
@example({"position": 1.0}, None)
@example({"seed": True}, None)
def test_a_changed_state_works_or_is_refused(kind, changes, data):
    loader = LOADERS[kind]()
    try:
        before = loader.state_dict()
        state = {**before, **changes}
        if data is not None and data.draw(st.booleans()):
            del state[data.draw(st.sampled_from(sorted(state)))]
        try:
            loader.load_state_dict(state)
        except StateError as refused:
            assert "\n" not in str(refused)
            assert loader.state_dict() == before
        json.dumps(loader.state_dict())
        first = next(iter(loader), None)
        assert first is not None or kind.startswith("chunks")  # its epoch may be over
    finally:
        getattr(loader, "close", lambda: None)()


@pytest.mark.parametrize("kind", LOADERS)
def test_numbers_of_numpy_are_numbers(kind):
    loader = LOADERS[kind]()
    state = loader.state_dict()
    numbers = {n: np.int64(v) for n, v in state.items() if isinstance(v, int) and v < 2**63}
    loader.load_state_dict({**state, **numbers})
    assert loader.state_dict() == state


@pytest.mark.parametrize("kind", ["stream", "chunks"])
def test_the_parameter_is_named_as_torch_names_it(kind):
    loader = LOADERS[kind]()
    loader.load_state_dict(state_dict=loader.state_dict())
