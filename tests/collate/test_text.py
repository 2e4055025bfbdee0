from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Ragged, StreamLoader
from penstock.collate import CollateError, TaskSpec, TextCollator
from penstock.errors import ConfigError


class Tokenizer:
    pad_token_id = 0


rows_of_ids = st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=8)


def form(row, kind):
    if kind == "tensor":
        return torch.tensor(row, dtype=torch.int64)
    return list(row) if kind == "list" else np.array(row, np.int32 if kind == "int32" else np.int64)


@settings(deadline=None, max_examples=100)
@given(
    rows=rows_of_ids,
    side=st.sampled_from(["right", "left"]),
    multiple=st.sampled_from([None, 1, 4, 8]),
    kind=st.sampled_from(["list", "array", "tensor", "int32"]),
)
def test_unpadding_a_batch_gives_back_the_samples(rows, side, multiple, kind):
    collator = TextCollator(Tokenizer(), padding_side=side, pad_to_multiple_of=multiple)
    batch = collator([{"input_ids": form(row, kind)} for row in rows])
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]

    longest = max(map(len, rows))
    width = longest if multiple is None else -(-longest // multiple) * multiple
    for each in (ids, mask, labels):
        assert each.shape == (len(rows), width) and each.dtype == torch.int64
    assert mask.sum(1).tolist() == [len(row) for row in rows]
    for row, its_ids, its_mask, its_labels in zip(rows, ids, mask, labels, strict=True):
        assert its_ids[its_mask == 1].tolist() == row
        assert its_labels[its_mask == 1].tolist() == row
        assert (its_ids[its_mask == 0] == 0).all() and (its_labels[its_mask == 0] == -100).all()
        padding = its_mask if side == "right" else its_mask.flip(0)
        assert (padding.diff() <= 0).all(), "real tokens are in one piece, at one end"


@settings(deadline=None, max_examples=50)
@given(rows=rows_of_ids, limit=st.integers(1, 12))
def test_no_row_is_longer_than_the_limit(rows, limit):
    batch = TextCollator(Tokenizer(), max_length=limit)([{"input_ids": row} for row in rows])
    assert batch["attention_mask"].sum(1).tolist() == [min(len(row), limit) for row in rows]
    for row, ids in zip(rows, batch["input_ids"], strict=True):
        assert ids.tolist()[: min(len(row), limit)] == row[:limit]


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5))
def test_a_decoder_is_fed_its_target_one_place_later(rows):
    samples = [{"input_ids": [7], "labels": row} for row in rows]
    batch = TextCollator(Tokenizer(), task_spec=TaskSpec.seq2seq_tiny())(samples)
    for row, labels, inputs in zip(rows, batch["labels"], batch["decoder_input_ids"], strict=True):
        assert labels.tolist()[: len(row)] == row
        assert inputs.tolist()[: len(row)] == [0, *row][: len(row)]
        assert (labels[len(row) :] == -100).all() and (inputs[len(row) :] == 0).all()


@pytest.mark.parametrize("length", [0, 1])
def test_a_batch_of_one_short_sample(length):
    batch = TextCollator(Tokenizer())([{"input_ids": [5] * length}])
    assert batch["input_ids"].tolist() == batch["labels"].tolist() == [[5] * length]


def test_pads_in_labels_are_ignored_unless_asked_for(padding):
    samples = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
    batch = TextCollator(padding)(samples)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, 5, -100]]
    batch = TextCollator(padding, label_padding="token")(samples)
    assert batch["labels"].tolist() == [[1, 2, 3], [4, 5, 0]]


def test_left_padding_also_of_a_tokenizer_that_pads_by_itself(padding):
    collator = TextCollator(padding, padding_side="left", label_padding="token")
    batch = collator([{"input_ids": [7, 8]}, {"input_ids": [9]}])
    assert batch["input_ids"].tolist() == batch["labels"].tolist() == [[7, 8], [0, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1], [0, 1]]
    assert padding.calls == 1
    assert padding.padding_side == "right", "the tokenizer is left as it was"


def test_a_real_token_that_equals_the_padding_is_seen_and_trained():
    batch = TextCollator(Tokenizer())([{"input_ids": [5, 0, 6]}, {"input_ids": [1]}])
    assert batch["attention_mask"][0].tolist() == [1, 1, 1]
    assert batch["labels"][0].tolist() == [5, 0, 6]


def test_a_tokenizer_mask_that_miscounts_is_not_believed(padding):
    pad = padding.pad
    padding.pad = lambda examples, **options: (
        (out := pad(examples, **options))
        | {"attention_mask": [[int(i != 0) for i in row] for row in out["input_ids"]]}
    )
    batch = TextCollator(padding)([{"input_ids": [5, 0, 6]}, {"input_ids": [1]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"pad_token_id": None}, 0),
        ({"pad_token_id": None, "eos_token_id": 9}, 9),
        ({"pad_token_id": 3, "eos_token_id": 9}, 3),
        ({}, 0),
    ],
)
def test_without_a_pad_token_rows_end_in_another(attributes, expected):
    tokenizer = type("Tokenizer", (), attributes)()
    batch = TextCollator(tokenizer)([{"input_ids": [5, 5]}, {"input_ids": [6]}])
    assert batch["input_ids"][1].tolist() == [6, expected]
    assert batch["labels"][1].tolist() == [6, -100]


def test_padding_that_samples_were_stored_with_is_not_trained():
    sample = {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0]}
    batch = TextCollator(Tokenizer())([sample, {"input_ids": [7], "attention_mask": [1]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, -100, -100], [7, -100, -100, -100]]


@pytest.mark.parametrize("task", [None, TaskSpec.cls_tiny(), TaskSpec("x", "text_classification")])
@pytest.mark.parametrize("name", ["labels", "label"])
def test_class_labels_stay_class_labels(task, name):
    samples = [{"input_ids": [1, 5, 6, 2], name: 1}, {"input_ids": [1, 7, 2], name: 0}]
    batch = TextCollator(Tokenizer(), task_spec=task)(samples)
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]
    assert torch.equal(batch["labels"], torch.tensor([1, 0]))


def test_a_class_from_a_field_the_task_names_and_numbers_to_regress():
    spec = TaskSpec("stars", "text_classification", target_field="stars")
    batch = TextCollator(Tokenizer(), task_spec=spec)([{"input_ids": [1], "stars": 4.5}])
    assert torch.equal(batch["labels"], torch.tensor([4.5]))


def test_classes_are_left_out_where_samples_have_none():
    batch = TextCollator(Tokenizer(), task_spec=TaskSpec.cls_tiny())([{"input_ids": [1]}])
    assert sorted(batch) == ["attention_mask", "input_ids"]


@pytest.mark.parametrize("task", [None, TaskSpec.lm_tiny()])
def test_label_sequences_that_samples_bring_are_kept(task):
    samples = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [4], "labels": [4]},
    ]
    batch = TextCollator(Tokenizer(), task_spec=task)(samples)
    assert batch["labels"].tolist() == [[-100, 2, 3], [4, -100, -100]]


def test_a_class_beside_a_text_that_is_modelled_is_batched_as_it_is():
    samples = [{"input_ids": [1, 2], "label": 1}, {"input_ids": [3], "label": 0}]
    batch = TextCollator(Tokenizer(), task_spec=TaskSpec.lm_tiny())(samples)
    assert batch["labels"].tolist() == [[1, 2], [3, -100]]
    assert batch["label"].tolist() == [1, 0]


def test_seq2seq_starts_from_the_tokenizers_begin_and_keeps_given_inputs():
    tokenizer = type("Tokenizer", (), {"pad_token_id": 0, "bos_token_id": 8})()
    collator = TextCollator(tokenizer, task_spec=TaskSpec.seq2seq_tiny(), padding_side="left")
    batch = collator([{"input_ids": [1, 2], "labels": [5, 6]}, {"input_ids": [3], "labels": [7]}])
    assert batch["input_ids"].tolist() == [[1, 2], [0, 3]]
    assert batch["labels"].tolist() == [[5, 6], [7, -100]]
    assert batch["decoder_input_ids"].tolist() == [[8, 5], [8, 0]]
    batch = collator([{"input_ids": [1], "labels": [5], "decoder_input_ids": [9, 9, 9]}])
    assert batch["decoder_input_ids"].tolist() == [[9, 9, 9]]
    assert "labels" not in collator([{"input_ids": [1]}])


def test_a_target_left_out_of_the_loss_is_fed_as_padding():
    collator = TextCollator(Tokenizer(), task_spec=TaskSpec.seq2seq_tiny())
    batch = collator([{"input_ids": [1], "labels": [-100, 5, 6]}])
    assert batch["labels"].tolist() == [[-100, 5, 6]]
    assert batch["decoder_input_ids"].tolist() == [[0, 0, 5]]


def test_the_tasks_max_seq_len_cuts_rows_and_an_argument_wins():
    long = [{"input_ids": list(range(200))}]
    assert TextCollator(Tokenizer(), task_spec=TaskSpec.lm_tiny())(long)["labels"].shape == (1, 128)
    collator = TextCollator(Tokenizer(), task_spec=TaskSpec.lm_tiny(), max_length=7)
    assert collator(long)["input_ids"].tolist() == [list(range(7))]
    tokenizer = type("Tokenizer", (), {"pad_token_id": 0, "truncation_side": "left"})()
    batch = TextCollator(tokenizer, max_length=2)([{"input_ids": [1, 2, 3], "labels": [4, 5, 6]}])
    assert (batch["input_ids"].tolist(), batch["labels"].tolist()) == ([[2, 3]], [[5, 6]])


@pytest.mark.parametrize(
    "samples",
    [
        [torch.tensor([1, 2, 3]), torch.tensor([4])],
        [(torch.tensor([1, 2, 3]),), (torch.tensor([4]),)],
        [[1, 2, 3], [4]],
    ],
)
def test_bare_rows_and_one_tuples_are_token_rows(samples):
    batch = TextCollator(Tokenizer())(samples)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]


def test_pairs_are_rows_and_labels():
    batch = TextCollator(Tokenizer())([([1, 2], 5), ([3], 6)])
    assert batch["labels"].tolist() == [5, 6]


def test_other_fields_are_batched_and_those_with_a_value_per_token_padded():
    samples = [
        {"input_ids": [1, 2], "token_type_ids": [0, 1], "id": 7, "name": "a", "score": [0.5]},
        {"input_ids": [3], "token_type_ids": [1], "id": 8, "name": "b", "score": [1.5]},
    ]
    batch = TextCollator(Tokenizer(), padding_side="left")(samples)
    assert batch["token_type_ids"].tolist() == [[0, 1], [0, 1]]
    assert batch["id"].tolist() == [7, 8]
    assert batch["name"] == ["a", "b"]


def test_a_collator_survives_pickling(masking):
    collator = TextCollator(Tokenizer(), task_spec=TaskSpec.lm_tiny())
    again = pickle.loads(pickle.dumps(collator))
    samples = [{"input_ids": [1, 2]}]
    assert torch.equal(again(samples)["labels"], collator(samples)["labels"])


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="empty batch"):
        TextCollator(Tokenizer())([])


def test_a_tokenizer_that_leaves_rows_ragged_is_refused_with_their_lengths(padding):
    padding.pad = lambda examples, **options: {"input_ids": [[1, 2, 3], [4]]}
    with pytest.raises(ValueError, match=r"lengths \[3, 1\]"):
        TextCollator(padding)([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"input_ids": [1], "labels": 1}, {"input_ids": [2]}], "sample 0 has the field 'labels'"),
        ([{"input_ids": [1]}, {"input_ids": [2], "labels": 1}], "sample 1 has the field 'labels'"),
        ([{"input_ids": [1]}, {"input_ids": [[2]]}], "sample 1, 'input_ids'"),
        ([{"input_ids": [1]}, {"input_ids": [2.5]}], "sample 1, 'input_ids'"),
        ([{"input_ids": [1]}, {"input_ids": 2}], "sample 1, 'input_ids'"),
        ([{"input_ids": [1, 2], "labels": [1]}], "2 tokens but 'labels' of length 1"),
        ([{"x": 1}], r"no tokens or text .*\['x'\]"),
        ([{"text": "words"}], "is not callable and has no encode"),
        ([(1, 2, 3)], "tuple of 3"),
        ([{"input_ids": [1]}, None], "sample 1 is None"),
    ],
)
def test_samples_that_cannot_form_a_batch_are_refused_by_number(samples, message):
    with pytest.raises(ValueError, match=message):
        TextCollator(Tokenizer())(samples)


def test_classes_for_a_task_that_models_tokens_are_refused():
    with pytest.raises(CollateError, match="name the task 'classification'"):
        TextCollator(Tokenizer(), task_spec=TaskSpec.lm_tiny())([{"input_ids": [1], "labels": 1}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding_side": "rigth"}, "did you mean 'right'"),
        ({"mlm_probability": 1.5}, "must be at most 1, got 1.5"),
        ({"label_padding": "pad"}, "an integer or 'token'"),
        ({"max_length": 0}, "at least 1 token"),
        ({"pad_to_multiple_of": 0}, "at least 1 token"),
        ({"mlm": True, "task_spec": TaskSpec.cls_tiny()}, "does not fit"),
        ({"mlm": True}, "mask_token_id and vocab_size and all_special_ids"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TextCollator(Tokenizer(), **options)


def test_no_tokenizer_is_refused():
    with pytest.raises(ValueError, match="tokenizer required"):
        TextCollator(None)


# -- batches of a stream

WORDS = ["a bb", "", "ccc d e", "é"]


class ByteTokenizer:
    pad_token_id = 0

    def __call__(self, text):
        return [byte + 1 for byte in text.encode()]


@given(st.lists(st.lists(st.integers(0, 99), max_size=7), min_size=1, max_size=9), st.data())
def test_ragged_rows_are_collated_as_their_samples(rows, data):
    limit = data.draw(st.sampled_from([None, 1, 4]))
    side = data.draw(st.sampled_from(["right", "left"]))
    tokenizer = ByteTokenizer()
    tokenizer.truncation_side = data.draw(st.sampled_from(["right", "left"]))
    collator = TextCollator(tokenizer, padding_side=side, max_length=limit, pad_to_multiple_of=4)
    labels = torch.arange(len(rows))
    ragged = Ragged.from_rows([torch.tensor(row, dtype=torch.int32) for row in rows])
    if not max(map(len, rows)):
        return
    samples = [{"input_ids": row, "number": label} for row, label in zip(rows, labels, strict=True)]
    wanted = collator(samples)
    found = collator({"input_ids": ragged, "number": labels})
    alone = collator(ragged)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor)
        assert name == "number" or torch.equal(alone[name], tensor)


def test_text_of_a_table_is_collated_by_a_stream():
    table = pa.table({"text": WORDS, "label": [0, 1, 1, 0], "title": WORDS[::-1]})
    collator = TextCollator(ByteTokenizer(), task_spec=TaskSpec("t", "text_classification"))
    with StreamLoader(table, 4, shuffle=False, collate_fn=collator) as loader:
        found = next(iter(loader))
    wanted = collator([{"text": w, "label": y} for w, y in zip(WORDS, [0, 1, 1, 0], strict=True)])
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(found[name], wanted[name])
    assert found["title"].strings() == WORDS[::-1]
