"""Autoregressive audio: splits by file, both shapes of x, padding with lengths, chunks."""

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigError, PlanError, SourceError, StateError
from penstock.datamodules import PaddedCollation, SequenceDataset
from penstock.domains.audio import QuantizedAutoregressiveAudio, SpeechCommands09Autoregressive

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path, frames, *, channels=1, silent=False, rate=8000):
    path.parent.mkdir(exist_ok=True, parents=True)
    wave = RNG.uniform(-0.9, 0.9, (frames, channels)) * (0 if silent else 1)
    soundfile.write(path, wave.astype("float32"), rate)


@pytest.fixture
def corpus(tmp_path):
    for i in range(25):
        write(tmp_path / "corpus" / f"{i}.wav", 100 + 10 * i, channels=2)
    return tmp_path / "corpus"


def made(cls=QuantizedAutoregressiveAudio, **options):
    data = cls(**options)
    data.setup()
    return data


def test_the_defaults_are_those_of_the_codebases(corpus):
    data = QuantizedAutoregressiveAudio("qautoaudio", path=str(corpus))
    assert (data.bits, data.sample_len, data.quantization) == (8, None, "linear")
    assert (data.train_percentage, data.drop_last) == (0.88, False)
    assert (data.context_len, data.pad_len, data.target_sr) == (None, None, None)
    assert (data.is_stereo, data.interleaving_strategy) == (False, "temporal")
    assert (data.d_input, data.d_output, data.n_tokens, data.l_output) == (1, 256, 256, None)
    wide = QuantizedAutoregressiveAudio(bits=16, sample_len=64, output_head="dml", is_stereo=True)
    assert (wide.d_output, wide.n_tokens, wide.l_output, wide.L) == (30, 65536, 128, 128)
    assert SequenceDataset.registry.find("qautoaudio") is QuantizedAutoregressiveAudio


def test_files_are_split_by_the_rule(corpus, monkeypatch):
    monkeypatch.setenv("DATA_PATH", str(corpus.parent))
    for options in ({"path": "corpus"}, {"data_dir": corpus}, {"path": str(corpus)}):
        data = made(**options)
        parts = data.dataset_train, data.dataset_val, data.dataset_test
        names = [[file.name for file in part.windows.files] for part in parts]
        assert names == [
            [f"{i}.wav" for i in range(22)],
            ["22.wav"],
            ["23.wav", "24.wav"],
        ]


def test_windows_of_one_length_have_both_shapes_of_x(corpus):
    options = {"data_dir": corpus, "sample_len": 50, "drop_last": True, "batch_size": 4}
    x, y, extras = next(iter(made(**options).train_dataloader()))
    assert x.shape == (4, 50) and y.shape == (4, 50, 1) and extras == {}
    assert x.dtype == y.dtype == torch.int64
    assert (x[:, 0] == 128).all() and torch.equal(x[:, 1:], y[:, :-1, 0])
    kept = next(iter(made(**options, keep_channel=True).train_dataloader()))[0]
    assert torch.equal(kept, x.unsqueeze(-1))
    stereo, target, _ = next(iter(made(**options, is_stereo=True).train_dataloader()))
    assert stereo.shape == (4, 100) and target.shape == (4, 100, 1)


@pytest.mark.parametrize("keep_channel", [False, True])
def test_windows_of_different_lengths_are_padded_along_their_length_alone(corpus, keep_channel):
    data = made(data_dir=corpus, sample_len=64, batch_size=5, keep_channel=keep_channel)
    plain = data.dataset_train
    loader = data.train_dataloader()
    for step, (x, y, extras) in enumerate(loader):
        items = [plain[i] for i in loader.samples_at(step, epoch=0)]
        lengths = [len(item[0]) for item in items]
        assert extras["lengths"].tolist() == lengths and extras["lengths"].dtype == torch.int64
        steps = x.shape[1]
        assert steps == min(1 << (max(lengths) - 1).bit_length(), 64)
        assert x.shape == ((len(items), steps, 1) if keep_channel else (len(items), steps))
        assert y.shape == (len(items), steps, 1)
        for row, target, item, length in zip(x, y, items, lengths, strict=True):
            assert torch.equal(row[:length], item[0]) and (row[length:] == 128).all()
            assert torch.equal(target[:length], item[1]) and (target[length:] == -100).all()


def test_whole_files_are_padded_to_a_power_of_two(corpus):
    x, y, extras = next(iter(made(data_dir=corpus, batch_size=50).train_dataloader()))
    assert x.shape == (22, 512) and y.shape == (22, 512, 1)
    assert sorted(extras["lengths"].tolist()) == [100 + 10 * i for i in range(22)]


def test_what_is_put_before_x_and_cut_from_y_stays_aligned(corpus):
    data = made(data_dir=corpus, sample_len=60, pad_len=8, context_len=5, batch_size=6)
    for x, y, extras in data.train_dataloader():
        assert x.shape[1] == min(1 << (int(extras["lengths"].max()) - 1).bit_length(), 68)
        assert y.shape[1] == x.shape[1] - 13
        for row, target, length in zip(x, y[..., 0], extras["lengths"], strict=True):
            assert torch.equal(row[14:length], target[: length - 14])  # x is one step later
            assert (target[length - 13 :] == -100).all()


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    limit=st.none() | st.just(70),
)
def test_padding_loses_nothing_and_ends_together(lengths, limit):
    rows = [torch.arange(length) for length in lengths]
    samples = [(row, row.unsqueeze(1)) for row in rows]
    x, y, extras = PaddedCollation(zero=-1, limit=limit)(samples)
    assert x.shape[1] == y.shape[1] >= max(lengths)
    assert extras["lengths"].tolist() == lengths
    assert [(row >= 0).sum().item() for row in x] == lengths
    assert [(row >= 0).sum().item() for row in y] == lengths


def test_silence_is_the_zero_level_unless_told_otherwise(tmp_path):
    for i in range(25):
        write(tmp_path / "quiet" / f"{i}.wav", 64, silent=True)
    for quantization in ("linear", "mu-law"):
        options = {"data_dir": tmp_path / "quiet", "quantization": quantization, "drop_last": True}
        assert (next(iter(made(**options).train_dataloader()))[1] == 128).all()
        low = made(**options, keep_silence_low=True)
        assert (next(iter(low.train_dataloader()))[1] == 0).all()
    raw = made(**options | {"quantization": None})
    x, y, _ = next(iter(raw.train_dataloader()))
    assert (x == 0).all() and x.dtype == torch.float32 and (y == 0).all()


@pytest.mark.parametrize(("source", "target"), [(44100, 16000), (8000, 16000), (22050, 24000)])
def test_resampled_windows_all_have_the_asked_length(tmp_path, source, target):
    for i in range(25):
        write(tmp_path / "rates" / f"{i}.wav", 3000, rate=source)
    data = made(data_dir=tmp_path / "rates", sample_len=333, target_sr=target)
    part = data.dataset_val
    found = [len(part[i][0]) for i in range(len(part))]
    assert part.lengths(np.arange(len(part))).tolist() == found
    assert found[:-1] == [333] * (len(found) - 1) and 0 < found[-1] <= 333


def test_chunks_go_through_every_window_and_a_state_knows_its_data(corpus):
    options = {"data_dir": corpus, "sample_len": 50, "batch_size": 4, "train_chunk_size": 5}
    data = made(**options)
    assert data.val_chunk_size == -(-len(data.dataset_val) // 4)
    loader, seen = data.train_dataloader(), []
    for chunk in range(loader.total_chunks):
        assert data.current_train_chunk == chunk
        seen += [
            i for step in range(5 * chunk, 5 * chunk + len(loader)) for i in loader.samples_at(step)
        ]
        assert len(list(loader)) <= 5
    assert sorted(seen) == list(range(len(data.dataset_train)))
    state = data.state_dict()
    with pytest.raises(StateError, match="the data changed"):
        write(corpus / "3.wav", 137)
        other = made(**options)
        assert len(other.dataset_train) == len(data.dataset_train)
        other.load_state_dict(state)
        other.train_dataloader()


def test_tbptt_counts_the_pieces_of_sequences_of_any_length(corpus):
    data = made(data_dir=corpus, sample_len=64, batch_size=3, train_chunk_size=7)
    loader = data.train_dataloader(_name_="tbptt", chunk_len=10, overlap_len=4)
    for _ in range(2 * loader.total_chunks):
        promised = len(loader)
        assert promised == loader.remaining
        pieces = list(loader)
        assert len(pieces) == promised
        assert sum(piece[2]["reset"] for piece in pieces) <= 7
        assert (pieces[0][0][:, :4] == 128).all()  # three before, and x's own first
    val = data.val_dataloader(_name_="tbptt", chunk_len=10, overlap_len=4)
    assert len(list(val)) == len(val) == len(list(val))


def test_digits_are_split_by_their_lists_and_always_padded(tmp_path):
    root, listed = tmp_path / "sc09", {"validation": [], "testing": []}
    for word in ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]:
        for i, frames in enumerate((160, 120, 90, 150)):
            write(root / word / f"{i}.wav", frames, rate=16000)
        listed["validation"].append(f"{word}/0.wav")
        listed["testing"].append(f"{word}/3.wav")
    for name, names in listed.items():
        (root / f"{name}_list.txt").write_text("\n".join(names) + "\n")
    data = made(SpeechCommands09Autoregressive, data_dir=root, batch_size=20, sample_len=160)
    sizes = [len(part) for part in (data.dataset_train, data.dataset_val, data.dataset_test)]
    assert sizes == [20, 10, 10] and (data.d_output, data.l_output) == (256, 160)
    x, y, extras = next(iter(data.train_dataloader()))
    assert x.shape == (20, 128) and y.shape == (20, 128, 1)
    assert sorted(set(extras["lengths"].tolist())) == [90, 120]
    (root / "testing_list.txt").unlink()
    with pytest.raises(SourceError, match=r"testing_list\.txt"):
        made(SpeechCommands09Autoregressive, data_dir=root)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sample_lenn", "sample_len"),
        ("sample_length", "sample_len"),
        ("quantisation", "quantization"),
        ("data_dri", "data_dir"),
        ("train_chunk_sise", "train_chunk_size"),
    ],
)
def test_a_misspelt_key_is_refused_with_what_was_meant(typed, meant):
    with pytest.raises(ConfigError, match=f"unknown key '{typed}': did you mean '{meant}'"):
        QuantizedAutoregressiveAudio(**{typed: 512})


def test_a_key_like_no_other_is_kept_with_one_line_in_the_log(caplog):
    with caplog.at_level("INFO", "penstock"):
        data = QuantizedAutoregressiveAudio(composer="Satie", year=1888, __l_max=3, batch_size=2)
    assert (data.composer, data.year, data.__dict__["__l_max"]) == ("Satie", 1888, 3)
    (line,) = caplog.messages
    assert "does not declare composer, year: set as attributes" in line


def test_a_path_is_looked_for_here_and_then_below_the_data_root(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert made(path="corpus").data_dir == corpus
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("DATA_PATH", str(tmp_path))
    assert made(path="corpus").data_dir == corpus
    (corpus / "corpus").mkdir()
    write(corpus / "corpus" / "0.wav", 100)
    with pytest.raises(PlanError, match="none of 1 files is in the range"):
        made(path="corpus")  # the one here wins
    with pytest.raises(SourceError) as refused:
        made(path="elsewhere")
    assert str(corpus / "elsewhere") in str(refused.value)
    assert str(tmp_path / "elsewhere") in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("sample_len", "abc"), ("sample_len", 0), ("bits", 7.5), ("bits", True), ("pad_len", -1)],
)
def test_a_setting_that_is_no_whole_number_is_refused(name, value):
    for kind in (QuantizedAutoregressiveAudio, SpeechCommands09Autoregressive):
        with pytest.raises(ConfigError, match=f"{name} must be (an integer|at least)"):
            kind(**{name: value})


def test_what_cannot_be_is_refused_by_name(corpus):
    with pytest.raises(ConfigError, match="no folder of audio"):
        made()
    with pytest.raises(ConfigError, match="output_head must be one of"):
        QuantizedAutoregressiveAudio(output_head="gaussian")
    with pytest.raises(ConfigError, match="train_percentage must be between 0 and 1, got 88"):
        QuantizedAutoregressiveAudio(train_percentage=88)
    with pytest.raises(PlanError, match="none of the 22 files has 9999 samples"):
        made(data_dir=corpus, sample_len=9999, drop_last=True)
    with pytest.raises(ValueError, match="none of 25 files is in the range"):
        made(data_dir=corpus, train_percentage=0.99)
    (corpus / "25.wav").write_bytes(b"")
    with pytest.raises(SourceError, match=r"cannot read .*25\.wav"):
        made(data_dir=corpus)
    assert made(data_dir=corpus, on_error="skip").dataset_train
