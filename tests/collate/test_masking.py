from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from penstock import ChunkedDataLoader
from penstock.collate import TextCollator
from penstock.keyed import Reading, announce


class Tokenizer:
    pad_token_id = 0
    mask_token_id = 4
    vocab_size = 1000
    all_special_ids = (0, 1, 2, 3, 4)


@pytest.fixture(autouse=True)
def quiet():
    yield
    announce(None)


def read(samples, *, seed=7, epoch=0):
    announce(Reading(seed, epoch, np.asarray(samples)))


def row_of(sample, length=40):
    return [2, *((np.arange(length) * 7 + sample * 13) % 900 + 50).tolist(), 3]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.integers(0, 60), max_size=30), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    side=st.sampled_from(["right", "left"]),
)
def test_only_hidden_tokens_have_labels_and_these_give_the_sample_back(rows, share, side):
    collator = TextCollator(Tokenizer(), True, share, padding_side=side)
    batch = collator([{"input_ids": row} for row in rows])
    for row, ids, mask, labels in zip(
        rows, batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
    ):
        assert (labels[mask == 0] == -100).all() and (ids[mask == 0] == 0).all()
        real, hidden = ids[mask == 1], labels[mask == 1] != -100
        special = torch.isin(torch.tensor(row, dtype=torch.int64), torch.arange(5))
        assert not (hidden & special).any(), "special tokens are never hidden"
        assert torch.where(hidden, labels[mask == 1], real).tolist() == row
        if share in (0.0, 1.0):
            assert hidden.tolist() == ((~special) & bool(share)).tolist()


def test_shares_are_80_10_10_of_15_percent():
    rows = [{"input_ids": np.full(500, 100)} for _ in range(200)]
    batch = TextCollator(Tokenizer(), mlm=True, seed=3)(rows)
    hidden = batch["labels"] != -100
    shown = batch["input_ids"][hidden]
    assert abs(hidden.double().mean() - 0.15) < 0.006
    assert abs((shown == 4).double().mean() - 0.8) < 0.015
    assert abs((shown == 100).double().mean() - 0.1) < 0.012  # 1 in 1000 of the random ones too
    random = shown[(shown != 4) & (shown != 100)]
    assert random.min() < 50 and random.max() > 950, "random tokens are of the whole vocabulary"


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(12)), st.integers(1, 12), st.sampled_from(["right", "left"]))
def test_a_sample_is_hidden_alike_in_whatever_batch_it_comes(order, size, side):
    collator = TextCollator(Tokenizer(), mlm=True, padding_side=side)
    found = {}
    for start in range(0, 12, size):
        samples = order[start : start + size]
        read(samples)
        batch = collator([{"input_ids": row_of(i, 10 + i)} for i in samples])
        for number, i in enumerate(samples):
            real = batch["attention_mask"][number] == 1
            found[i] = batch["labels"][number][real].tolist()
    read(range(12))
    batch = TextCollator(Tokenizer(), mlm=True)(
        [{"input_ids": row_of(i, 10 + i)} for i in range(12)]
    )
    for i in range(12):
        assert batch["labels"][i][batch["attention_mask"][i] == 1].tolist() == found[i]


def labels_of(collator, samples=(5, 9)):
    return collator([{"input_ids": row_of(i)} for i in samples])["labels"]


def test_draws_change_with_epoch_and_seed_and_with_nothing_else():
    collator = TextCollator(Tokenizer(), mlm=True)
    read([5, 9])
    first = labels_of(collator)
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state()
    assert torch.equal(labels_of(collator), first)
    assert torch.equal(torch.get_rng_state(), before), "no ambient generator is touched"
    read([5, 9], epoch=1)
    assert not torch.equal(labels_of(collator), first)
    read([5, 9], seed=8)
    assert not torch.equal(labels_of(collator), first)
    assert torch.equal(labels_of(TextCollator(Tokenizer(), mlm=True, seed=7)), first)


def test_outside_of_a_loader_a_sample_is_its_place_in_the_batch():
    collator = TextCollator(Tokenizer(), mlm=True, seed=7)
    alone = labels_of(collator)
    assert torch.equal(labels_of(collator), alone)
    read([0, 1])
    assert torch.equal(labels_of(collator), alone)
    announce(None)
    assert not torch.equal(labels_of(TextCollator(Tokenizer(), mlm=True, seed=8)), alone)


def test_a_dataset_that_gave_fewer_samples_still_draws_anew_each_batch():
    collator = TextCollator(Tokenizer(), mlm=True)
    read([5, 6, 9])
    first = labels_of(collator)
    read([1, 2, 3])
    assert not torch.equal(labels_of(collator), first)


def test_the_samples_own_special_tokens_mask_is_used_and_consumed():
    sample = {"input_ids": [50, 51, 52], "special_tokens_mask": [1, 0, 1]}
    batch = TextCollator(Tokenizer(), True, 1.0)([sample])
    assert batch["labels"].tolist() == [[-100, 51, -100]]
    assert "special_tokens_mask" not in batch


def test_padding_that_samples_were_stored_with_is_never_hidden():
    sample = {"input_ids": [50, 51, 52], "attention_mask": [1, 1, 0]}
    batch = TextCollator(Tokenizer(), True, 1.0)([sample])
    assert batch["labels"].tolist() == [[50, 51, -100]]


def test_golden_draws():
    read([3], seed=42, epoch=2)
    batch = TextCollator(Tokenizer(), True, 0.5)([{"input_ids": list(range(100, 116))}])
    assert batch["input_ids"].tolist() == [
        [4, 101, 4, 664, 104, 4, 106, 107, 108, 4, 110, 111, 112, 113, 4, 115]
    ]
    assert batch["labels"].tolist() == [
        [100, -100, 102, 103, -100, 105, -100, -100, 108, 109, -100, 111, -100, -100, 114, -100]
    ]


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return {"input_ids": row_of(index, 5 + index % 7), "index": index}


def hidden_by_sample(batch_size, workers):
    collator = TextCollator(Tokenizer(), mlm=True)
    options = {"num_workers": workers, "collate_fn": collator}
    with ChunkedDataLoader(Rows(), batch_size, shuffle=True, seed=11, **options) as loader:
        found = []
        for _ in range(2):
            epoch = {}
            for batch in loader:
                for i, ids, mask in zip(
                    batch["index"].tolist(),
                    batch["input_ids"],
                    batch["attention_mask"],
                    strict=True,
                ):
                    epoch[i] = ids[mask == 1].tolist()
            found.append(epoch)
    return found


def test_loaders_hide_the_same_tokens_with_any_batch_size_and_workers():
    first, second = hidden_by_sample(4, workers=0)
    assert len(first) == len(second) == 24
    assert first != second, "another epoch hides others"
    assert hidden_by_sample(7, workers=0) == [first, second]
    assert hidden_by_sample(5, workers=2) == [first, second]
