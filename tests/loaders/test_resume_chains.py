"""Every loader and every order: a chain of resumes ends where a run that never stopped does."""

import json

import pytest

from tests.campaigns.loaders import KINDS, Options
from tests.campaigns.storages import Storages, make_storages

# worker processes start in every link of a chain: a second each
SLOW = ("ChunkedDataLoader processes", "create_loader, workers", "ReplayLoader, worker")
CASES = [pytest.param(k, marks=[pytest.mark.proof] if k in SLOW else []) for k in KINDS]
CHUNK = 5


@pytest.fixture(scope="module")
def storages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storages")
    make_storages(folder)
    return Storages(folder)


def deliver(storages, kind, state, count, epochs=None):
    """The next ``count`` batches after a state, and the state then, as a file keeps it.

    ``epochs`` gets the epoch that comes after each batch.
    """
    each, found = KINDS[kind], []
    loader = each.make(storages, each.storages[0], Options(3, 24, CHUNK))
    try:
        if state is not None:
            loader.load_state_dict(state)
        while len(found) < count:
            for batch in loader:
                found.append(each.ids(batch))
                if epochs is not None:
                    epochs.append(loader.state_dict()["epoch"])
                if len(found) == count:
                    break
        return found, json.loads(json.dumps(loader.state_dict()))
    finally:
        loader.close()


@pytest.mark.parametrize("kind", CASES)
def test_ten_resumes_end_where_a_run_that_never_stopped_does(storages, kind):
    check_chain(storages, kind, 10)


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_resumes_end_where_a_run_that_never_stopped_does(storages, kind):
    check_chain(storages, kind, 20)


def check_chain(storages, kind, links):
    whole, last = deliver(storages, kind, None, 3 * links)
    got, state = [], None
    for link in range(links):
        part, state = deliver(storages, kind, state, 1 + link % 5)
        got += part
    assert got == whole and state == last


@pytest.mark.parametrize("kind", CASES)
def test_a_resume_around_the_end_of_a_chunk_and_of_an_epoch_is_exact(storages, kind):
    epochs = [0]
    whole, last = deliver(storages, kind, None, 30, epochs)
    ends = {CHUNK, *(step for step in range(1, 30) if epochs[step] > epochs[step - 1])}
    assert len(ends) > 1 or kind == "lengths"
    for cut in sorted({end + off for end in ends for off in (-1, 0, 1)} - {0, 30}):
        first, state = deliver(storages, kind, None, cut)
        rest, after = deliver(storages, kind, state, 30 - cut)
        assert first + rest == whole and after == last
