"""What the documents behind sequence datasets got wrong, each as a test of the right thing."""

import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import soundfile
import torch

from penstock import PlanError
from penstock.datamodules import SequenceDataset
from penstock.domains.audio import QuantizedAutoregressiveAudio


class Numbers(SequenceDataset):
    _name_ = "numbers of defects"

    def setup(self):
        self.dataset_train = [(torch.tensor([i]), i) for i in range(30)]
        self.dataset_val = [(torch.tensor([i]), i) for i in range(100, 120)]


def made(**options):
    data = Numbers(batch_size=3, **options)
    data.setup()
    return data


def numbers(loader):
    return [int(n) for batch in loader for n in batch[1]]


def test_defect_8_the_other_chunk_size_is_inferred_after_setup_and_both_can_be_read():
    for given, sizes in (
        ({"train_chunk_size": 4}, (4, 7)),
        ({"val_chunk_size": 2}, (10, 2)),
        ({"train_chunk_size": 4, "val_chunk_size": 2}, (4, 2)),
        ({}, (None, None)),
    ):
        data = Numbers(batch_size=3, **given)  # before setup: no error, and no number made up
        explicit = given.get("train_chunk_size"), given.get("val_chunk_size")
        assert (data.train_chunk_size, data.val_chunk_size) == explicit
        data.setup()
        assert (data.train_chunk_size, data.val_chunk_size) == sizes
        assert (data.explicit_train_chunk_size, data.explicit_val_chunk_size) == explicit


def test_defect_11_asking_for_iterators_and_lengths_moves_nothing():
    data, still = made(train_chunk_size=4, val_chunk_size=2), made(train_chunk_size=4)
    loader = data.train_dataloader()
    iter(loader), len(loader), iter(loader), loader.peek(), data.state_dict()
    numbers(data.val_dataloader()), next(iter(data.val_dataloader()))
    assert data.current_train_chunk == data.current_val_chunk == 0
    assert numbers(loader) == numbers(still.train_dataloader())
    assert data.current_train_chunk == 1  # because it was delivered


def test_defect_13_validation_is_the_same_samples_in_the_same_order():
    data = made(val_chunk_size=2)
    first = numbers(data.val_dataloader())
    for _ in range(3):
        numbers(data.train_dataloader())
        assert numbers(data.val_dataloader()) == first == sorted(first)
    assert first != list(range(100, 106))  # from everywhere, not the beginning
    assert numbers(made(val_chunk_size=2).val_dataloader()) == first


def test_defect_15_one_loader_and_one_set_of_workers_serve_all_chunks():
    data = made(train_chunk_size=2, loader={"num_workers": 1})
    with data:
        numbers(data.train_dataloader())
        before = data.train_dataloader()._workers
        for _ in range(5):
            numbers(data.train_dataloader())
        assert data.train_dataloader()._workers is before is not None
    pieces = made(train_chunk_size=2).train_dataloader(_name_="tbptt", chunk_len=1, overlap_len=1)
    assert type(pieces).__name__ == "TBPTTDataLoader" and pieces.chunk_size == 2


def test_defect_16_an_error_of_the_dataset_reaches_the_loop():
    class Broken(list):
        def __getitem__(self, index):
            raise RuntimeError("the disk is on fire")

    data = made(train_chunk_size=2)
    data.dataset_train = Broken(data.dataset_train)
    with pytest.raises(RuntimeError, match="on fire"):
        numbers(data.train_dataloader())
    assert data.current_train_chunk == 0
    with pytest.raises(PlanError, match="needs an order"):
        data.train_dataloader(sampler=[1])  # said, not passed over


def test_defect_17_padding_is_along_the_length_for_both_and_goes_to_spawned_workers(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "audio").mkdir()
    for i in range(25):
        wave = np.zeros(40 + i) if i == 0 else np.sin(np.arange(40 + i))
        soundfile.write(tmp_path / "audio" / f"{i}.wav", wave, 8000)
    data = QuantizedAutoregressiveAudio(
        data_dir=tmp_path / "audio", keep_channel=True, batch_size=30, chunk_shuffle=False
    )
    data.setup()  # a sample_len of None
    loader = data.train_dataloader()
    x, y, extras = next(iter(loader))
    assert x.shape == y.shape == (22, 64, 1)
    assert extras["lengths"].tolist() == [40 + i for i in range(22)]
    assert (x[0, :40] == 128).all() and (y[0, :40] == 128).all()  # silence, the first file
    again = pickle.loads(bytes(ForkingPickler.dumps(loader.collate_fn)))
    samples = [data.dataset_train[i] for i in range(22)]
    assert all(torch.equal(a, b) for a, b in zip(again(samples)[:2], (x, y), strict=True))
