"""Sequence datasets: S4's conventions, loaders that go on, and chunk sizes."""

import pickle

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from penstock import ChunkedDataLoader, ConfigError, PlanError, StateError
from penstock.collate import CollateError
from penstock.datamodules import (
    ImageResolutionSequenceDataset,
    ResolutionSequenceDataset,
    SequenceDataset,
    default_data_path,
    loader_registry,
)


class Items(Dataset):
    """Sample i is a sequence of i, and i."""

    def __init__(self, start, stop, steps=8):
        self.numbers, self.steps = range(start, stop), steps

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        return torch.full((self.steps, 1), number), torch.full((self.steps, 1), number)


class Counting(SequenceDataset):
    _name_ = "counting"
    d_input, d_output, l_output = 1, 1, 8

    @property
    def init_defaults(self):
        return {"train": 20, "val": 7, "test": 5, "made": None}

    def init(self):
        self.made = "made"

    def setup(self):
        self.dataset_train = Items(0, self.train) if self.train else None
        self.dataset_val = Items(100, 100 + self.val) if self.val else None
        self.dataset_test = Items(200, 200 + self.test) if self.test else None


class Named(SequenceDataset):
    _name_ = "named"
    _collate_arg_names = ("mark", "time")
    collate_args = ("scale",)

    @classmethod
    def _collate_callback(cls, x, scale=1):
        return x * scale

    def setup(self):
        self.dataset_train = [(torch.ones(3), i, np.full(2, i), 0.5) for i in range(4)]


class OwnCollation(Counting):
    _name_ = "own collation"

    def _collate_fn(self, samples):  # of the object, not of the class
        return torch.stack([x for x, _ in samples]) * 0 + self.factor, None, {}


def made(cls=Counting, **options):
    data = cls(**options)
    data.setup()
    return data


def numbers(batches):
    return [int(each) for x, *_ in batches for each in x[:, 0].flatten()]


# -- conventions


def test_a_subclass_is_found_by_its_name():
    assert SequenceDataset.registry.find("counting") is Counting
    assert isinstance(SequenceDataset("counting", train=3), Counting)
    assert type(SequenceDataset(_name_="counting", train=3)).__name__ == "Counting"
    assert SequenceDataset.registry.find("counting") is Counting  # not Lightning's twin of it
    with pytest.raises(ConfigError, match="did you mean 'counting'"):
        SequenceDataset("countin")
    with pytest.raises(ConfigError, match="is the dataset 'counting', got _name_='named'"):
        Counting("named")


def test_settings_are_merged_with_defaults_and_become_attributes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = Counting("counting", "here", train=3, more=[1])
    assert (data.train, data.val, data.more, data.made) == (3, 7, [1], "made")
    assert data.data_dir == tmp_path / "here" and Counting().data_dir is None
    assert data.dataset_train is data.dataset_val is data.dataset_test is None
    assert str(data) == "counting"
    assert default_data_path() == tmp_path / "data"
    monkeypatch.setenv("DATA_PATH", str(tmp_path / "elsewhere"))
    assert default_data_path() == tmp_path / "elsewhere"


def test_the_split_is_that_of_a_seeded_generator():
    data = made()
    data.seed = 7
    data.split_train_val(0.33)
    whole = list(range(20))
    generator = torch.Generator().manual_seed(7)
    expected = torch.utils.data.random_split(whole, [13, 7], generator)
    assert list(data.dataset_train.indices) == list(expected[0].indices)
    assert list(data.dataset_val.indices) == list(expected[1].indices)


def test_batches_are_x_y_and_a_dict_of_named_extras():
    data = made(Named, batch_size=4, loader={"scale": 3})
    x, y, extras = next(iter(data.train_dataloader()))
    assert x.tolist() == [[3.0] * 3] * 4
    assert sorted(y.tolist()) == [0, 1, 2, 3] and y.dtype == torch.int64
    assert set(extras) == {"mark", "time"} and extras["mark"].shape == (4, 2)
    assert extras["time"].dtype == torch.float32
    assert next(iter(made(batch_size=2).train_dataloader()))[2] == {}


def test_extras_without_a_name_and_unequal_samples_are_refused():
    with pytest.raises(CollateError, match="1 values beyond x and y, SequenceDataset names"):
        SequenceDataset._collate_fn([(torch.ones(1), 1, 2)])
    with pytest.raises(CollateError, match="sample 1"):
        SequenceDataset._collate_fn([(torch.ones(1), 1), (torch.ones(2), 1)])


def test_a_partition_that_is_none_has_no_loader():
    data = made(train=0, val=0, test=0)
    assert data.train_dataloader() is data.val_dataloader() is data.test_dataloader() is None
    with pytest.raises(ConfigError, match="has no data: implement setup"):
        SequenceDataset().setup()


def test_an_unknown_key_of_a_loader_is_refused_with_what_was_meant():
    with pytest.raises(ConfigError, match="unknown loader key 'num_worker': did you mean"):
        made().train_dataloader(num_worker=2)
    with pytest.raises(ConfigError, match="unknown loader key 'resolution'"):
        made().val_dataloader(resolution=2)
    with pytest.raises(ConfigError, match="unknown loader 'tbpt': did you mean 'tbptt'"):
        made().train_dataloader(_name_="tbpt")
    with pytest.raises(ConfigError, match="unknown key 'train_chunk_sise'"):
        Counting(train_chunk_sise=3)


def test_a_sampler_of_the_users_own_is_torchs_business():
    loader = made(batch_size=2).train_dataloader(sampler=[3, 1, 2])
    assert numbers(loader) == [3, 1, 2]
    with pytest.raises(PlanError, match="sampler"):
        made(train_chunk_size=2).train_dataloader(sampler=[3, 1, 2])


def test_streams_pass_through():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(2, 1), 1)] * 3)

    data = made(batch_size=2)
    data.dataset_train = Stream()
    assert len(list(data.train_dataloader())) == 2
    assert data.state_dict()["loaders"] == {}


def test_collation_goes_to_workers_whoever_it_belongs_to():
    for data in (made(batch_size=5), made(OwnCollation, batch_size=5, factor=3)):
        alone = numbers(data.test_dataloader())
        with data:
            assert numbers(data.test_dataloader(num_workers=2)) == alone
        collate = data.test_dataloader().collate_fn
        assert numbers([pickle.loads(pickle.dumps(collate))(list(data.dataset_test))]) == alone


# -- loaders that go on


def test_a_loader_asked_for_again_is_the_same_and_every_epoch_has_its_order():
    data = made(batch_size=4)
    assert isinstance(data.train_dataloader(), DataLoader)
    epochs = [numbers(data.train_dataloader()) for _ in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert data.train_dataloader() is data.train_dataloader(batch_size=4)
    assert numbers(data.val_dataloader()) == list(range(100, 107)) == numbers(data.val_dataloader())


def test_a_loader_of_another_batch_size_goes_on_where_the_last_one_was():
    data = made(batch_size=2, train_chunk_size=3)
    first = numbers(data.train_dataloader())
    rest = numbers(data.train_dataloader(batch_size=7))
    assert sorted(first + rest) == list(range(20))
    other = numbers(data.train_dataloader(batch_size=2, seed=7))
    assert len(other) == 6  # another seed is another order: from its start


def test_its_state_resumes_exactly_in_another_object():
    data = made(batch_size=3, train_chunk_size=4, val_chunk_size=1, val_cycle=True)
    numbers(data.train_dataloader()), numbers(data.val_dataloader())
    state = data.state_dict()
    other = made(batch_size=3, train_chunk_size=4, val_chunk_size=1, val_cycle=True)
    other.load_state_dict(state)
    assert numbers(other.train_dataloader()) == numbers(data.train_dataloader())
    assert numbers(other.val_dataloader()) == numbers(data.val_dataloader())
    again = made(batch_size=3, train_chunk_size=4)
    again.train_dataloader()
    again.load_state_dict(state)
    assert again.current_train_chunk == 1
    with pytest.raises(StateError, match="of the dataset 'counting', this one is 'named'"):
        made(Named).load_state_dict(state)
    with pytest.raises(StateError, match="dataset changed"):
        smaller = made(batch_size=3, train=19)
        smaller.load_state_dict(state)
        smaller.train_dataloader()


def test_setting_up_anew_makes_loaders_anew():
    data = made(batch_size=4)
    before = data.train_dataloader()
    data.train = 8
    data.setup()
    assert data.train_dataloader() is not before and len(numbers(data.train_dataloader())) == 8


# -- chunks

sizes = st.none() | st.integers(1, 9)


@given(train=sizes, val=sizes, batch=st.integers(1, 6), world=st.integers(1, 3))
def test_sizes_are_the_given_ones_and_the_missing_one_is_its_whole_partition(
    train, val, batch, world
):
    loader = {"batch_size": batch, "rank": 0, "world_size": world}
    data = Counting(train_chunk_size=train, val_chunk_size=val, loader=loader, train=24, val=12)
    assert data.use_chunked_training == (train is not None or val is not None)
    assert (data.train_chunk_size, data.val_chunk_size) == (train, val)
    data.setup()
    assert (data.explicit_train_chunk_size, data.explicit_val_chunk_size) == (train, val)
    if not data.use_chunked_training:
        assert (data.train_chunk_size, data.val_chunk_size) == (None, None)
        return
    step = batch * world
    assert data.train_chunk_size == (train or -(-24 // step))
    assert data.val_chunk_size == (val or -(-12 // step))
    training, validation = data.train_dataloader(), data.val_dataloader()
    assert training.chunk_size == data.train_chunk_size
    assert len(validation) == min(data.val_chunk_size, -(-12 // step))


@given(train=st.integers(1, 40), batch=st.integers(1, 6), chunk=st.integers(1, 5))
def test_chunks_go_through_the_whole_partition_and_are_counted(train, batch, chunk):
    data = made(train=train, batch_size=batch, train_chunk_size=chunk)
    total = data.train_dataloader().total_chunks
    for _ in range(2):
        seen = []
        for k in range(total):
            assert data.current_train_chunk == k
            seen += numbers(data.train_dataloader())
        assert sorted(seen) == list(range(train)) and data.current_train_chunk == 0


def test_the_validation_chunk_is_the_same_each_time_unless_it_goes_round():
    data = made(batch_size=2, val_chunk_size=2)
    first = numbers(data.val_dataloader())
    assert first == sorted(first) == numbers(data.val_dataloader()) and len(first) == 4
    assert data.current_val_chunk == 0
    round_ = made(batch_size=2, val_chunk_size=2, val_cycle=True)
    chunks = [numbers(round_.val_dataloader()), numbers(round_.val_dataloader())]
    assert sorted(chunks[0] + chunks[1]) == list(range(100, 107))
    assert round_.current_val_chunk == 0


def test_the_test_partition_is_never_chunked():
    data = made(batch_size=2, train_chunk_size=1, val_chunk_size=1, val_cycle=True)
    for _ in range(2):
        assert numbers(data.test_dataloader()) == list(range(200, 205))


def test_a_dataset_that_is_validated_and_tested_on_is_chunked_for_validation_alone():
    data = made(batch_size=2, val_chunk_size=1)
    data.dataset_test = data.dataset_val
    assert len(list(data.val_dataloader())) == 1
    assert numbers(data.test_dataloader()) == list(range(100, 107))


def test_a_batch_size_given_to_the_loader_decides_what_is_inferred():
    data = made(train_chunk_size=2)
    assert data.val_chunk_size == 7  # batches of one
    data.train_dataloader(batch_size=4)
    assert data.val_chunk_size == 2


def test_orders_of_training():
    assert numbers(made(train_chunk_size=20, chunk_shuffle=False).train_dataloader()) == list(
        range(20)
    )
    sequential = made(train_chunk_size=20, chunk_order="sequential")
    assert numbers(sequential.train_dataloader()) == list(range(20))
    seeds = [made(chunk_seed=s, train_chunk_size=20).train_dataloader() for s in (1, 2)]
    assert numbers(seeds[0]) != numbers(seeds[1])
    blocks = numbers(made(train=4096, batch_size=64, chunk_order="block").train_dataloader())
    assert sorted(blocks) == list(range(4096))
    assert len({number // 64 for number in blocks[:1024]}) == 16  # of 64 blocks
    with pytest.raises(ConfigError, match="chunk_order must be one of"):
        Counting(chunk_order="random")


@pytest.mark.parametrize("name", ["train_chunk_size", "val_chunk_size"])
def test_sizes_that_cannot_be_are_refused_at_once(name):
    with pytest.raises(PlanError, match=f"{name} must be at least 1 batch, got 0"):
        Counting(**{name: 0})
    for wrong in (True, 2.5, "many"):
        with pytest.raises(ConfigError, match=f"{name} must be an? (integer|number)"):
            Counting(**{name: wrong})


# -- pieces of sequences


def test_tbptt_cuts_sequences_into_pieces_in_chunks_too():
    data = made(batch_size=5, train_chunk_size=2)
    loader = data.train_dataloader(_name_="tbptt", chunk_len=3, overlap_len=2)
    assert isinstance(loader, ChunkedDataLoader) and loader_registry.find("tbptt") is type(loader)
    assert len(loader) == loader.remaining == 6
    pieces = list(loader)
    assert [piece[2]["reset"] for piece in pieces] == [True, False, False] * 2
    assert [piece[0].shape[1] for piece in pieces] == [4, 4, 3] * 2
    assert (pieces[0][0][:, 0] == 0).all() and (pieces[1][0] == pieces[0][0][:, 1:2]).all()
    assert [piece[1].shape[1] for piece in pieces] == [3, 3, 2] * 2
    seen = [int(n) for piece in pieces if piece[2]["reset"] for n in piece[1][:, 0, 0]]
    rest = [int(n) for piece in loader if piece[2]["reset"] for n in piece[1][:, 0, 0]]
    assert sorted(seen + rest) == list(range(20))


def test_a_sequence_left_in_its_midst_begins_anew():
    data = made(batch_size=5, train_chunk_size=2)
    loader = data.train_dataloader(_name_="tbptt", chunk_len=3, overlap_len=1)
    pieces = iter(loader)
    piece = [next(pieces) for _ in range(5)][3]
    pieces.close()
    assert len(loader) == 6 and loader.remaining == 3
    again = next(iter(loader))
    assert again[2]["reset"] and torch.equal(again[1], piece[1])
    assert torch.equal(loader.peek()[0], again[0])


# -- resolutions


class Wide(ResolutionSequenceDataset):
    _name_ = "wide"

    def setup(self):
        wave = torch.sin(torch.arange(64) / 64 * 4 * torch.pi).unsqueeze(-1)
        self.dataset_train = self.dataset_val = self.dataset_test = [(wave, 1)] * 4


def test_training_has_one_resolution_and_evaluation_several():
    data = made(Wide, batch_size=2)
    x, _, extras = next(iter(data.train_dataloader(train_resolution=[4])))
    assert x.shape == (2, 16, 1) and extras == {"rate": 4}
    loaders = data.val_dataloader(eval_resolutions=[1, 2, [4, 2]])
    assert list(loaders) == [None, "2", "[4, 2]"]
    whole, half, resampled = (next(iter(loader))[0] for loader in loaders.values())
    assert torch.equal(half, whole[:, ::2])
    assert resampled.shape == half.shape
    assert (resampled - half).abs()[:, 8:-8].max() < 0.05  # band-limited, not repeated
    assert list(data.test_dataloader()) == [None]
    assert data.val_dataloader(eval_resolutions=2)["2"].batch_size == 2
    with pytest.raises(ConfigError, match="train_resolution must be one resolution"):
        data.train_dataloader(train_resolution=[1, 2])
    with pytest.raises(ConfigError, match="resolution must be at least 1, got 0"):
        list(data.train_dataloader(train_resolution=0))


class Pictures(ImageResolutionSequenceDataset):
    _name_ = "pictures"

    def setup(self):
        picture = torch.arange(3 * 8 * 8, dtype=torch.float32).reshape(8, 8, 3)
        self.dataset_train = self.dataset_val = [(picture, 1)] * 4


def test_images_are_resized_and_sequences_strided():
    data = made(Pictures, batch_size=2)
    x, *_ = next(iter(data.train_dataloader(train_resolution=2, img_size=8)))
    assert x.shape == (2, 4, 4, 3)
    exact = torch.nn.functional.interpolate(
        data.dataset_train[0][0].movedim(-1, 0)[None], (4, 4), mode="bilinear", antialias=True
    )
    torch.testing.assert_close(x[:1].movedim(-1, 1), exact)
    strided = next(iter(data.val_dataloader(eval_resolutions=2)["2"]))[0]
    assert torch.equal(strided[0], data.dataset_train[0][0][::2, ::2])


# -- Lightning


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = {"train": [], "val": [], "test": []}

    def _step(self, side, batch):
        self.seen[side].append(numbers([batch]))
        return (self.weight * batch[0].float().mean()).sum()

    def training_step(self, batch, _):
        return self._step("train", batch)

    def validation_step(self, batch, _, dataloader_idx=0):
        self._step("val", batch)

    def test_step(self, batch, _):
        self._step("test", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)


def trainer(path, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(default_root_dir=path, accelerator="cpu", **quiet, **options)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.*")
def test_lightning_takes_it_as_it_is_and_resumes(tmp_path):
    def fit(epochs, checkpoint=None):
        data, model = Counting(batch_size=4, train_chunk_size=2, val_chunk_size=1), Model()
        assert isinstance(data, pl.LightningDataModule)
        run = trainer(tmp_path, max_epochs=epochs, reload_dataloaders_every_n_epochs=1)
        run.fit(model, data, ckpt_path=checkpoint)
        return run, data, model

    run, data, model = fit(5)
    assert sorted(n for batch in model.seen["train"][:5] for n in batch) == list(range(20))
    assert len({tuple(batch) for batch in model.seen["val"]}) == 1  # the sanity check's too
    run.test(model, data)
    assert sorted(n for batch in model.seen["test"] for n in batch) == list(range(200, 205))

    run, _, first = fit(2)
    run.save_checkpoint(tmp_path / "two.ckpt")
    _, _, second = fit(5, tmp_path / "two.ckpt")
    assert first.seen["train"] + second.seen["train"] == model.seen["train"]


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.*")
@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_lightning_takes_several_evaluation_loaders_and_none(tmp_path):
    data, model = Wide(loader={"batch_size": 2, "eval_resolutions": [1, 2]}), Model()
    trainer(tmp_path, max_epochs=1).fit(model, data)
    assert len(model.seen["val"]) == 2 * 2 + 4  # the sanity check has two batches of each
    trainer(tmp_path, max_epochs=1).fit(Model(), Counting(val=0))
