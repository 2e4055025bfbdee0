"""Hugging Face tokenizers, trained here, through the text collator."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding

from penstock.collate import TaskSpec, TextCollator

TEXTS = ["the cat sat", "", "water runs through the pipe, the turbine turns", "zebra"]


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), min_size=1, max_size=6),
    multiple=st.sampled_from([None, 8]),
    side=st.sampled_from(["right", "left"]),
)
def test_padding_equals_the_tokenizers_own(trained, rows, multiple, side):
    samples = [
        {"input_ids": row, "attention_mask": [1] * len(row), "token_type_ids": [i % 2] * len(row)}
        for i, row in enumerate(rows)
    ]
    ours = TextCollator(trained, padding_side=side, pad_to_multiple_of=multiple)(samples)
    theirs = trained.pad(
        samples, padding_side=side, pad_to_multiple_of=multiple, return_tensors="pt"
    )
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(ours[name], theirs[name])


def test_a_real_data_collator_gives_the_same_batch(trained):
    samples = [trained(text) | {"label": i} for i, text in enumerate(TEXTS)]
    theirs = DataCollatorWithPadding(trained)([dict(sample) for sample in samples])
    ours = TextCollator(trained, task_spec=TaskSpec.cls_tiny())(samples)
    assert sorted(ours) == sorted(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_seq2seq_labels_equal_those_of_the_real_data_collator(trained):
    samples = [
        {"input_ids": trained(text)["input_ids"], "labels": trained(text[:9])["input_ids"]}
        for text in TEXTS
    ]
    theirs = DataCollatorForSeq2Seq(trained)([dict(sample) for sample in samples])
    ours = TextCollator(trained, task_spec=TaskSpec.seq2seq_tiny())(samples)
    for name in ("input_ids", "attention_mask", "labels"):
        assert torch.equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    "samples",
    [
        [{"text": text} for text in TEXTS],
        TEXTS,
        [(text,) for text in TEXTS],
        [{"sentence": text} for text in TEXTS],
    ],
)
def test_raw_text_works_straight_away(trained, samples):
    spec = TaskSpec("mine", "lm", input_fields=["sentence"])
    batch = TextCollator(trained, task_spec=spec)(samples)
    for text, ids, mask in zip(TEXTS, batch["input_ids"], batch["attention_mask"], strict=True):
        assert ids[mask == 1].tolist() == trained(text)["input_ids"]
    assert torch.equal(batch["labels"] == -100, batch["attention_mask"] == 0)


def test_the_field_of_text_can_be_named(trained):
    samples = [{"body": text, "title": "x", "label": 1} for text in TEXTS]
    batch = TextCollator(trained, text_field="body", task_spec=TaskSpec.cls_tiny())(samples)
    assert batch["labels"].tolist() == [1, 1, 1, 1]
    assert batch["title"] == ["x"] * 4
    assert "body" not in batch


def test_raw_text_is_cut_with_its_closing_token_kept(trained):
    batch = TextCollator(trained, max_length=4)([{"text": TEXTS[2]}])
    assert batch["input_ids"].shape == (1, 4)
    assert batch["input_ids"][0, -1] == trained.sep_token_id


def test_raw_source_and_target_text(trained):
    spec = TaskSpec("sums", "seq2seq", input_fields=["document"], target_field="summary")
    samples = [{"document": text, "summary": text[:7]} for text in TEXTS]
    batch = TextCollator(trained, task_spec=spec)(samples)
    for text, labels in zip(TEXTS, batch["labels"], strict=True):
        assert labels[labels != -100].tolist() == trained(text[:7])["input_ids"]
    assert batch["decoder_input_ids"].shape == batch["labels"].shape


def test_masked_lm_of_raw_text_never_hides_special_tokens(trained):
    batch = TextCollator(trained, mlm=True, mlm_probability=1.0)([{"text": text} for text in TEXTS])
    hidden = batch["labels"][batch["labels"] != -100]
    assert not torch.isin(hidden, torch.tensor(trained.all_special_ids)).any()
    words = [trained(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    known = [i for row in words for i in row if i not in trained.all_special_ids]
    assert hidden.tolist() == known


def test_a_collator_with_a_real_tokenizer_survives_pickling(trained):
    collator = pickle.loads(pickle.dumps(TextCollator(trained, mlm=True)))
    assert collator([{"text": "the cat"}])["input_ids"].shape == (1, 4)


def test_a_tokenizer_of_the_tokenizers_library_can_encode(trained):
    raw = trained.backend_tokenizer
    batch = TextCollator(raw)(["the cat", "the cat sat"])
    assert batch["attention_mask"].sum(1).tolist() == [4, 5]


def test_any_callable_that_gives_ids_can_tokenise():
    class Letters:
        pad_token_id = 0

        def __call__(self, text):
            return [ord(letter) for letter in text]

    batch = TextCollator(Letters(), max_length=3)(["abcd", "", "b"])
    assert batch["input_ids"].tolist() == [[97, 98, 99], [0, 0, 0], [98, 0, 0]]
    assert batch["attention_mask"].sum(1).tolist() == [3, 0, 1]


def test_text_beside_something_else_is_refused(trained):
    with pytest.raises(ValueError, match="sample 1 has None where sample 0 has text"):
        TextCollator(trained)([{"text": "a"}, {"text": None}])
