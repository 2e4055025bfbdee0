"""Keyed randomness: a pure function of (seed, purpose, epoch, sample), whoever asks."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError
from penstock.keyed import (
    Reading,
    announce,
    current_epoch,
    current_reading,
    keyed_generator,
    sample_generator,
    sample_key,
    sample_keys,
)

seeds = st.integers(0, 2**64 - 1)
samples = st.lists(st.integers(0, 2**62), min_size=1, max_size=20)
purposes = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 9)), max_size=2)


@given(samples, purposes, seeds)
def test_many_keys_at_once_are_the_keys_one_by_one(wanted, purpose, seed):
    keys = sample_keys(np.array(wanted), *purpose, seed=seed)
    assert keys.dtype == np.uint64
    assert keys.tolist() == [sample_key(sample, *purpose, seed=seed) for sample in wanted]


def test_a_sample_has_an_index_of_at_least_zero():
    for wrong in (np.array([3, -1]), np.array([0.5])):
        with pytest.raises(PlanError, match="samples must be integers of at least 0"):
            sample_keys(wrong)


def test_samples_by_other_indices_keep_their_passes():
    announce(Reading(1, 0, np.array([0, 0, 1]), passes=np.array([0, 5, 7])))
    try:
        own, other = sample_keys(np.array([0, 0, 1])), sample_keys(np.array([1, 1, 0]))
        assert len(set(own.tolist() + other.tolist())) == 6
    finally:
        announce(None)


@given(seeds, st.integers(0, 2**40), st.integers(0, 2**62))
def test_the_loaders_seed_and_epoch_are_in_the_key(seed, epoch, sample):
    announce(Reading(seed, epoch, np.array([sample])))
    try:
        key = sample_key(sample, "noise")
        assert key == sample_key(sample, "noise", seed=seed)
        assert current_epoch() == epoch and current_reading().samples.tolist() == [sample]
        announce(Reading(seed, epoch + 1, np.array([sample])))
        assert sample_key(sample, "noise") != key
    finally:
        announce(None)


def test_purposes_samples_and_seeds_keep_draws_apart():
    keys = {
        sample_key(sample, *purpose, seed=seed)
        for sample in range(20)
        for purpose in ((), ("noise",), ("mask",), ("noise", 1), (1, "noise"))
        for seed in (0, 1)
    }
    assert len(keys) == 20 * 5 * 2


def test_generators_repeat_and_are_apart_from_the_ambient_one():
    before = torch.get_rng_state()
    draws = [torch.rand(4, generator=sample_generator(i, "x", seed=1)) for i in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    again = torch.rand(4, generator=keyed_generator(7, "mask", 3))
    assert torch.equal(again, torch.rand(4, generator=keyed_generator(7, "mask", 3)))
    assert not torch.equal(again, torch.rand(4, generator=keyed_generator(7, "mask", 4)))
    assert torch.equal(before, torch.get_rng_state())


def test_outside_of_a_loader_there_is_no_reading():
    assert current_reading() is None
    assert current_epoch() == 0 and current_epoch(default=-1) == -1
    assert sample_key(3) == sample_key(3, seed=0)


def test_a_reading_is_of_its_thread():
    announce(Reading(1, 2, np.array([3])))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_reading()))
    thread.start()
    thread.join()
    announce(None)
    assert seen == [None]


def test_draws_of_neighbouring_samples_are_independent():
    draws = torch.stack([torch.randn(8, generator=sample_generator(i)) for i in range(2000)])
    correlation = (draws[1:] * draws[:-1]).mean().item()
    assert abs(correlation) < 5 / np.sqrt(2000 * 8) and abs(draws.mean().item()) < 0.04
