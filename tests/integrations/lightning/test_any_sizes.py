"""Lightning #19624 and its kin: whatever the sizes, every chunk is whole, and is validated."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.integrations.lightning import ChunkedTraining
from tests.integrations.lightning.fits import fit, stock

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


@st.composite
def shapes(draw):
    batch = draw(st.integers(1, 5))
    drop_last = draw(st.booleans())
    return {
        "samples": draw(st.integers(batch if drop_last else 1, 40)),
        "batch": batch,
        "drop_last": drop_last,
        "val_samples": draw(st.integers(1, 12)),
        "sizes": draw(
            st.tuples(st.none() | st.integers(1, 12), st.none() | st.integers(1, 9)).filter(any)
        ),
        "val_cycle": draw(st.booleans()),
        "limits": draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "limit_train_batches": st.integers(1, 5),
                    "limit_val_batches": st.integers(1, 5),
                    "val_check_interval": st.integers(1, 8) | st.sampled_from([0.25, 0.5]),
                    "accumulate_grad_batches": st.integers(1, 3),
                },
            )
        ),
        "chunks": draw(st.integers(1, 6)),
    }


ROTATING = {  # validations of 6 samples and of 1, three of them in one epoch of Lightning
    "samples": 3,
    "batch": 1,
    "drop_last": False,
    "val_samples": 7,
    "chunks": 2,
    "sizes": (None, 2),
    "val_cycle": True,
    "limits": {"val_check_interval": 1},
}


@settings(max_examples=40)
@example(ROTATING)
@given(shapes())
def test_every_chunk_is_whole_and_validated_whatever_the_sizes(shape):
    check(shape)


@pytest.mark.proof
@settings(max_examples=600)
@given(shapes())
def test_every_chunk_is_whole_and_validated_whatever_the_sizes_at_length(shape):
    check(shape)


def check(shape):
    n, batch, drop_last = (shape[name] for name in ("samples", "batch", "drop_last"))
    train_size, val_size = shape["sizes"]
    limits, chunks = shape["limits"], shape["chunks"]
    run = fit(
        ChunkedTraining(train_size, val_size, val_cycle=shape["val_cycle"]),
        stock(n, batch=batch, drop_last=drop_last),
        stock(shape["val_samples"], 1000, batch=3),
        max_epochs=chunks,
        **limits,
    )
    epoch = n // batch if drop_last else -(-n // batch)
    lengths = cut(epoch, train_size or epoch, chunks)
    assert run.train_batches == lengths
    check_samples(run.seen, n, epoch * batch if drop_last else n)
    assert len(run.scored) == sum(validations(length, limits) for length in lengths)
    check_scores(run, shape["val_samples"], val_size, shape["val_cycle"])


def cut(epoch: int, size: int, chunks: int) -> list[int]:
    """Batches of N chunks: full ones, and a short one at the end of every epoch."""
    one = [min(size, epoch - at) for at in range(0, epoch, size)]
    return (one * chunks)[:chunks]


def validations(batches: int, limits: dict) -> int:
    """Validations of a chunk: one, unless asked for inside chunks."""
    interval = limits.get("val_check_interval", 1.0)
    if isinstance(interval, float):
        interval = max(1, int(batches * interval))
    return batches // min(interval, batches)


def check_samples(seen: list[int], n: int, of_a_pass: int) -> None:
    for at in range(0, len(seen), of_a_pass):
        part = seen[at : at + of_a_pass]
        assert len(set(part)) == len(part) and set(part) <= set(range(n))


def check_scores(run, samples: int, size: int | None, cycle: bool) -> None:
    whole, each = range(1000, 1000 + samples), (size or samples) * 3
    if size is None or each >= samples:
        assert all(sorted(scored) == [*whole] for scored in run.scored)
    elif not cycle:
        assert {tuple(scored) for scored in run.scored} == {tuple(run.scored[0])}
        assert len(run.scored[0]) == each and set(run.scored[0]) <= set(whole)
    else:
        a_rotation = -(-samples // each)
        for at in range(0, len(run.scored) - a_rotation + 1, a_rotation):
            assert sorted(chain(*run.scored[at : at + a_rotation])) == [*whole]
