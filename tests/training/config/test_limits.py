"""Configuration files that are damaged, too large, or stand for too much: one sentence, soon."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, PenstockError
from penstock.training.config import read_settings
from penstock.training.config.compose import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from tests.training.config.trees import written

LEVELS = 12
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, LEVELS)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, LEVELS)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2 * MAX_DEPTH))
TOO_LARGE = {
    "aliases": (BOMB, "more than 20,000 values"),
    "merged": (MERGES, "more than 20,000 values"),
    "aliases within each other": (CHAIN, f"more than {MAX_DEPTH} levels"),
    "nested": (f"model: {'[' * 5000}{']' * 5000}\n", f"more than {MAX_DEPTH} levels"),
    "nested sections": (f"model: {'{a: ' * 5000}1{'}' * 5000}\n", f"more than {MAX_DEPTH} levels"),
    "a long list": (f"model: [{'1, ' * MAX_VALUES}1]\n", "more than 20,000 values"),
    "many bytes": (f"model: {'x' * MAX_BYTES}\n", "bytes, a configuration may have"),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_file_that_is_too_large_is_refused_before_it_is_composed(tmp_path, kind):
    text, said = TOO_LARGE[kind]
    with pytest.raises(ConfigError, match=said) as error:
        read_settings(written(tmp_path, run=text))
    assert "run.yaml" in str(error.value) and "keep long lists in a file" in str(error.value)


@pytest.mark.parametrize(
    ("entry", "overrides"),
    [
        ("defaults: [model: bomb, _self_]\n", []),
        ("defaults: [/model/bomb, _self_]\n", []),
        ("defaults: [between, _self_]\n", []),
        ("defaults: [model: small, _self_]\n", ["model=bomb"]),
        ("defaults: [model: small, override /model: bomb, _self_]\n", []),
    ],
)
def test_so_is_one_that_another_names(tmp_path, entry, overrides):
    path = written(
        tmp_path,
        run=entry,
        between="defaults: [model: bomb]\n",
        model__bomb=BOMB,
        model__small="a: 1\n",
    )
    with pytest.raises(ConfigError, match=r"bomb.yaml, line \d+: more than 20,000 values"):
        read_settings(path, overrides)


def test_aliases_as_people_use_them_are_read(tmp_path):
    text = "model: {a: &a {x: [1, 2]}, b: *a, c: {<<: *a, y: 3}}\n"
    model = read_settings(written(tmp_path, run=text)).model
    assert model == {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}
    long = read_settings(written(tmp_path, run=f"model: {{n: [{'1, ' * 3000}1]}}\n"))
    assert len(long.model["n"]) == 3001


@pytest.mark.parametrize(
    "value", ["1" + "0" * 30, "-1" + "0" * 30, "1" + "0" * 5000, "0x" + "F" * 5000, ".nan", "1e999"]
)
@pytest.mark.parametrize(
    "key", ["train_chunk_size", "max_passes", "chunk_seed", "checkpoint_every", "seed"]
)
def test_integers_that_no_computer_counts_to_are_refused(tmp_path, key, value):
    with pytest.raises(ConfigError, match=r"run.yaml|whole number") as error:
        read_settings(written(tmp_path, run=f"train: {{{key}: {value}}}\n"))
    assert len(str(error.value)) < 600


GOOD = """\
defaults: [_self_]
train: {train_chunk_size: 20, max_passes: 2}
trainer: {max_epochs: 3, limit_val_batches: 0.5}
loader: {batch_size: 32, num_workers: 0}
model: &m {_target_: torch.nn.Linear, in_features: 4, out_features: "${train.max_passes}"}
task: [*m, ???]
"""
PIECES = ["", " ", "\n", ":", "- ", "{", "}", "[", "]", "&a", "*a", "*m", "!!int", "!!binary", "${",
    "${train}", "???", "null", "~", '"', "'", "\t", "\x00", "\x80", "é", "<<: *m", "|", "#", "@",
    "2024-99-99", "0o9", "1_0", "defaults: 3", "? ", "...", "---", "%YAML 9"]  # fmt: skip


@given(st.data())
@settings(max_examples=150)
def test_a_damaged_file_is_read_or_refused_with_its_name(tmp_path_factory, data):
    text = GOOD
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(PIECES)) + text[at + cut :]
    folder = tmp_path_factory.mktemp("yaml")
    file = folder / "run.yaml"
    file.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    try:
        read_settings(file)
    except PenstockError as error:
        assert "run.yaml" in str(error) or "is not in" in str(error), str(error)
        assert len(str(error)) < 1000
