from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.collate import AudioCollator, TaskSpec
from penstock.transforms import Spectrogram


@settings(deadline=None, max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    channels=st.sampled_from([None, 1, 2]),
    as_array=st.booleans(),
)
def test_unpadding_a_batch_gives_back_the_waveforms_and_their_spectrograms(
    lengths, channels, as_array
):
    rng = np.random.default_rng(sum(lengths))
    leading = () if channels is None else (channels,)
    waves = [rng.standard_normal((*leading, n)).astype(np.float32) for n in lengths]
    spectrogram = Spectrogram(n_fft=8)
    samples = [{"waveform": wave if as_array else torch.from_numpy(wave)} for wave in waves]
    batch = AudioCollator(spectrogram)(samples)

    assert batch["waveforms"].shape == (len(lengths), *leading, max(lengths))
    assert batch["lengths"].tolist() == lengths
    for i, (wave, length) in enumerate(zip(waves, lengths, strict=True)):
        assert np.array_equal(batch["waveforms"][i, ..., :length], wave)
        assert (batch["waveforms"][i, ..., length:] == 0).all()
        frames = int(batch["spectrogram_lengths"][i])
        alone = spectrogram(torch.from_numpy(wave))
        assert frames == alone.shape[-1] == spectrogram.frames(length)
        torch.testing.assert_close(batch["spectrograms"][i, ..., :frames], alone)
        assert (batch["spectrograms"][i, ..., frames:] == 0).all()


def test_integers_are_scaled_and_doubles_halved():
    def first(wave):
        return AudioCollator()([wave])["waveforms"]

    assert first(np.array([-32768, 16384], np.int16)).tolist() == [[-1.0, 0.5]]
    assert first(np.array([1 << 30], np.int32)).tolist() == [[0.5]]
    assert first(np.array([0.25])).dtype == torch.float32
    assert first(torch.ones(2, dtype=torch.float16)).dtype == torch.float16


@pytest.mark.parametrize("name", ["waveform", "audio", "input_values", "array", "sound"])
def test_waveforms_and_labels_are_found_under_their_usual_names(name):
    spec = TaskSpec("speech", "audio_classification", input_fields=["sound"])
    samples = [{name: torch.ones(4), "label": 3, "speaker": "a"}]
    batch = AudioCollator(task_spec=spec)(samples)
    assert sorted(batch) == ["labels", "lengths", "speaker", "waveforms"]
    assert batch["labels"].tolist() == [3]


def test_hugging_face_recordings_and_their_rates():
    recording = {"array": np.ones(4), "sampling_rate": 16000}
    batch = AudioCollator(sample_rate=16000)([{"audio": recording}, {"audio": recording}])
    assert batch["waveforms"].shape == (2, 4)
    other = {"array": np.ones(4), "sampling_rate": 8000}
    with pytest.raises(ValueError, match="sample 1 has 8000 samples per second, expected 16000"):
        AudioCollator()([{"audio": recording}, {"audio": other}])
    with pytest.raises(ValueError, match="sample 0 has 16000 samples per second, expected 8000"):
        AudioCollator(sample_rate=8000)([{"audio": recording}])
    with pytest.raises(ValueError, match="sample 0 has 5 samples per second, expected 8000"):
        AudioCollator(sample_rate=8000)([{"array": np.ones(4), "sampling_rate": 5}])
    with pytest.raises(ValueError, match="sample 0 has fast samples per second, expected 8000"):
        AudioCollator(sample_rate=8000)([{"array": np.ones(4), "sampling_rate": "fast"}])


def test_pairs_are_waveforms_and_labels():
    assert AudioCollator()([(torch.ones(2), 1), (torch.ones(3), 0)])["labels"].tolist() == [1, 0]


def test_read_only_arrays_work():
    array = np.ones(8, np.float32)
    array.flags.writeable = False
    assert AudioCollator()([array])["waveforms"].sum() == 8


def test_a_collator_survives_pickling():
    collator = pickle.loads(pickle.dumps(AudioCollator(Spectrogram(n_fft=8))))
    assert collator([torch.ones(9)])["spectrograms"].shape == (1, 5, 3)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty batch"),
        ([{"x": 1}], "no waveform"),
        ([torch.ones(2, 3), torch.ones(1, 3)], "only the last dimension may differ"),
        ([torch.ones(1, 2, 3)], r"expected \(time,\)"),
        ([torch.ones(3, dtype=torch.uint8)], "full scale is unknown"),
        ([{"audio": "a.wav"}], "expected numbers"),
        ([{"audio": {"path": "a.wav"}}], "expected numbers"),
    ],
)
def test_samples_that_cannot_form_a_batch_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        AudioCollator()(samples)


def test_an_impossible_rate_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        AudioCollator(sample_rate=0)
