"""A key that is one letter off is refused, with the key that was meant, its file and line."""

import inspect
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Trainer

from penstock.errors import ConfigError
from penstock.registry import _one_edit_apart as one_edit_apart
from penstock.registry import close_name
from penstock.training.config import read_settings
from penstock.training.config.settings import (
    CALLBACKS,
    IGNORED_SECTIONS,
    IGNORED_TRAIN,
    LIMITS,
    LOADER,
    MOVED,
    REMOVED_TRAINER,
    SECTIONS,
    STREAM_LOADER,
    TRAIN,
)
from tests.training.config.trees import written

OURS = {
    "": list(SECTIONS),
    "train": [*TRAIN, *LIMITS],
    "loader": [*LOADER, *STREAM_LOADER],
    "trainer": list(inspect.signature(Trainer).parameters),
    "callbacks": list(CALLBACKS),
}
ALSO = {"": IGNORED_SECTIONS, "train": IGNORED_TRAIN, "trainer": REMOVED_TRAINER}
LETTERS = st.sampled_from(string.ascii_lowercase + "_")


@st.composite
def misspelt(draw):
    """A section, one of its keys, and the key with one letter lost, added, wrong or swapped."""
    section = draw(st.sampled_from(sorted(OURS)))
    key = draw(st.sampled_from(OURS[section]))
    place = draw(st.integers(0, len(key) - 1))
    head, tail = key[:place], key[place + 1 :]
    kinds = [head + tail, head + draw(LETTERS) + key[place:], head + draw(LETTERS) + tail]
    kinds.append(head + key[place : place + 2][::-1] + key[place + 2 :])
    typed = draw(st.sampled_from(kinds))
    known = {*OURS[section], *ALSO.get(section, ())}
    assume(typed not in known and (section, typed) not in MOVED)
    return section, key, typed


@settings(max_examples=10)
@given(misspelt(), st.integers(0, 5))
def test_a_key_one_letter_off_is_refused_with_its_place(found, lines_before):
    section, key, typed = found
    text = "# a comment\n" * lines_before
    text += f"{typed}: 1\n" if not section else f"{section}:\n  # and one here\n  {typed}: {{}}\n"
    line = lines_before + (1 if not section else 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            read_settings(path)
    message = str(refused.value)
    assert f"run.yaml, line {line})" in message and "\n" not in message
    meant = message.partition("did you mean '")[2].partition("'")[0]
    assert meant == key or one_edit_apart(typed, meant)  # where two are as near, either will do


@settings(max_examples=200)
@given(misspelt())
def test_the_key_that_is_one_letter_off_is_the_one_that_was_meant(found):
    section, key, typed = found
    meant = close_name(typed, OURS[section])
    assert meant == key or one_edit_apart(typed, meant)


@given(misspelt())
def test_an_edit_is_told_from_two(found):
    _, key, typed = found
    assert one_edit_apart(typed, key) and one_edit_apart(key, typed)
    assert not one_edit_apart(key, key)
    assert not one_edit_apart(f"{typed}12", key)  # no key has digits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  train_chunk_size: 0\n", "line 2) must be at least 1 batch"),
        ("train:\n  val_chunk_size: -3\n", "line 2) must be at least 1 batch"),
        ("train:\n  train_chunk_size: 2.5\n", "got 2.5"),
        ("train:\n  train_chunk_size: true\n", "got True"),
        ("train:\n  train_chunk_size: many\n", "got 'many'"),
        ("train: {max_passes: 0}\n", "at least 1 pass"),
        ("train: {chunk_order: blocks}\n", "one of 'shuffled', 'sequential', 'block'"),
        ("train: {chunk_shuffle: 1}\n", "True or False"),
        ("train: {mode: least}\n", "one of 'min', 'max'"),
        ("train: [1, 2]\n", "train (run.yaml, line 1) must be a section"),
        ("train: {limit_train_batches: 1.5}\n", "share of them from 0.0 to 1.0"),
        ("trainer: {limit_val_batches: -1}\n", "share of them from 0.0 to 1.0"),
        ("trainer:\n  max_epochs: abc\n", "trainer.max_epochs (run.yaml, line 2) must be an int"),
        ("trainer: {max_steps: 1.5}\n", "got 1.5"),
        ("trainer: {enable_progress_bar: never}\n", "True or False"),
        ("trainer: {gradient_clip_val: much}\n", "must be a number"),
        ("loader: {batch_size: 0}\n", "at least 1 sample"),
        ("loader: {num_workers: -1}\n", "at least 0"),
        ("loader: {nothing_like_it: 3}\n", "is unknown: loader has batch_size"),
        ("trainer: {nothing_like_it: 3}\n", "is unknown: trainer has accelerator"),
        ("imports: my_models\n", "a list of module names"),
        ("train_chunk_size: 3\n", "set train.train_chunk_size instead"),
        ("trainer: {train_chunk_size: 3}\n", "set train.train_chunk_size instead"),
        ("loader: {chunk_size: 3}\n", "set train.train_chunk_size instead"),
        ("loader: {shuffle: false}\n", "set train.chunk_shuffle instead"),
        ("seed: 3\n", "set train.seed instead"),
        ("dataset: {_name_: x, train_chunk_size: 0}\n", "dataset.train_chunk_size (run.yaml"),
        ("trainer: {_target_: my.Loop}\n", "is not Lightning's Trainer"),
        ("trainer: {logger: false}\nlogger: {_target_: a.B}\n", "is given twice"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, run=text)
    with pytest.raises(ConfigError) as refused:
        read_settings("run.yaml")
    assert message in str(refused.value)
    assert "run.yaml, line" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("files", "overrides", "message"),
    [
        ({"run": "a: [1\nb: 2\n"}, [], "run.yaml, line 2, is not YAML"),
        ({"run": "a: 1\na: 2\n"}, [], "run.yaml, line 2, is not YAML: found duplicate key"),
        ({"run": "a:\n\t- 1\n"}, [], "run.yaml, line 2, is not YAML"),
        ({"run": "- 1\n- 2\n"}, [], "run.yaml"),
        ({"run": "model:\n  width: ???\n"}, [], "model.width (run.yaml, line 2) is ???"),
        (
            {"run": "model: {a: '${train.b}'}\n"},
            [],
            "model.a (run.yaml, line 1) cannot be",
        ),
        (
            {"run": "model: {a: '${eval:1+1}'}\n"},
            [],
            "model.a (run.yaml, line 1) cannot be",
        ),
        ({"run": "a: 1\n"}, ["train"], "'train' on the command line is not of the form key=value"),
        ({"run": "a: 1\n"}, ["a=[1"], "'a=[1' on the command line is not of the form"),
        ({"run": "a: 1\n"}, ["trian.seed=1"], "'trian.seed=1' on the command line"),
        ({"run": "a: 1\n"}, ["~b"], "cannot be composed"),
        (
            {"run": "defaults:\n  - loader: smal\n", "loader__small": "batch_size: 1\n"},
            [],
            "'loader/smal', requested in run.yaml, line 2, is not in .: did you mean 'small'?",
        ),
        (
            {"run": "defaults:\n  - loader: small\n", "loader__small": "batch_size: 1\n"},
            ["loader=big"],
            "'loader/big', requested by 'loader=big' on the command line",
        ),
        (
            {"run": "defaults:\n  - loader: small\n", "loader__small": "batch_sise: 1\n"},
            [],
            "loader.batch_sise (loader/small.yaml, line 1) is unknown: did you mean 'batch_size'?",
        ),
        (
            {"run": "defaults:\n  - loader: small\n", "loader__small": "a: [\n"},
            [],
            "loader/small.yaml, line 2, is not YAML",
        ),
        (
            {
                "tree__part__run": "defaults:\n  - /loader: small\n",
                "tree__loader__small": "batch_size: 1\n",
            },
            [],
            "begin it with the line '# @package _global_'",
        ),
    ],
)
def test_files_that_cannot_be_composed_are_refused(
    files, overrides, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, **files).relative_to(tmp_path)
    with pytest.raises(ConfigError) as refused:
        read_settings(path, overrides)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_no_configuration_file_is_refused(tmp_path):
    (tmp_path / "config.yml").write_text("a: 1\n")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    for path, message in (
        (tmp_path / "none.yaml", "there is no configuration file"),
        (tmp_path, "is a folder"),
        (tmp_path / "config.yml", "is a .yaml file"),
        (tmp_path / "latin.yaml", "is not text in UTF-8"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_settings(path)
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match="there is no folder"):
        read_settings(tmp_path / "empty.yaml", config_dir=tmp_path / "nowhere")
    assert read_settings(tmp_path / "empty.yaml").resolved == {}


def test_a_line_is_found_through_anchors(tmp_path):
    text = "base: &base\n  batch_sise: 1\nloader:\n  <<: *base\n"
    with pytest.raises(ConfigError, match="line 2"):
        read_settings(written(tmp_path, run=text))
