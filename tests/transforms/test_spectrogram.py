from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.transforms as T


@settings(deadline=None, max_examples=50)
@given(
    length=st.integers(0, 200),
    n_fft=st.integers(2, 40),
    hop=st.none() | st.integers(1, 30),
    leading=st.sampled_from([(), (1,), (3,), (2, 2)]),
)
def test_it_is_the_squared_magnitude_of_numpys_transform(length, n_fft, hop, leading):
    spectrogram = T.Spectrogram(n_fft=n_fft, hop_length=hop)
    rng = np.random.default_rng(length)
    wave = rng.standard_normal((*leading, length))
    got = spectrogram(torch.from_numpy(wave))

    if length == 0:
        wave = np.zeros((*leading, 1))
    half, step = n_fft // 2, spectrogram.hop_length
    mode = {"mode": "reflect"} if wave.shape[-1] > half else {"mode": "constant"}
    padded = np.pad(wave, [(0, 0)] * len(leading) + [(half, half)], **mode)
    window = 0.5 - 0.5 * np.cos(2 * math.pi * np.arange(n_fft) / n_fft)
    starts = range(0, padded.shape[-1] - n_fft + 1, step)
    frames = [np.fft.rfft(padded[..., s : s + n_fft] * window) for s in starts]
    expected = np.stack([np.abs(frame) ** 2 for frame in frames], axis=-1)

    assert got.shape == (*leading, n_fft // 2 + 1, spectrogram.frames(length))
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


def test_a_tone_is_loudest_in_its_own_band():
    seconds = torch.arange(16000) / 16000
    power = T.Spectrogram(n_fft=512)(torch.sin(2 * math.pi * 1000 * seconds))
    assert power.shape == (257, 63) and power.dtype == torch.float32
    assert (power[:, 5:-5].argmax(0) == 1000 * 512 // 16000).all()


def test_integers_are_taken_as_floats():
    assert T.Spectrogram(n_fft=8)(torch.ones(20, dtype=torch.int16)).dtype == torch.float32


def test_it_survives_pickling():
    spectrogram = T.Spectrogram(n_fft=16, hop_length=4)
    again = pickle.loads(pickle.dumps(spectrogram))
    assert torch.equal(again(torch.ones(50)), spectrogram(torch.ones(50)))
    assert repr(again) == "Spectrogram(n_fft=16, hop_length=4)"


@pytest.mark.parametrize("options", [{"n_fft": 1}, {"n_fft": 8, "hop_length": 0}])
def test_what_is_no_window_is_refused(options):
    with pytest.raises(ValueError, match=r"(n_fft|hop_length) must be at least"):
        T.Spectrogram(**options)
