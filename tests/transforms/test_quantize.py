"""Quantisation: golden levels, and there and back again."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import PlanError
from penstock.transforms.audio import Quantize

WAVE = torch.tensor([-1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 1])
GOLDEN = {
    ("linear", 8): [0, 64, 96, 115, 127, 140, 159, 191, 255],
    ("mu-law", 8): [0, 15, 31, 52, 127, 203, 224, 240, 255],
    ("linear", 16): [0, 16383, 24575, 29491, 32767, 36044, 40959, 49151, 65535],
    ("mu-law", 16): [0, 2047, 4095, 6802, 32678, 58733, 61440, 63488, 65535],
}


@pytest.mark.parametrize(("kind", "bits"), GOLDEN)
def test_levels_are_those_the_published_models_were_trained_on(kind, bits):
    assert Quantize(bits, kind)(WAVE[:, None])[:, 0].tolist() == GOLDEN[kind, bits]


def test_a_window_is_scaled_by_its_own_range():
    assert Quantize(8)(torch.tensor([0, 0.2, 0.4])).tolist() == [0, 127, 255]


@pytest.mark.parametrize("kind", ["linear", "mu-law"])
def test_silence_is_the_zero_level_unless_told_otherwise(kind):
    assert Quantize(8, kind)(torch.zeros(3)).tolist() == [128] * 3
    assert Quantize(8, kind, keep_silence_low=True)(torch.zeros(3)).tolist() == [0] * 3


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=50),
    st.sampled_from(["linear", "mu-law"]),
    st.sampled_from([4, 8, 16]),
)
def test_decoding_gives_the_scaled_wave_back_to_one_level(values, kind, bits):
    wave = torch.tensor(values)
    assume(float(wave.max() - wave.min()) >= 0.1)
    quantize = Quantize(bits, kind)
    levels = quantize(wave)
    assert levels.dtype == torch.int64
    assert 0 <= int(levels.min()) and int(levels.max()) < quantize.levels
    scaled = 2 * (wave - wave.min()) / (wave.max() - wave.min()) - 1
    mu, level = quantize.levels - 1, 2.1 / quantize.levels
    if kind == "mu-law":  # a level is the wider, the louder
        level = level * math.log1p(mu) / mu * (1 + mu * scaled.abs()) * (1 + mu) ** level
    assert bool(((quantize.decode(levels) - scaled).abs() <= level + 1e-4).all())


def test_without_quantization_the_wave_passes_through():
    assert Quantize(8, None)(WAVE) is WAVE and Quantize(8, None).decode(WAVE) is WAVE


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 25}, {"quantization": "alaw"}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(PlanError, match="must be"):
        Quantize(**wrong)
