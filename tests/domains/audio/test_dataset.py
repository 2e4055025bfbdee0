"""Windows of audio files: ranges, splits, stereo, resampling, an index that remembers."""

import os
import pickle

import numpy as np
import pytest
import soundfile
import torch

from penstock import ChunkedDataLoader, PlanError, SourceError
from penstock.domains.audio import QuantizedAudioDataset, index_files
from penstock.domains.audio import dataset as audio_files
from penstock.domains.audio.dataset import read_range

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder, name, frames, *, rate=8000, channels=1, **options):
    folder.mkdir(exist_ok=True)
    wave = RNG.uniform(-0.9, 0.9, (frames, channels)).astype("float32")
    soundfile.write(folder / name, wave, rate, **options)
    return wave


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_a_range_equals_the_slice_of_the_whole_file(tmp_path, name):
    write(tmp_path, name, 30_000)
    whole = read_range(tmp_path / name, 0, 30_000)
    for start, frames in ((0, 10), (123, 4567), (29_990, 10)):
        part = read_range(tmp_path / name, start, frames)
        np.testing.assert_allclose(part, whole[start : start + frames], atol=1e-6)


def test_windows_cover_the_corpus_in_natural_order(tmp_path):
    waves = {f"s{i}.wav": write(tmp_path, f"s{i}.wav", 100 + 30 * i) for i in (10, 2, 1)}
    dataset = QuantizedAudioDataset(tmp_path, sample_len=64, quantization=None, return_type=None)
    found = torch.cat([dataset[i] for i in range(len(dataset))])
    whole = np.concatenate([waves[name] for name in ("s1.wav", "s2.wav", "s10.wav")])
    np.testing.assert_allclose(found.numpy(), whole, atol=1e-4)
    dropped = QuantizedAudioDataset(tmp_path, sample_len=64, drop_last=True)
    assert len(dropped) == sum(len(wave) // 64 for wave in waves.values())
    assert all(len(dropped[i][1]) == 64 for i in range(len(dropped)))


def test_an_item_is_the_sequence_and_itself_one_step_later(tmp_path):
    write(tmp_path, "a.wav", 200)
    x, y = QuantizedAudioDataset(tmp_path, sample_len=50)[1]
    assert x.shape == (50,) and y.shape == (50, 1) and y.dtype == torch.int64
    assert x[0] == 128 and torch.equal(x[1:], y[:-1, 0])
    kept, _ = QuantizedAudioDataset(tmp_path, sample_len=50, keep_channel=True)[1]
    assert torch.equal(kept[:, 0], x)
    padded, trimmed = QuantizedAudioDataset(tmp_path, sample_len=50, pad_len=3, context_len=7)[1]
    assert padded[:3].tolist() == [128] * 3 and torch.equal(padded[3:], x)
    assert torch.equal(trimmed, y[7:])


def test_stereo_is_interleaved_and_mono_is_the_mean(tmp_path):
    wave = write(tmp_path, "a.wav", 60, channels=2, subtype="FLOAT")
    options = {"quantization": None, "return_type": None}
    mono = QuantizedAudioDataset(tmp_path, **options)[0]
    np.testing.assert_allclose(mono[:, 0], wave.mean(1), atol=1e-6)
    for strategy, expected in {
        "temporal": wave.reshape(-1),
        "blocking": wave.T.reshape(-1),
        "blocking-20": wave.reshape(3, 20, 2).transpose(0, 2, 1).reshape(-1),
    }.items():
        stereo = QuantizedAudioDataset(
            tmp_path, is_stereo=True, interleaving_strategy=strategy, **options
        )[0]
        np.testing.assert_allclose(stereo[:, 0], expected)


def test_resampled_windows_have_the_asked_length_and_pitch(tmp_path):
    time = np.arange(16_000) / 16_000
    tmp_path.mkdir(exist_ok=True)
    soundfile.write(tmp_path / "tone.wav", np.sin(2 * np.pi * 440 * time), 16_000)
    dataset = QuantizedAudioDataset(
        tmp_path, sample_len=4000, target_sr=8000, quantization=None, return_type=None
    )
    assert len(dataset) == 2 and dataset[0].shape == (4000, 1)
    spectrum = np.abs(np.fft.rfft(dataset[0][:, 0].numpy()))
    assert abs(int(spectrum.argmax()) * 8000 / 4000 - 440) <= 2


def test_splits_are_by_file_and_an_empty_one_is_refused(tmp_path):
    for i in range(10):
        write(tmp_path, f"{i}.wav", 40)
    parts = [
        QuantizedAudioDataset(tmp_path, ratio_min=a, ratio_max=b)
        for a, b in ((0, 0.88), (0.88, 0.94), (0.94, 1))
    ]
    names = [[file.name for file in part.windows.files] for part in parts]
    assert [len(n) for n in names] == [8, 1, 1] and len({n for part in names for n in part}) == 10
    with pytest.raises(PlanError, match=r"none of 10 files is in the range \[0.5, 0.55\)"):
        QuantizedAudioDataset(tmp_path, ratio_min=0.5, ratio_max=0.55)


def test_known_files_are_not_opened_again_and_changed_ones_are(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    for i in range(5):
        write(corpus, f"{i}.wav", 40)
    first = index_files(corpus)
    opened = []
    read = audio_files._read_header
    monkeypatch.setattr(
        audio_files,
        "_read_header",
        lambda path, *rest: opened.append(path.name) or read(path, *rest),
    )
    assert index_files(corpus) == first and opened == []
    write(corpus, "3.wav", 90)
    (corpus / "0.wav").unlink()
    again = index_files(corpus)
    assert opened == ["3.wav"] and [file.frames for file in again] == [40, 40, 90, 40]
    for memory in (tmp_path / "cache").rglob("*.json"):
        memory.write_text("{not json")
    assert index_files(corpus) == again


def test_a_file_that_cannot_be_read_is_named_or_left_out(tmp_path, caplog):
    write(tmp_path, "good.wav", 40)
    (tmp_path / "bad.wav").write_bytes(b"not audio at all")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    with pytest.raises(SourceError, match=r"cannot read .*bad\.wav"):
        index_files(tmp_path)
    assert [file.name for file in index_files(tmp_path, on_error="skip")] == ["good.wav"]
    assert not caplog.messages
    index_files(tmp_path, on_error="warn")
    assert any("bad.wav" in m for m in caplog.messages) and any(
        "empty.wav" in m for m in caplog.messages
    )
    with pytest.raises(SourceError, match="no audio"):
        (tmp_path / "none").mkdir()
        index_files(tmp_path / "none")


def test_a_file_cut_short_after_it_was_indexed_is_reported(tmp_path):
    write(tmp_path, "a.wav", 1000)
    dataset = QuantizedAudioDataset(tmp_path, sample_len=500)
    os.truncate(tmp_path / "a.wav", 900)
    with pytest.raises(SourceError, match=r"a\.wav"):
        dataset[1]


def test_it_goes_to_workers_and_resumes(tmp_path):
    write(tmp_path, "a.wav", 1000)
    dataset = pickle.loads(pickle.dumps(QuantizedAudioDataset(tmp_path, sample_len=50)))
    alone = [x for x, _ in ChunkedDataLoader(dataset, 4, 3)]
    with ChunkedDataLoader(dataset, 4, 3, num_workers=2) as loader:
        assert all(torch.equal(a, b) for a, (b, _) in zip(alone, loader, strict=True))


def test_a_thousand_known_files_are_not_opened_at_a_start(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    write(corpus, "0.wav", 32)
    content = (corpus / "0.wav").read_bytes()
    for i in range(1, 1_000):
        (corpus / f"{i}.wav").write_bytes(content)
    opened = []
    info, opening = soundfile.info, soundfile.SoundFile

    class Counted(opening):
        def __init__(self, name, *args, **kwargs):
            opened.append(name)
            super().__init__(name, *args, **kwargs)

    monkeypatch.setattr(soundfile, "info", lambda name: opened.append(name) or info(name))
    monkeypatch.setattr(soundfile, "SoundFile", Counted)
    first = QuantizedAudioDataset(corpus, sample_len=16)
    assert len(set(opened)) == 1_000 and len(first) == 2_000
    opened.clear()
    again = QuantizedAudioDataset(corpus, sample_len=16)
    assert opened == [] and again.fingerprint() == first.fingerprint()
    assert again[1_999][1].shape == (16, 1) and len(opened) == 1  # a range of one file


def test_other_files_and_settings_are_another_fingerprint(tmp_path):
    write(tmp_path, "a.wav", 100)
    prints = {QuantizedAudioDataset(tmp_path, sample_len=n).fingerprint() for n in (10, 10, 20)}
    write(tmp_path, "a.wav", 104)
    prints.add(QuantizedAudioDataset(tmp_path, sample_len=10).fingerprint())
    assert len(prints) == 3


def test_a_file_that_cannot_be_decoded_is_to_be_restored_and_not_removed(tmp_path):
    write(tmp_path, "a.flac", 60_000)
    write(tmp_path, "b.wav", 100)
    dataset = QuantizedAudioDataset(tmp_path, on_error="skip", sample_len=60_000)
    damaged = bytearray((tmp_path / "a.flac").read_bytes())
    damaged[len(damaged) // 4 :] = bytes(len(damaged) - len(damaged) // 4)
    (tmp_path / "a.flac").write_bytes(damaged)  # its header is whole: on_error skips nothing
    assert len(index_files(tmp_path, on_error="skip")) == 2
    with pytest.raises(SourceError, match=r"a\.flac.*restore it, or start a new run without it"):
        dataset[0]


# -- one rate, and as many channels as are asked for


def two_rates(folder):
    tone = np.sin(np.arange(4000) / 20).astype(np.float32)
    for name, rate in (("a.wav", 8000), ("b.wav", 16000)):
        soundfile.write(folder / name, tone, rate)
    return folder


@pytest.mark.parametrize("split", [{}, {"ratio_max": 0.5}, {"ratio_min": 0.5}])
def test_files_of_different_rates_are_refused_where_they_are_not_resampled(tmp_path, split):
    """Defect: they were trained on together, the same sound at two speeds."""
    said = "a.wav has 8000 Hz, b.wav has 16000 Hz; resample .* for example with target_sr=8000"
    with pytest.raises(PlanError, match=said):
        QuantizedAudioDataset(two_rates(tmp_path), sample_len=100, **split)
    dataset = QuantizedAudioDataset(tmp_path, sample_len=100, target_sr=8000, **split)  # as advised
    assert all(len(dataset[index][0]) for index in range(len(dataset)))


def test_files_without_two_channels_are_refused_before_training(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros((400, 2), np.float32), 8000)
    soundfile.write(tmp_path / "b.wav", np.zeros(400, np.float32), 8000)
    with pytest.raises(PlanError, match=r"b.wav has 1 channels, stereo needs 2: use is_stereo=Fa"):
        QuantizedAudioDataset(tmp_path, sample_len=100, is_stereo=True)
    assert len(QuantizedAudioDataset(tmp_path, sample_len=100, is_stereo=False)) == 8
