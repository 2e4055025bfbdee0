"""Loaders can be pickled and copied, shown in one line, and name the type of their batches."""

import copy
import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import TensorDataset, default_collate

from penstock import (
    BlockOrder,
    ChunkedDataLoader,
    DataLoaderFactory,
    Loader,
    PlanError,
    SequentialOrder,
    ShuffledOrder,
    StreamLoader,
)
from penstock.loaders.partition import validation_loader
from penstock.testing import same_batch


def zarr_stream(tmp_path, **options):
    path = tmp_path / "x.zarr"
    if not path.exists():
        zarr.create_array(path, data=np.arange(60, dtype=np.float32), chunks=(10,))
    return StreamLoader(str(path), 4, **options)


DATA = TensorDataset(torch.arange(60), torch.arange(60) * 2)
LOADERS = {
    "chunked": lambda _: ChunkedDataLoader(DATA, 4, 5),
    "unchunked": lambda _: ChunkedDataLoader(DATA, 4, shuffle=True),
    "in order": lambda _: ChunkedDataLoader(DATA, 4),
    "workers": lambda _: ChunkedDataLoader(DATA, 4, 5, num_workers=1),
    "short-lived workers": lambda _: ChunkedDataLoader(
        DATA, 4, 5, num_workers=1, persistent_workers=False
    ),
    "threads": lambda _: ChunkedDataLoader(DATA, 4, 5, executor="threads"),
    "order of its own": lambda _: ChunkedDataLoader(DATA, 4, order=BlockOrder(60, 3, 5, 2)),
    "ranks": lambda _: ChunkedDataLoader(DATA, 4, rank=1, world_size=3),
    "evaluation": lambda _: ChunkedDataLoader(DATA, 4, evaluation=True),
    "validation": lambda _: validation_loader(DATA, 4, 3),
    "factory": lambda _: DataLoaderFactory.create_training_loader(DATA, 4),
    "stream of an array": lambda _: StreamLoader(np.arange(60.0), 4, block_samples=5),
    "stream in chunks": lambda _: StreamLoader(np.arange(60.0), 4, chunk_size=5),
    "stream of Zarr": zarr_stream,
}
COPIES = {
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
@pytest.mark.parametrize("name", LOADERS)
def test_a_copy_of_a_loader_in_use_continues_at_its_position(name, how, tmp_path):
    with LOADERS[name](tmp_path) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        again = COPIES[how](loader)
        assert again.state_dict() == loader.state_dict()
        assert len(again) == len(loader) and repr(again) == repr(loader)
        with again:
            expected = LOADERS[name](tmp_path)
            expected.load_state_dict(loader.state_dict())
            with expected:
                assert same_batch(list(again), list(expected))
        assert same_batch(next(batches), batch_after(LOADERS[name](tmp_path), 2))


def batch_after(loader, count):
    with loader:
        return list(islice(loader, count + 1))[-1]


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_before_and_after_an_epoch_is_as_the_original(how):
    loader = ChunkedDataLoader(DATA, 4, shuffle=True)
    assert same_batch(list(COPIES[how](loader)), list(ChunkedDataLoader(DATA, 4, shuffle=True)))
    list(loader)
    again = COPIES[how](loader)
    assert again.state_dict()["epoch"] == 1
    assert same_batch(list(again), list(islice_epoch(1)))


def islice_epoch(epoch):
    loader = ChunkedDataLoader(DATA, 4, shuffle=True)
    loader.seek(epoch)
    return loader


@pytest.mark.parametrize("how", COPIES)
def test_what_is_done_to_a_copy_leaves_the_original_alone(how):
    for make in (LOADERS["chunked"], LOADERS["stream of an array"]):
        with make(None) as loader, COPIES[how](loader) as other:
            list(other)
            other.set_batch_size(7)
            other.seek(3)
            assert loader.batch_size == 4 and loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("how", COPIES)
def test_a_start_method_is_kept(how):
    loader = ChunkedDataLoader(DATA, 4, num_workers=1, multiprocessing_context="forkserver")
    context = COPIES[how](loader).multiprocessing_context
    assert context.get_start_method() == "forkserver"


def test_a_shallow_copy_shares_the_data():
    loader = ChunkedDataLoader(DATA, 4)
    assert copy.copy(loader).dataset is DATA
    assert copy.deepcopy(loader).dataset is not DATA


@pytest.mark.parametrize("how", COPIES)
def test_what_passes_through_can_be_copied_after_use(how):
    options = {"num_workers": 1, "persistent_workers": True}
    with ChunkedDataLoader(DATA, 4, sampler=range(8), **options) as loader:
        first = list(loader)
        with COPIES[how](loader) as again:
            assert same_batch(list(again), first)


# -- one line


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_is_shown_in_one_informative_line(name, tmp_path):
    with LOADERS[name](tmp_path) as loader:
        next(iter(loader))
        shown = repr(loader)
        assert "\n" not in shown and len(shown) < 200
        state = loader.state_dict()
        for part in (
            type(loader).__name__,
            "60 samples" if name != "validation" else "12 samples",
            "batch_size=4",
            f"chunk_size={loader.chunk_size}",
            f"order={state['order']!r}",
            f"seed={state['seed']}",
            f"epoch={state['epoch']}, position={state['position']}",
        ):
            assert part in shown, (part, shown)


def test_what_passes_through_says_so():
    shown = repr(ChunkedDataLoader(DATA, 4, sampler=range(8)))
    assert shown == "<ChunkedDataLoader: TensorDataset, batch_size=4, order of torch (sampler)>"


# -- the type of a batch


def test_loaders_are_generic_in_the_type_of_their_batches():
    pair = tuple[torch.Tensor, torch.Tensor]
    for kind in (ChunkedDataLoader, Loader):
        assert kind[pair].__args__ == (pair,)
    loader = ChunkedDataLoader[torch.Tensor](torch.arange(6), 2)
    assert isinstance(loader, ChunkedDataLoader) and len(list(loader)) == 3

    class Own(ChunkedDataLoader[torch.Tensor]):
        """A loader of its own."""

    assert len(list(Own(torch.arange(6), 2))) == 3


def test_a_state_is_loaded_by_torchs_name_of_it():
    with StreamLoader(np.arange(60.0), 4) as stream:
        for loader in (ChunkedDataLoader(DATA, 4), stream):
            loader.load_state_dict(state_dict=loader.state_dict())


# -- the identity of an order


class Own(ShuffledOrder):
    """An order whose identity a test decides."""

    kind = "own"
    wrong, without = (), ()

    def identity(self):
        identity = super().identity() | {"order": self.kind, "phase": "warm"} | dict(self.wrong)
        return {name: value for name, value in identity.items() if name not in self.without}


def own(**changes):
    return type("Own", (Own,), changes)(60, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"wrong": {"seed": np.int64(3)}},  # JSON has none
        {"wrong": {"phase": (1, 2)}},  # comes back as a list
        {"wrong": {"phase": {1: 2}}},  # comes back with a string
        {"wrong": {"phase": float("nan")}},  # is never equal
        {"wrong": {"phase": object()}},
        {"wrong": {"position": 0}},
        {"wrong": {"epoch": 0}},
        {"wrong": {"format": "own/1"}},
        {"wrong": {"samples": 6}},
        {"wrong": {"samples": "60"}},
        {"without": ("samples",)},
        {"identity": lambda self: None},
        {"identity": lambda self: {"samples": 60, "at": next(COUNTER)}},
    ],
)
def test_an_identity_that_no_state_could_keep_is_refused_at_construction(changes):
    with pytest.raises(PlanError, match=r"a state of Own could never be loaded .*identity\(\)"):
        ChunkedDataLoader(DATA, 4, order=own(**changes))


COUNTER = iter(range(10**6))


def test_an_identity_as_the_message_asks_for_makes_states_that_load():
    loader = ChunkedDataLoader(DATA, 4, order=own())
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    again = ChunkedDataLoader(DATA, 4, order=own())
    again.load_state_dict(state)
    assert again.state_dict() == state
    other = ChunkedDataLoader(DATA, 4, order=own(wrong={"phase": "cold"}))
    with pytest.raises(ValueError, match="belongs to phase 'warm', this loader has phase 'cold'"):
        other.load_state_dict(state)


def test_something_that_is_no_order_is_refused_with_one():
    with pytest.raises(PlanError, match=r"such as ShuffledOrder\(60, seed=42\), got <class"):
        ChunkedDataLoader(DATA, 4, order=ShuffledOrder)
    loader = ChunkedDataLoader(DATA, 4, order=ShuffledOrder(60, seed=42))
    assert same_batch(list(loader), list(ChunkedDataLoader(DATA, 4, shuffle=True)))
    assert len(list(ChunkedDataLoader(DATA, 4, order=SequentialOrder(60)))) == 15


def test_a_custom_collation_survives_a_copy():
    loader = ChunkedDataLoader(list(range(6)), 2, collate_fn=default_collate)
    assert same_batch(list(pickle.loads(pickle.dumps(loader))), list(loader))
