"""Programs that make the calls of a guide to data modules, in its order; run by test_seed_blocks.

They run one after the other in one namespace, as a reader would paste them: a later program uses
names of an earlier one. Names, arguments and the order of calls are the guide's; the text is not.
"""

PROGRAMS = {
    "protocol": """
from torch.utils.data import DataLoader
from penstock.datamodules import DataModuleProtocol

class MyDataModule:
    def train_dataloader(self):
        return DataLoader(range(8), batch_size=32)
    def val_dataloader(self):
        return DataLoader(range(4), batch_size=32)

dm: DataModuleProtocol = MyDataModule()
""",
    "factory": """
import torch
from torch.utils.data import TensorDataset
from penstock import DataLoaderConfig, DataLoaderFactory

factory, dataset = DataLoaderFactory(), TensorDataset(torch.rand(100, 32))
options = {"batch_size": 32, "num_workers": 2, "prefetch_factor": 2}
config = DataLoaderConfig(**options, shuffle=True, seed=42, pin_memory=True)
loader = factory.create_dataloader(dataset, config)
*_, batch = loader
""",
    "detected settings": """
detected = {"pin_memory": None, "persistent_workers": None}
config = DataLoaderConfig(batch_size=32, prefetch_factor=2, **detected)
loader = factory.create_dataloader(dataset, config)
""",
    "equal seeds": """
config = DataLoaderConfig(seed=42, shuffle=True, batch_size=32, num_workers=0)
loader1, loader2 = (factory.create_dataloader(dataset, config) for _ in range(2))
batch1, batch2 = next(iter(loader1)), next(iter(loader2))
assert batch1[0].equal(batch2[0])
""",
    "hub text": """
from penstock import TaskSpec
from penstock.datamodules import UniversalDataModule
from tests.datamodules.hub import load_dataset

dataset = load_dataset("wikitext", "wikitext-2-raw-v1", split="train")
language = {"task_spec": TaskSpec.lm_tiny(), "tokenizer": tokenizer}
data_module = UniversalDataModule(
    train_data=dataset, **language, batch_size=32, num_workers=2, val_split=0.1, seed=42
)
train_loader, val_loader = data_module.train_dataloader(), data_module.val_dataloader()
for batch in train_loader:
    input_ids, labels = batch["input_ids"], batch["labels"]
""",
    "own dataset": """
from torch.utils.data import Dataset

class MyDataset(Dataset):
    __len__ = lambda self: 1000
    def __getitem__(self, idx):
        return {"labels": idx % 10, "pixel_values": torch.rand(3, 224, 224)}

dataset = MyDataset()
data_module = UniversalDataModule(
    train_data=dataset, batch_size=32, task_spec=TaskSpec.vision_tiny(), val_split=0.2, seed=42
)
train_loader = data_module.train_dataloader()
""",
    "own validation data": """
train_dataset, val_dataset = (load_dataset("cifar10", split=part) for part in ("train", "test"))
data_module = UniversalDataModule(
    train_dataset, val_data=val_dataset, val_split=0.0, batch_size=64, seed=42,
    task_spec=TaskSpec.vision_tiny(),
)
""",
    "list of tensors": """
train_data = [*torch.randint(0, 1000, (500, 128))]
data_module = UniversalDataModule(train_data=train_data, val_split=0.2, batch_size=32, seed=42)
""",
    "workers": """
config = DataLoaderConfig(batch_size=32, num_workers=2 if torch.cuda.is_available() else 0)
config = DataLoaderConfig(
    batch_size=32, num_workers=4, persistent_workers=True, prefetch_factor=2, pin_memory=True
)
""",
    "pinned memory": """
config = DataLoaderConfig(pin_memory=None)
config = DataLoaderConfig(pin_memory=torch.cuda.is_available())
""",
    "prefetch": """
for workers in (2, 4):
    config = DataLoaderConfig(prefetch_factor=workers, num_workers=workers)
""",
    "training configuration": """
from penstock.training import TrainingConfig
from penstock.datamodules import UniversalDataModule

training_config = TrainingConfig(epochs=10, batch_size=32, random_seed=42, learning_rate=5e-5)
data_module = UniversalDataModule(
    train_data=dataset, tokenizer=tokenizer, task_spec=task_spec, num_workers=2,
    seed=training_config.random_seed, batch_size=training_config.batch_size,
)
""",
    "checkpoints": """
from penstock.training import CheckpointManager

manager = CheckpointManager(checkpoint_dir="./checkpoints")
mine = {"data_module_seed": data_module.seed, "epoch_step": epoch * len(train_loader) + step}
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
path = manager.save(**parts, metrics={"val_loss": 0.38}, epoch=5, custom_state=mine)
state = manager.load(path)
seed = state["custom_state"]["data_module_seed"]
data_module = UniversalDataModule(train_data=dataset, seed=seed)
""",
    "lightning": """
import tests.datamodules.guide_lightning as pl

class MyLightningModule(pl.LightningModule):
    def __init__(self, data_module: DataModuleProtocol):
        super().__init__()
        self.train_dataloader = data_module.train_dataloader
        self.val_dataloader = data_module.val_dataloader

module, trainer = MyLightningModule(data_module), pl.Trainer()
trainer.fit(module)
""",
    "seeds": """
config = DataLoaderConfig(shuffle=True)
config = DataLoaderConfig(seed=42, shuffle=True)
""",
    "collators": """
data_module = UniversalDataModule(train_data=dataset, tokenizer=tokenizer, task_spec=task_spec)
factory, config = DataLoaderFactory(), DataLoaderConfig(collate_fn=my_custom_collator)
""",
    "workers for hardware": """
for workers in (0, 2, 8):
    config = DataLoaderConfig(num_workers=workers)
""",
    "overhead": """
import time

def seconds(step):
    began = time.time()
    for batch in train_loader:
        step()
    return time.time() - began

overhead_ratio = seconds(int) / seconds(lambda: time.sleep(0.01))
print(f"DataLoader overhead: {overhead_ratio:.1%}")
""",
    "persistent workers": """
for persistent in (False, True, None):
    config = DataLoaderConfig(persistent_workers=persistent, num_workers=2)
""",
    "datasets": """
class LocalDataset(Dataset): ...
class MyDataset(Dataset): ...
""",
    "order": """
loader = DataLoader(dataset, shuffle=True)
loader = factory.create_dataloader(dataset, DataLoaderConfig(seed=42, shuffle=True))
""",
    "collator time": """
from time import time

began, result = time(), collator([dataset[index] for index in range(32)])
print(f"Collator time: {time() - began:.3f}s per batch")
config = DataLoaderConfig(num_workers=1)
""",
    "help": """
from penstock.datamodules import UniversalDataModule
help(UniversalDataModule)
""",
}
