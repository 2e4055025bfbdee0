"""What configurations of these tests name by _target_ and _name_."""

from types import MappingProxyType

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from penstock.datamodules import SequenceDataset
from penstock.training.build import registries


class Numbers(Dataset):
    """Sample i is ([i, i], i % 3), with the sizes that heads ask for."""

    d_input, d_output, l_output = 2, 3, 0

    def __init__(self, size, start=0):
        self.size, self.start = size, start

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        value = self.start + index
        return torch.tensor([value, value], dtype=torch.float32), value % 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


def tensors(size):
    return TensorDataset(torch.arange(size).float())


def refuses(size):
    raise FileNotFoundError("the corpus is not here")


class Recorder(L.LightningModule):
    """Keeps what arrives."""

    def __init__(self, rate: float = 0.1):
        super().__init__()
        self.layer, self.rate = nn.Linear(1, 1), rate
        self.trained, self.validated = [], []

    def training_step(self, batch, batch_idx):
        self.trained.append(batch[0].flatten().tolist())
        return self.layer(batch[0].reshape(-1, 1)).square().mean() * 1e-6

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.validated.append(batch[0].flatten().tolist())
        self.log("val/loss", self.layer.weight.sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.rate)


class WithData(Recorder):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(tensors(8), 4)


class PlainModule:
    """A data module that is not Lightning's."""

    def train_dataloader(self):
        return torch.utils.data.DataLoader(tensors(8), 4)

    def val_dataloader(self):
        return None


class Flat(nn.Module):
    def __init__(self, d_model, depth=1, activation=None):
        super().__init__()
        self.d_model, self.activation = d_model, activation
        self.layers = nn.Sequential(*(nn.Linear(d_model, d_model) for _ in range(depth)))

    def forward(self, x):
        return self.layers(x)


registries.models.add("flat", Flat)


class Tones(SequenceDataset):
    """Sequences of tokens: each the last one plus one."""

    _name_ = "tones"
    init_defaults = MappingProxyType({"size": 40, "length": 6})
    d_input, d_output, n_tokens = 1, 8, 8

    @property
    def l_output(self):
        return self.length

    def setup(self):
        starts = torch.arange(self.size) % 8
        x = (starts[:, None] + torch.arange(self.length)) % 8
        self.dataset_train = TensorDataset(x, (x + 1) % 8)
        self.split_train_val(0.2)
        self.dataset_test = self.dataset_val
