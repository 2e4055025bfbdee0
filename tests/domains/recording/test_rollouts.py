"""Batches of rollouts in a chunk, and how many there are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.domains.recording import (
    ChunkLatencyStats,
    calculate_chunk_params,
    sample_batch_within_chunk,
)
from penstock.errors import PlanError
from penstock.keyed import keyed_generator

INDICES, INDPTR = np.array([1, 2, 0, 4, 3, 3]), np.array([0, 2, 3, 3, 5, 6])  # five neurons


def sample(chunk_steps=100, batch_size=16, total_steps=20, zero=2, device="cpu", generator=None):
    data, stim = torch.zeros(chunk_steps, 5), torch.zeros(chunk_steps, 3)
    return sample_batch_within_chunk(
        chunk_data=data,
        chunk_stim=stim,
        wmat_indices=INDICES,
        wmat_indptr=INDPTR,
        batch_size=batch_size,
        total_steps=total_steps,
        num_neurons_to_zero=zero,
        device=device,
        generator=generator,
    )


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        ((967680, 65536, 256, 1), (15, 252, 3780)),
        ((1000, 300, 32, 1), (4, 8, 32)),
        ((1000, 300, 32, 3), (12, 8, 96)),
        ((100, 300, 32, 1), (1, 3, 3)),
        ((100, 300, 32, 4), (4, 3, 12)),
        ((100, 10, 100, 1), (10, 1, 10)),
    ],
)
def test_golden_chunk_params(sizes, want):
    assert calculate_chunk_params(*sizes) == want


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 4096), st.integers(1, 5))
def test_reported_batches_are_those_run(total, chunk, batch, passes):
    if total < batch:
        with pytest.raises(ValueError, match="are fewer than batch_size"):
            calculate_chunk_params(total, chunk, batch, passes)
        return
    chunks, each, batches = calculate_chunk_params(total, chunk, batch, passes)
    assert chunks * each == batches
    assert chunks == passes * -(-total // chunk) and each >= 1
    if each > 1:
        assert abs(batches - passes * (total // batch)) <= chunks / 2


@pytest.mark.parametrize("sizes", [(0, 1, 1, 1), (10, 0, 1, 1), (10, 5, 0, 1), (10, 5, 1, 0)])
def test_sizes_below_one_are_refused(sizes):
    with pytest.raises(PlanError, match="must be at least 1, got 0"):
        calculate_chunk_params(*sizes)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 40), st.integers(0, 5))
def test_rollouts_stay_inside_and_partners_are_there(steps, more, batch, zero):
    rng = keyed_generator(1, steps, more)
    starts, silent, needed = sample(steps + more, batch, steps, zero, generator=rng)
    assert starts.shape == (batch,) and 0 <= int(starts.min()) and int(starts.max()) < more
    assert len(set(silent.tolist())) == zero
    partners = {int(i) for n in silent.tolist() for i in INDICES[INDPTR[n] : INDPTR[n + 1]]}
    assert needed.tolist() == sorted(partners | set(silent.tolist()))
    for result in (starts, silent, needed):
        assert result.dtype == torch.int64 and result.device.type == "cpu"


def test_every_start_occurs_the_last_target_is_the_last_row():
    starts, _, _ = sample(25, 5000, 20, generator=keyed_generator(1))
    assert sorted(set(starts.tolist())) == [0, 1, 2, 3, 4]


def test_no_neurons_give_empty_indices():
    _, silent, needed = sample(zero=0)
    assert silent.shape == needed.shape == (0,)
    assert silent.dtype == needed.dtype == torch.int64


def test_a_generator_makes_it_repeatable_and_leaves_torchs_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (sample(generator=keyed_generator(7, 1, 2)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_one_it_draws_from_torchs_default():
    torch.manual_seed(3)
    one = sample()
    torch.manual_seed(3)
    other, third = sample(), sample()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], third[0])


def test_a_chunk_too_short_and_too_many_neurons_are_refused():
    with pytest.raises(ValueError, match="too short for a rollout of 20 steps"):
        sample(chunk_steps=20)
    with pytest.raises(ValueError, match=r"must be in \[0, 5\], got 6"):
        sample(zero=6)


def test_latency_summary_in_milliseconds(capsys):
    stats = ChunkLatencyStats()
    for seconds in (0.001, 0.003, 0.008):
        stats.record_chunk_get(seconds)
    stats.record_batch_times(0.01, 0.02, 0.005)
    stats.record_batch_times(forward=0.03, backward=0.04, step=0.007)
    assert stats.get_summary() == pytest.approx(
        {
            "chunk_get_mean_ms": 4.0,
            "chunk_get_max_ms": 8.0,
            "chunk_get_min_ms": 1.0,
            "batch_forward_mean_ms": 20.0,
            "batch_backward_mean_ms": 30.0,
            "batch_step_mean_ms": 6.0,
            "num_chunks": 3,
            "num_batches_sampled": 2,
        }
    )
    stats.print_summary()
    assert "chunk_get_mean_ms" in capsys.readouterr().out
    names = stats.get_summary().keys()
    stats.reset()
    empty = stats.get_summary()
    assert empty.keys() == names and set(empty.values()) == {0}
    stats.print_summary()


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_a_time_that_cannot_be_is_refused(wrong):
    stats = ChunkLatencyStats()
    with pytest.raises(ValueError, match="seconds must be"):
        stats.record_chunk_get(wrong)
    for name in ("forward", "backward", "step"):
        with pytest.raises(ValueError, match=f"{name} must be"):
            stats.record_batch_times(**{"forward": 0.1, "backward": 0.1, "step": 0.1, name: wrong})
    assert stats.get_summary()["num_chunks"] == stats.get_summary()["num_batches_sampled"] == 0
