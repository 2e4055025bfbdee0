"""Transforms: what a sample becomes is a function of its key, alone or in any batch."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BatchError, PlanError
from penstock.keyed import keyed_generator
from penstock.order import derive_key
from penstock.transforms import (
    Compose,
    GaussianNoise,
    SpecAugment,
    Standardize,
    recommended_augmentation,
)
from penstock.transforms.base import integers, uniforms

TRANSFORMS = [
    SpecAugment(time_mask_param=8, freq_mask_param=5, num_time_masks=2, p=0.7),
    GaussianNoise(std=0.1, p=0.7),
    GaussianNoise(std=0.5, p=0.7, clamp=(0, 1)),
    Standardize(0.3, 0.2),
    Standardize([0.3, 0.5], [0.2, 0.1]),
    Compose([SpecAugment(8, 5), GaussianNoise(clamp=(0, 1)), Standardize(0.5, 0.3)]),
]
KEYS = derive_key(1, "test", np.arange(64))
BATCH = torch.rand((64, 2, 20, 30), generator=keyed_generator(3))
GOLDEN_BANDS = [[137, 138], [198, 211], [40, 45]]
GOLDEN_SPANS = [[137, 166], [208, 220], [0, 33]]
GOLDEN_NOISE = [-2.4627, -0.2870]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@given(rows=st.lists(st.integers(0, 63), min_size=1, max_size=12))
def test_a_sample_is_changed_alike_alone_and_in_any_batch(transform, rows):
    together = transform.batch(BATCH[rows], KEYS[rows])
    for place, row in enumerate(rows):
        alone = transform.batch(BATCH[row : row + 1], KEYS[row : row + 1])
        assert torch.equal(together[place], alone[0])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_the_input_stays_as_it_is(transform):
    before = BATCH.clone()
    after = transform.batch(BATCH, KEYS)
    assert torch.equal(BATCH, before)
    assert after.shape == BATCH.shape
    assert not torch.equal(after, before)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_a_generator_decides_and_pickling_changes_nothing(transform):
    first = transform(BATCH[0], keyed_generator(5))
    again = pickle.loads(pickle.dumps(transform))(BATCH[0], keyed_generator(5))
    assert torch.equal(first, again)


@pytest.mark.parametrize("transform", [SpecAugment(p=1.0), GaussianNoise(p=1.0), Standardize(1, 2)])
def test_an_array_is_a_sample_too(transform):
    array = np.ones((30, 50), np.float32)
    one, other = (transform(x, keyed_generator(3)) for x in (array, torch.from_numpy(array)))
    assert torch.equal(one, other) and (array == 1).all()


def test_called_by_hand_it_draws_from_torchs_default_generator():
    transform = GaussianNoise(p=1.0)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        first, other = transform(BATCH[0]), transform(BATCH[0])
        torch.manual_seed(7)
        again = transform(BATCH[0])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_no_ambient_generator_is_read_or_disturbed(transform):
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    transform.batch(BATCH, KEYS)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_draws_are_uniform_and_apart():
    draws = uniforms(derive_key(9, np.arange(20_000)), 4)
    assert 0 <= draws.min() and draws.max() < 1
    assert np.allclose(draws.mean(0), 0.5, atol=0.01)
    assert np.allclose(np.corrcoef(draws.T), np.eye(4), atol=0.03)
    counts = Counter(integers(draws[:, 0], 16).tolist())
    assert set(counts) == set(range(16))
    assert max(abs(count / 1250 - 1) for count in counts.values()) < 0.15


# -- SpecAugment


def masks_of(transform, keys, bins=224, frames=313):
    """Of each key: the masked rows and the masked columns, read from an actual spectrogram."""
    masked = transform.batch(torch.ones(len(keys), 1, bins, frames), keys)[:, 0] == 0
    return masked.all(2).sum(1), masked.all(1).sum(1)


def test_widths_are_uniform_up_to_the_parameter_and_both_axes_are_masked():
    transform = SpecAugment(time_mask_param=10, freq_mask_param=4, p=1.0)
    rows, columns = masks_of(transform, derive_key(2, np.arange(2_000)), bins=12, frames=25)
    assert set(rows.tolist()) == set(range(5))
    assert set(columns.tolist()) == set(range(11))
    assert rows.float().mean() == pytest.approx(2, abs=0.15)
    assert columns.float().mean() == pytest.approx(5, abs=0.3)


def test_masks_reach_both_ends_of_an_axis():
    keys = derive_key(4, np.arange(3_000))
    bands, spans = SpecAugment(time_mask_param=5, freq_mask_param=5, p=1.0).spans(keys, 9, 12)
    for found, length in ((bands, 9), (spans, 12)):
        wide = found[found[..., 1] > found[..., 0]]
        assert (wide[:, 0].min(), wide[:, 1].max()) == (0, length)


def test_the_share_of_samples_that_are_masked_is_p():
    keys = derive_key(6, np.arange(4_000))
    bands, spans = SpecAugment(p=0.3).spans(keys, 224, 313)
    touched = (bands[..., 1] > bands[..., 0]).any(1) | (spans[..., 1] > spans[..., 0]).any(1)
    assert touched.mean() == pytest.approx(0.3, abs=0.03)
    assert not SpecAugment(p=0.0).spans(keys, 224, 313)[0].any()


def test_an_axis_not_longer_than_the_parameter_is_not_masked():
    transform = SpecAugment(time_mask_param=25, freq_mask_param=4, p=1.0)
    rows, columns = masks_of(transform, derive_key(2, np.arange(200)), bins=12, frames=25)
    assert rows.max() > 0
    assert columns[rows < 12].max() == 0


def test_a_spectrogram_without_channel_is_masked_too():
    plain = SpecAugment(p=1.0, mask_value=-7.0)(torch.ones(224, 313), keyed_generator(1))
    channel = SpecAugment(p=1.0, mask_value=-7.0)(torch.ones(1, 224, 313), keyed_generator(1))
    assert torch.equal(plain, channel[0])
    assert set(plain.unique().tolist()) == {-7.0, 1.0}


def test_the_defaults_are_the_guides():
    found = SpecAugment()
    assert vars(found) == {
        "time_mask_param": 40,
        "freq_mask_param": 15,
        "num_time_masks": 1,
        "num_freq_masks": 1,
        "mask_value": 0.0,
        "p": 0.8,
    }
    assert (GaussianNoise().std, GaussianNoise().p, GaussianNoise().clamp) == (0.02, 0.8, None)


def test_masks_and_noise_are_what_they_were():
    """Golden: another value here is another augmentation for every run there was."""
    bands, spans = SpecAugment(p=1.0).spans(KEYS[:3], 224, 313)
    assert bands[:, 0].tolist() == GOLDEN_BANDS
    assert spans[:, 0].tolist() == GOLDEN_SPANS
    noisy = GaussianNoise(std=1.0, p=1.0).batch(torch.zeros(1, 2), KEYS[:1])
    assert noisy[0].tolist() == pytest.approx(GOLDEN_NOISE, abs=1e-4)


# -- noise


def test_noise_does_not_saturate_standardised_data():
    standardised = Standardize(0.5, 0.2887)(torch.rand(100_000, generator=keyed_generator(2)))
    noisy = GaussianNoise(p=1.0)(standardised, keyed_generator(3))
    assert (noisy < 0).float().mean() == pytest.approx(0.5, abs=0.02)
    assert noisy.unique().numel() > 90_000
    assert (noisy - standardised).std() == pytest.approx(0.02, rel=0.02)


def test_a_clamp_is_done_where_it_is_asked_for():
    noisy = GaussianNoise(std=1.0, p=1.0, clamp=(0, 1))(torch.rand(1000), keyed_generator(3))
    assert (noisy.min(), noisy.max()) == (0, 1)


def test_noise_keeps_the_type_of_the_data():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert GaussianNoise(p=1.0)(torch.zeros(8, dtype=dtype), keyed_generator(3)).dtype == dtype


# -- composition


def test_a_composition_is_its_parts_in_order():
    noise, standardize = GaussianNoise(p=1.0), Standardize(0.5, 0.3)
    expected = standardize(noise.batch(BATCH, derive_key(KEYS, 0)))
    assert torch.allclose(Compose([noise, standardize]).batch(BATCH, KEYS), expected)


def test_the_same_transform_twice_draws_twice():
    noise = GaussianNoise(std=1.0, p=1.0)
    twice = Compose([noise, noise]).batch(torch.zeros(4, 5_000), KEYS[:4])
    assert twice.std().item() == pytest.approx(2**0.5, rel=0.05)


@pytest.mark.parametrize(
    "inner", [GaussianNoise(clamp=(0, 1)), Compose([GaussianNoise(clamp=(0, 1))])]
)
def test_a_clamp_after_standardisation_is_refused(inner):
    with pytest.raises(PlanError, match="would saturate the data: augment raw samples"):
        Compose([Standardize(0.5, 0.3), inner])


# -- standardisation


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_standardising_is_subtracting_the_mean_and_dividing_by_the_deviation(mean, std):
    found = Standardize(mean, std)(BATCH[0])
    expected = (BATCH[0].double() - mean) / (std + 1e-8)
    rounding = 3e-7 * (1 + abs(mean)) / std  # of float32, where x and the mean are nearly equal
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=rounding)


def test_channels_have_their_own_statistics():
    found = Standardize([0.25, 0.75], [0.5, 0.25]).batch(BATCH, KEYS)
    assert torch.allclose(found[:, 0], (BATCH[:, 0] - 0.25) / 0.5, atol=1e-6)
    assert torch.allclose(found[:, 1], (BATCH[:, 1] - 0.75) / 0.25, atol=1e-6)


def test_one_value_is_a_number_however_it_comes():
    for mean in (0.5, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5]), [0.5]):
        found = Standardize(mean, torch.tensor([2.0]))
        assert type(found.mean) is float and found.mean == 0.5 and found.std == 2 + 1e-8


def test_a_deviation_of_zero_gives_finite_values():
    assert Standardize(2.0, 0.0)(torch.full((3,), 2.0)).tolist() == [0, 0, 0]


def test_whole_numbers_become_floats():
    assert Standardize(1.0, 1.0)(torch.tensor([3], dtype=torch.uint8)).tolist() == [2.0]


# -- recommendations


@pytest.mark.parametrize(
    ("per_class", "time", "freq", "masks", "p"),
    [(1, 25, 10, 1, 0.6), (49, 25, 10, 1, 0.6), (50, 39, 14, 1, 0.8), (99, 39, 14, 1, 0.8),
     (100, 50, 18, 2, 0.9), (5000, 50, 18, 2, 0.9)],
)  # fmt: skip
def test_settings_follow_the_samples_a_class_has(per_class, time, freq, masks, p):
    found = recommended_augmentation(per_class * 31, 31)
    assert SpecAugment(**found["spec_augment_params"]).__dict__ == {
        "time_mask_param": time,
        "freq_mask_param": freq,
        "num_time_masks": masks,
        "num_freq_masks": 1,
        "mask_value": 0.0,
        "p": p,
    }
    assert found["gaussian_noise_params"] == {"std": 0.02, "p": 0.8}


def test_aggressive_settings_are_more_of_everything():
    found = recommended_augmentation(31_000, 31, aggressive=True)
    assert found["spec_augment_params"]["p"] == 0.95
    assert found["gaussian_noise_params"] == {"std": 0.03, "p": 0.9}
    assert recommended_augmentation(31, 31, aggressive=True)["spec_augment_params"]["p"] == 0.7


def test_small_spectrograms_get_small_masks():
    found = recommended_augmentation(31_000, 31, (24, 36))["spec_augment_params"]
    assert (found["time_mask_param"], found["freq_mask_param"]) == (6, 2)


# -- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpecAugment(p=1.5), r"p must be at most 1, got 1.5"),
        (lambda: SpecAugment(time_mask_param=-1), "time_mask_param must be at least 0, got -1"),
        (lambda: SpecAugment(num_freq_masks=1.5), "num_freq_masks must be an integer"),
        (lambda: GaussianNoise(std=-1), "std must be at least 0, got -1"),
        (lambda: GaussianNoise(clamp=(1, 0)), r"clamp must be \(lowest, highest\)"),
        (lambda: Standardize(float("nan"), 1), "mean must be a finite number"),
        (lambda: Standardize(0, -1), "std must be at least 0, got -1"),
        (lambda: Standardize([0, 1], 1), r"got shapes \(2,\) and \(\)"),
        (lambda: GaussianNoise()(torch.ones(5), np.random.default_rng(0)), "a torch.Generator or"),
        (lambda: recommended_augmentation(0, 3), "samples must be at least 1 sample"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SpecAugment()(torch.ones(5)), r"got samples of shape \(5,\)"),
        (lambda: GaussianNoise()(torch.ones(5, dtype=torch.uint8)), "got torch.uint8: scale them"),
        (lambda: Standardize([0, 1], [1, 1])(torch.ones(3, 4)), r"2 channels do not fit"),
    ],
)
def test_samples_that_do_not_fit_are_refused(call, message):
    with pytest.raises(BatchError, match=message):
        call()
