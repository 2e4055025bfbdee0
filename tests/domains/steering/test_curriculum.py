"""The curriculum: golden probabilities, exact shares, and variants that depend on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.domains.steering.layout import Curriculum, assign_variants
from penstock.errors import ConfigError

EQUAL = dict.fromkeys(("zero", "centroid", "keyword", "residual"), 0.25)
READER_KEYS = {"zero_prob_start": 0.5, "zero_prob_end": 0.1, "epochs_total": 100}
BUILDER_KEYS = {"mode": "linear", "start_distance": 0.3, "end_distance": 0.7, "warmup_epochs": 10}

shares = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda p: sum(p) > 0.01)


@given(shares, st.integers(1, 400), st.integers(0, 2**32), st.integers(0, 10**6))
def test_every_epoch_has_each_variant_in_its_share_to_one_pair(weights, size, seed, epoch):
    part = tuple(w / sum(weights) for w in weights)
    assigned = assign_variants(size, part, seed, epoch)
    counts = np.bincount(assigned, minlength=4)
    assert counts.sum() == size
    assert (np.abs(counts - np.array(part) * size) <= 1 + 1e-6).all()
    assert all(count == 0 for count, p in zip(counts, part, strict=True) if p == 0)


def test_each_pair_gets_each_variant_with_its_probability_over_the_epochs():
    part = (0.5, 0.25, 0.15, 0.1)
    seen = np.zeros((40, 4))
    for epoch in range(2000):
        seen[np.arange(40), assign_variants(40, part, 42, epoch)] += 1
    assert np.abs(seen / 2000 - part).max() < 0.06  # five standard deviations


def test_neighbours_and_epochs_are_not_alike():
    part = (0.25,) * 4
    a, b = assign_variants(10_000, part, 42, 0), assign_variants(10_000, part, 42, 1)
    assert abs((a == b).mean() - 0.25) < 0.02
    assert abs((a[1:] == a[:-1]).mean() - 0.25) < 0.02
    assert abs((a == assign_variants(10_000, part, 43, 0)).mean() - 0.25) < 0.02


def test_variants_are_frozen():
    assigned = assign_variants(24, (0.5, 0.2, 0.2, 0.1), 42, 3)
    assert assigned.tolist() == GOLDEN


GOLDEN = [0, 1, 0, 1, 0, 2, 0, 0, 2, 2, 2, 3, 0, 3, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("epoch", "zero", "others"),
    [(0, 0.5, 1 / 6), (50, 0.3, 0.7 / 3), (100, 0.1, 0.3), (1000, 0.1, 0.3)],
)
@pytest.mark.parametrize("keys", [READER_KEYS, {"epochs_total": 100}, BUILDER_KEYS])
def test_golden_probabilities_with_either_set_of_keys(epoch, zero, others, keys):
    found = Curriculum.from_config(EQUAL, keys).probabilities(epoch)
    assert found == pytest.approx(
        {"zero": zero, "centroid": others, "keyword": others, "residual": others}
    )


@pytest.mark.parametrize("none", [None, {}])
def test_without_a_curriculum_the_configs_probabilities_stay(none):
    base = {"zero": 0.4, "centroid": 0.3, "keyword": 0.2, "residual": 0.1}
    curriculum = Curriculum.from_config(base, none)
    assert curriculum.probabilities(0) == curriculum.probabilities(500) == base
    assert curriculum.distance_limit(3) is None


def test_the_others_keep_their_proportion():
    base = {"zero": 0.5, "centroid": 0.3, "keyword": 0.2, "residual": 0.0}
    found = Curriculum.from_config(base, READER_KEYS).probabilities(100)
    assert found == pytest.approx({"zero": 0.1, "centroid": 0.54, "keyword": 0.36, "residual": 0})


def test_where_all_was_zero_the_centroid_takes_the_rest():
    base = {"zero": 1, "centroid": 0, "keyword": 0, "residual": 0}
    found = Curriculum.from_config(base, READER_KEYS).probabilities(100)
    assert found == pytest.approx({"zero": 0.1, "centroid": 0.9, "keyword": 0, "residual": 0})


def test_modes_fixed_and_cosine():
    fixed = Curriculum.from_config(EQUAL, BUILDER_KEYS | {"mode": "fixed"})
    assert fixed.probabilities(70) == EQUAL and fixed.distance_limit(70) == 0.3
    cosine = Curriculum.from_config(EQUAL, BUILDER_KEYS | {"mode": "cosine"})
    at = [cosine.probabilities(epoch)["zero"] for epoch in (0, 25, 50, 100)]
    assert at == pytest.approx([0.5, 0.44142, 0.3, 0.1], abs=1e-5)


def test_the_distance_limit_follows_the_builders_keys():
    linear = Curriculum.from_config(EQUAL, BUILDER_KEYS)
    assert [linear.distance_limit(e) for e in (0, 5, 10, 99)] == pytest.approx([0.3, 0.5, 0.7, 0.7])
    assert Curriculum.from_config(EQUAL, {"warmup_epochs": 4}).distance_limit(2) == pytest.approx(
        0.5
    )


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 50), st.integers(0, 100))
def test_probabilities_always_sum_to_one(start, end, epochs, epoch):
    assume(start != end)
    keys = {"zero_prob_start": start, "zero_prob_end": end, "epochs_total": epochs}
    for mode in ("linear", "cosine"):
        found = Curriculum.from_config(EQUAL, keys | {"mode": mode}).probabilities(epoch)
        assert sum(found.values()) == pytest.approx(1)
        assert min(start, end) - 1e-9 <= found["zero"] <= max(start, end) + 1e-9


@pytest.mark.parametrize(
    ("probabilities", "curriculum", "message"),
    [
        (EQUAL | {"zero": 0.5}, None, "must sum to 1"),
        ({"zero": 1.0}, None, "must have exactly"),
        (EQUAL | {"zero": "x"}, None, "steering_probabilities.zero must be a number"),
        (EQUAL, {"mode": "linaer"}, "did you mean 'linear'"),
        (EQUAL, {"zero_prob_strat": 0.5}, "did you mean 'zero_prob_start'"),
        (EQUAL, {"zero_prob_start": 1.5}, "zero_prob_start must be at most 1, got 1.5"),
        (EQUAL, ["linear"], "curriculum must be a mapping"),
    ],
)
def test_what_makes_no_sense_is_refused(probabilities, curriculum, message):
    with pytest.raises(ConfigError, match=message):
        Curriculum.from_config(probabilities, curriculum)
