"""The steering dataset: nine fields, keyed variants, and what may change while it is used."""

from __future__ import annotations

import json
import logging
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from penstock.domains.steering import JASPERSteeringDataset, build_steering_directory
from penstock.errors import PenstockError

KEYS = {
    "question_emb": (64,),
    "target_source_emb": (64,),
    "steering": (64,),
    "negative_embs": (4, 64),
    "cluster_id": (),
    "relevance": (),
    "centroid_distance": (),
    "steering_variant": (),
    "negative_tiers": (4,),
}
STEERING = (None, "steering_centroid", "steering_keyword_weighted", "steering_residual")


def straightforward(data: JASPERSteeringDataset, index: int) -> dict[str, torch.Tensor]:
    """One pair, looked up by hand."""
    row = int(data._rows[index])
    question, source = data.pair_index[row].tolist()
    variant = int(data.variants_of(np.array([index]))[0])
    name = STEERING[variant]
    return {
        "question_emb": data.question_embs[question],
        "target_source_emb": data.source_embs[source],
        "steering": torch.zeros(data.embedding_dim) if name is None else getattr(data, name)[row],
        "negative_embs": data.source_embs[data.hard_negatives[row]],
        "cluster_id": data.pair_cluster_id[row],
        "relevance": data.pair_relevance[row],
        "centroid_distance": data.centroid_distances[row],
        "steering_variant": torch.tensor(variant),
        "negative_tiers": data.negative_tiers[row],
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# -- laws


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    directory = build_steering_directory(
        tmp_path_factory.mktemp("steering"), pairs=90, config={"curriculum": {"mode": "linear"}}
    )
    return JASPERSteeringDataset(directory, "train")


@given(st.data())
def test_a_batch_is_its_samples_one_by_one(shared, data):
    picks = data.draw(st.lists(st.integers(0, len(shared) - 1), min_size=1, max_size=20))
    batch = shared.__getbatch__(np.array(picks))
    wanted = [straightforward(shared, i) for i in picks]
    assert same(batch, {k: torch.stack([w[k] for w in wanted]) for k in batch})
    assert all(same(a, b) for a, b in zip(shared.__getitems__(picks), wanted, strict=True))
    assert same(shared[picks[0]], wanted[0])


@given(st.integers(0, 10**6), st.sampled_from([None, "zero", "centroid", "keyword", "residual"]))
def test_variants_are_a_function_of_seed_epoch_and_pair(shared, epoch, forced):
    other = JASPERSteeringDataset(shared.dataset_dir, "train", epoch)
    other.force_steering(forced)
    order = np.random.default_rng(epoch).permutation(len(shared))
    back = other.variants_of(order)[np.argsort(order)]
    assert (back == other.variants_of(np.arange(len(shared)))).all()
    if forced is None:
        assert (back == shared.variants_of(np.arange(len(shared)), epoch)).all()
        longer = JASPERSteeringDataset(shared.dataset_dir, "train", epoch, seed=7)
        assert (longer.variants_of(order) != other.variants_of(order)).any()


# -- what it gives


def test_splits_have_their_pairs(plain):
    assert {s: len(JASPERSteeringDataset(plain, s)) for s in ("train", "val", "test")} == {
        "train": 70,
        "val": 15,
        "test": 15,
    }
    splits = JASPERSteeringDataset.create_combined_splits(plain, epoch=3)
    assert [len(splits[s]) for s in ("train", "val", "test")] == [70, 15, 15]
    assert splits["val"].current_epoch == 3
    assert splits["train"].question_embs.data_ptr() == splits["val"].question_embs.data_ptr()


def test_a_sample_has_nine_fields_of_given_shapes(plain):
    data = JASPERSteeringDataset(plain, "train", epoch=0)
    assert {k: tuple(v.shape) for k, v in data[0].items()} == KEYS
    assert (data.embedding_dim, data.n_neg, data.device) == (64, 4, torch.device("cpu"))
    assert data.storage_format == "pt" and data.use_mmap is False and data.config["n_neg"] == 4
    assert same(data[3], straightforward(data, 3))


def test_variant_frequencies_are_those_of_the_curriculum(plain):
    data = JASPERSteeringDataset(plain, "train")
    drawn = [int(data[i % len(data)]["steering_variant"]) for i in range(1000)]
    found = np.bincount(drawn, minlength=4) / 1000
    assert np.abs(found - np.array([1 / 2, 1 / 6, 1 / 6, 1 / 6])).max() < 0.05


def test_the_curriculum_moves_with_the_epoch(plain):
    data = JASPERSteeringDataset(plain, "train")
    at = {}
    for epoch in (0, 50, 100):
        data.set_epoch(epoch)
        at[epoch] = data.steering_probs
    assert at[0]["zero"] > at[50]["zero"] > at[100]["zero"]
    assert at[0]["centroid"] < at[50]["centroid"] < at[100]["centroid"]
    assert data.current_epoch == 100
    shares = np.bincount(data.variants_of(np.arange(70)), minlength=4) / 70
    assert np.abs(shares - [0.1, 0.3, 0.3, 0.3]).max() < 0.02


def test_same_epoch_same_variants_another_epoch_others(plain):
    def variants(epoch):
        data = JASPERSteeringDataset(plain, "train", epoch=epoch)
        return [int(data[i]["steering_variant"]) for i in range(70)]

    assert variants(5) == variants(5) != variants(6)


def test_forcing_and_handing_back(plain):
    data = JASPERSteeringDataset(plain, "train")
    before = data.variants_of(np.arange(70))
    for number, name in enumerate(("zero", "centroid", "keyword", "residual")):
        data.force_steering(name)
        batch = data.__getbatch__(np.arange(10))
        assert data.forced_steering == name
        assert (batch["steering_variant"] == number).all()
        table = STEERING[number]
        wanted = torch.zeros(10, 64) if table is None else getattr(data, table)[data._rows[:10]]
        assert torch.equal(batch["steering"], wanted)
    data.force_steering(None)
    assert (data.variants_of(np.arange(70)) == before).all()
    with pytest.raises(ValueError, match=r"got 'centorid'; did you mean 'centroid'\?"):
        data.force_steering("centorid")


def test_reloaded_negatives_are_seen_and_checked(plain):
    data, other = (JASPERSteeringDataset(plain, "train") for _ in range(2))
    before = data[0]["negative_embs"]
    fresh = (data.hard_negatives + 1) % 80
    torch.save(fresh, plain / "hard_negatives.pt")
    data.reload_negatives()
    assert torch.equal(data[0]["negative_embs"], data.source_embs[fresh[0]])
    assert not torch.equal(data[0]["negative_embs"], before)
    assert torch.equal(other[0]["negative_embs"], before)  # each dataset when it is told to

    for bad, message in (
        (fresh - 80, "hard_negatives references source -"),
        (fresh[:60], r"of shape \(pairs=100, negatives=4\), found int64 of shape \(60, 4\)"),
    ):
        torch.save(bad, plain / "hard_negatives.pt")
        with pytest.raises(ValueError, match=message):
            data.reload_negatives()
        assert torch.equal(data[0]["negative_embs"], data.source_embs[fresh[0]])


def test_all_values_are_in_their_ranges(plain):
    for split in ("train", "val", "test"):
        data = JASPERSteeringDataset(plain, split)
        data.schema().check(data.__getbatch__(np.arange(len(data))))


# -- its life


def test_closed_it_has_no_tables(plain):
    with JASPERSteeringDataset(plain, "train") as data:
        assert data[0]["question_emb"].shape == (64,)
    with pytest.raises(AttributeError, match="question_embs"):
        _ = data.question_embs
    with pytest.raises(ValueError, match="closed"):
        _ = data[0]
    JASPERSteeringDataset(plain, "train")[0]  # others live on


def test_memory_is_logged(plain, caplog):
    with caplog.at_level(logging.INFO):
        JASPERSteeringDataset(plain, "train")
    assert any("memory=" in record.message for record in caplog.records)


def test_indices_out_of_range_are_index_errors(plain):
    data = JASPERSteeringDataset(plain, "train")
    for wrong in (70, -1):
        with pytest.raises(IndexError, match=f"Index {wrong} out of range"):
            _ = data[wrong]
    with pytest.raises(TypeError):
        _ = data["0"]


def test_mapping_is_real_and_chosen_by_size(plain):
    data = JASPERSteeringDataset(plain, "train", use_mmap=True)
    read = JASPERSteeringDataset(plain, "train", use_mmap=False)
    assert data.use_mmap is True and read.use_mmap is False
    assert all(same(data[i], read[i]) for i in range(70))
    mapped = [m for m in Path("/proc/self/maps").read_text().split("\n") if str(plain) in m]
    assert {"steering_residual.pt", "source_embs.pt"} <= {
        line.split("/")[-1].strip() for line in mapped
    }
    assert not any("hard_negatives" in line for line in mapped)  # it may be rewritten in place

    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"n_pairs": 10**8}))
    assert JASPERSteeringDataset(plain, "train").use_mmap is True


def test_other_devices_hold_every_field(plain):
    data = JASPERSteeringDataset(plain, "train", device="meta")
    data.force_steering("zero")
    for forced in ("zero", "centroid"):
        data.force_steering(forced)
        assert {v.device.type for v in data.__getbatch__(np.arange(3)).values()} == {"meta"}
    with pytest.raises(ValueError, match="use_mmap=True needs tables on the CPU"):
        JASPERSteeringDataset(plain, "train", device="meta", use_mmap=True)


def test_a_directory_is_read_once_while_it_is_held(plain):
    a, b = (JASPERSteeringDataset(plain, "train") for _ in range(2))
    assert a.question_embs is b.question_embs
    a.force_steering("zero")
    a.set_epoch(9)
    assert b.forced_steering is None and b.current_epoch == 0
    for value in range(20):  # however soon after a read a file is written again
        torch.save(torch.full((50, 64), float(value)), plain / "question_embs.pt")
        later = JASPERSteeringDataset(plain, "train")
        assert (later.question_embs == value).all()
    assert not (a.question_embs == a.question_embs[0, 0]).all()


# -- copies, and stock loaders


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps])
def test_it_can_be_pickled(plain, mapped, dumps):
    data = JASPERSteeringDataset(plain, "train", epoch=7, use_mmap=mapped)
    data.force_steering("residual")
    copy = pickle.loads(dumps(data))
    assert copy.current_epoch == 7 and copy.forced_steering == "residual"
    assert all(same(copy[i], data[i]) for i in range(70))
    if mapped:
        assert len(dumps(data)) < 20_000


def test_mapped_files_that_changed_on_the_way_are_noticed(plain):
    data = JASPERSteeringDataset(plain, "train", use_mmap=True)
    sent = pickle.dumps(data)
    fresh = plain / "fresh.pt"
    torch.save(torch.zeros(50, 64), fresh)
    fresh.replace(plain / "question_embs.pt")
    with pytest.raises(ValueError, match="changed since this dataset was built"):
        pickle.loads(sent)


@pytest.mark.parametrize(
    "start", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.proof)]
)
def test_persistent_workers_of_a_stock_loader_see_every_change(plain, start):
    data = JASPERSteeringDataset(plain, "train")
    loader = DataLoader(
        data, 7, num_workers=2, persistent_workers=True, multiprocessing_context=start
    )

    def variants():
        return torch.cat([b["steering_variant"] for b in loader]).numpy()

    everything = np.arange(70)
    assert (variants() == data.variants_of(everything, 0)).all()
    data.set_epoch(100)
    assert (variants() == data.variants_of(everything, 100)).all()
    data.force_steering("keyword")
    assert (variants() == 2).all()
    data.force_steering(None)
    torch.save((data.hard_negatives + 1) % 80, plain / "hard_negatives.pt")
    data.reload_negatives()
    got = torch.cat([b["negative_embs"] for b in loader])
    assert torch.equal(got, data.source_embs[data.hard_negatives[data._rows]])
    loader._iterator._shutdown_workers()


def test_variants_do_not_depend_on_workers_of_a_stock_loader(plain):
    data = JASPERSteeringDataset(plain, "train")
    runs = []
    for workers in (0, 2):
        loader = DataLoader(data, 8, num_workers=workers)
        runs.append(torch.cat([b["steering_variant"] for b in loader]))
    assert torch.equal(*runs)


# -- refusals


def test_what_is_missing_is_named(plain, tmp_path):
    with pytest.raises(ValueError, match="Dataset directory not found"):
        JASPERSteeringDataset(tmp_path / "nowhere", "train")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="Config file not found"):
        JASPERSteeringDataset(empty, "train")
    (empty / "config.json").write_bytes((plain / "config.json").read_bytes())
    with pytest.raises(ValueError, match="No dataset files found"):
        JASPERSteeringDataset(empty, "train")
    with pytest.raises(ValueError, match="Invalid storage_format"):
        JASPERSteeringDataset(plain, "train", storage_format="zip")
    with pytest.raises(ValueError, match=r"Split file not found.*did you mean 'train'\?"):
        JASPERSteeringDataset(plain, "trian")
    (plain / "val_idx.pt").unlink()
    with pytest.raises(ValueError, match=r"Split file not found: val_idx\.pt"):
        JASPERSteeringDataset(plain, "val")
    JASPERSteeringDataset(plain, "train")  # needs no other split's file
    with pytest.raises(PenstockError, match="epoch must be at least 0"):
        JASPERSteeringDataset(plain, "train", epoch=-1)


@pytest.mark.parametrize(
    ("table", "at", "value", "message"),
    [
        ("pair_index", (3, 0), 999, "pair_index references question 999, but only 50 questions"),
        ("pair_index", (3, 1), 500, "pair_index references source 500, but only 80 sources exist"),
        ("pair_index", (3, 0), -3, "pair_index references question -3, but only 50 questions"),
        ("hard_negatives", (3, 1), 999, "hard_negatives references source 999, but only 80"),
        ("hard_negatives", (3, 1), -1, "hard_negatives references source -1, but only 80"),
        ("pair_cluster_id", (3,), 77, "pair_cluster_id references cluster 77, but only 5"),
        ("train_idx", (3,), 999, "Split indices reference pair 999, but only 100 pairs exist"),
        ("train_idx", (3,), -1, "Split indices reference pair -1, but only 100 pairs exist"),
    ],
)
def test_references_are_checked_at_both_ends(plain, table, at, value, message):
    tensor = torch.load(plain / f"{table}.pt")
    tensor[at] = value
    torch.save(tensor, plain / f"{table}.pt")
    with pytest.raises(ValueError, match=f"{message}.*row 3"):
        JASPERSteeringDataset(plain, "train")


def test_an_empty_split_is_refused(plain):
    torch.save(torch.empty(0, dtype=torch.int64), plain / "train_idx.pt")
    with pytest.raises(ValueError, match=r"train_idx\.pt has no pairs"):
        JASPERSteeringDataset(plain, "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is not a valid config: Expecting"),
        ("[]", "config.json must be a mapping"),
        ('{"n_neg": 4}', "embedding_dim must be an integer, got None"),
        ('{"n_neg": 4, "embedding_dim": "64"}', "embedding_dim must be an integer"),
        ('{"n_neg": 4, "embedding_dim": 32}', r"dim=32\), found float32 of shape \(50, 64\)"),
        ('{"n_neg": 5, "embedding_dim": 64}', r"negatives=5\), found int64 of shape \(100, 4\)"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(plain, text, message):
    (plain / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        JASPERSteeringDataset(plain, "train")


def test_a_config_without_probabilities_takes_the_documented_default(plain):
    (plain / "config.json").write_text('{"embedding_dim": 64, "n_neg": 4}')
    assert set(JASPERSteeringDataset(plain, "train").steering_probs.values()) == {0.25}
