"""Every public argument of the training side: a wrong value is refused by name, or it works.

A law over a table: each callable with arguments that are right, and then each argument in turn
replaced by values of every wrong kind. What is raised is one of ours and names the argument, in
one line; and a value of the right kind is never refused with a raw Python error.
"""

import inspect

import numpy as np
import pytest
import torch

import penstock
from penstock.collate import AudioCollator, TaskSpec, TextCollator, VisionCollator
from penstock.domains.audio import AudioDataset, AudioFile, index_files
from penstock.domains.folds import author_folds, author_split
from penstock.errors import PenstockError
from penstock.transforms.audio import Quantize

NOTHING = object()
WRONG = {
    "None": None,
    "a bool": True,
    "text": "3x",
    "empty text": "",
    "bytes": b"x",
    "a fraction": 1.5,
    "a negative": -1,
    "a small negative": -0.25,
    "not a number": float("nan"),
    "infinity": float("inf"),
    "a huge integer": 10**30,
    "an integer without end": 10**5000,
    "a list": [1, "a"],
    "a nested list": [[1], [2, 3]],
    "a dict": {"no such key": 1},
    "keys that are no text": {3: 1},
    "an object": NOTHING,
    "a type": int,
    "an array": np.zeros((2, 2)),
    "a tensor": torch.zeros(2, 2),
}
FILE = AudioFile("a.wav", 100, 8000, 1, 300, 0)


class Tokenizer:
    pad_token_id = 0
    mask_token_id, vocab_size, all_special_ids = 1, 10, [0, 1]


class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(3, num_classes)

    def forward(self, x):
        return self.layer(x)


def dataset():
    x = torch.rand(12, 1, 8, 8)
    return torch.utils.data.TensorDataset(x, torch.arange(12) % 3)


LABELS, AUTHORS = [0, 1] * 20, [i // 4 for i in range(40)]
IMAGES = torch.rand(12, 3)
SETTINGS = {"num_epochs": 1, "batch_size": 4, "standardize": False, "k_folds": 2}
SPLIT = ([0, 1, 2, 3], [4, 5], 0.0)


def table(tmp_path):
    """Each callable, and arguments that are right."""
    folder = str(tmp_path)
    return {
        penstock.SpecAugment: {
            "time_mask_param": 2, "freq_mask_param": 2, "num_time_masks": 1, "num_freq_masks": 1,
            "mask_value": 0.0, "p": 0.5,
        },
        penstock.GaussianNoise: {"std": 0.1, "p": 0.5, "clamp": (0, 1)},
        penstock.Standardize: {"mean": 0.0, "std": 1.0},
        penstock.Compose: {"transforms": [penstock.GaussianNoise()]},
        penstock.Spectrogram: {"n_fft": 8, "hop_length": 4},
        penstock.recommended_augmentation: {
            "samples": 10, "classes": 2, "shape": (8, 8), "aggressive": False,
        },
        Quantize: {"bits": 8, "quantization": "linear", "keep_silence_low": False},
        penstock.StandardizedDataset: {
            "base_dataset": dataset(), "indices": [0, 1], "mean": 0.0, "std": 1.0,
        },
        penstock.AugmentedDataset: {
            "base_dataset": dataset(), "augment_params": {"p": 0.5}, "training": True, "seed": 1,
        },
        penstock.create_augmented_dataset_wrapper: {
            "dataset": dataset(), "use_spec_augment": True, "use_gaussian_noise": False,
            "augment_params": {"p": 0.5}, "training": True,
        },
        penstock.compute_standardization: {
            "dataset": dataset(), "indices": [0, 1], "per_channel": False,
        },
        penstock.ReplacingDataset: {
            "base_dataset": dataset(), "on_error": "skip", "seed": 1,
            "quarantine": f"{folder}/quarantine",
        },
        AudioDataset: {
            "path": folder, "files": [FILE], "bits": 8, "sample_len": 10, "quantization": "linear",
            "return_type": None, "drop_last": True, "target_sr": 8000, "context_len": 0,
            "pad_len": 0, "is_stereo": False, "interleaving_strategy": "temporal",
            "keep_channel": False, "keep_silence_low": False,
        },
        penstock.QuantizedAudioDataset: {
            "path": folder, "files": [FILE], "ratio_min": 0.0, "ratio_max": 1.0,
            "on_error": "raise",
        },
        index_files: {"folder": folder, "on_error": "raise"},
        penstock.SpectrogramFolder: {
            "directory": folder, "metadata": f"{folder}/metadata.csv", "shape": (2, 3),
        },
        penstock.read_pixel_table: {"path": f"{folder}/pixels.csv", "shape": (1, 2)},
        penstock.build_steering_directory: {
            "directory": f"{folder}/built", "pairs": 8, "embedding_dim": 4, "n_neg": 2,
            "clusters": 2, "keywords": 4, "seed": 1, "config": {},
        },
        penstock.JASPERSteeringDataset: {
            "dataset_dir": f"{folder}/steering", "split": "train", "epoch": 0, "device": "cpu",
            "storage_format": "pt", "use_mmap": False, "seed": 1,
        },
        penstock.validate_dataset: {
            "dataset_dir": f"{folder}/steering", "storage_format": "pt",
        },
        penstock.convert_to_hdf5: {
            "dataset_dir": f"{folder}/steering", "target_dir": f"{folder}/hdf5",
            "compression": "gzip",
        },
        penstock.TensorSpec: {
            "shape": ("batch", 2), "dtype": torch.float32, "low": 0.0, "high": 1.0,
            "labels": frozenset({1}), "finite": True,
        },
        penstock.BatchSchema: {
            "fields": {"x": penstock.TensorSpec()}, "sizes": {"batch": 2}, "exact": False,
        },
        penstock.checked: {"loader": [], "schema": penstock.BatchSchema({}), "share": 0.5},
        TaskSpec: {
            "name": "a", "task_type": "lm", "model_family": "decoder_only",
            "input_fields": ["input_ids"], "target_field": "labels", "loss_type": "x",
            "metrics": ["loss"], "special_tokens": {}, "additional_config": {}, "modality": "text",
            "input_schema": {}, "output_schema": {}, "preprocessing_config": {},
        },
        TextCollator: {
            "tokenizer": Tokenizer(), "mlm": True, "mlm_probability": 0.1, "padding_side": "right",
            "task_spec": TaskSpec.lm_tiny(), "label_padding": -100, "pad_to_multiple_of": 8,
            "max_length": 16, "text_field": "text", "seed": 1,
        },
        VisionCollator: {"normalize": True, "mean": [0.5], "std": [0.5], "task_spec": None},
        AudioCollator: {"spectrogram": None, "sample_rate": 8000, "task_spec": None},
        penstock.CollatorRegistry().get_collator: {
            "task_spec": TaskSpec.vision_tiny(), "collator_name": "vision",
        },
        penstock.CheckpointManager: {
            "checkpoint_dir": f"{folder}/saved", "keep_best_k": 1, "keep_last_n": 1,
            "monitor": "val_loss", "mode": "min", "save_interval_epochs": 1, "drive_backup": False,
            "drive_backup_path": f"{folder}/backup",
        },
        penstock.CheckpointManager(f"{folder}/saves").save: {
            "model": Net(2), "optimizer": None, "scheduler": None, "epoch": 1,
            "metrics": {"val_loss": 1.0}, "global_step": 1,
        },
        author_folds: {
            "labels": LABELS, "authors": AUTHORS, "n_splits": 2, "max_attempts": 2,
            "min_val_segments": 0,
        },
        author_split: {
            "labels": LABELS, "authors": AUTHORS, "test_size": 0.3, "random_state": 1,
            "max_attempts": 5, "min_test_segments": 1,
        },
        penstock.TrainingEngine: {
            "model_class": Net, "num_classes": 3, "config": SETTINGS,
            "run_directory": f"{folder}/run", "progress": False,
        },
        penstock.single_fold_training: {
            "features": IMAGES, "labels": [0, 1, 2] * 4, "authors": [*range(12)],
            "model_class": Net, "num_classes": 3, "config": {"num_epochs": 1},
            "spec_augment": False, "gaussian_noise": False, "precomputed_split": SPLIT,
            "progress": False, "use_predefined_split": True,
        },
        penstock.cross_val_training: {
            "features": IMAGES, "labels": [0, 1, 2] * 4, "authors": [*range(12)],
            "model_class": Net, "num_classes": 3, "config": {"num_epochs": 1},
            "spec_augment": False, "gaussian_noise": False,
            "precomputed_splits": ([SPLIT[:2]], 0.0, 1), "progress": False,
        },
    }  # fmt: skip


@pytest.fixture(autouse=True)
def temporary_working_directory(tmp_path, monkeypatch):
    """A wrong value that is accepted as a path must not create files in the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    np.save(folder / "a.npy", np.zeros((2, 3), np.float32))
    (folder / "metadata.csv").write_text("filename,class_id,author\na.npy,0,me\n")
    (folder / "pixels.csv").write_text("label,author,p0,p1\n0,me,1,2\n")
    penstock.build_steering_directory(folder / "steering", pairs=8, embedding_dim=4)
    return folder


def outcome(function, arguments):
    try:
        function(**arguments)
    except PenstockError as error:
        return error
    return None


def test_what_is_right_is_accepted(places):
    for function, arguments in table(places).items():
        if function is index_files:
            continue  # there is no audio
        assert outcome(function, arguments) is None, (function, outcome(function, arguments))


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_value_is_refused_by_name_or_it_works(places, kind):
    value, raw, nameless = WRONG[kind], [], []
    for function, arguments in table(places).items():
        for name in arguments:
            if name == "model_class" and isinstance(value, type):
                continue  # what a class of the user's raises is the user's
            try:
                error = outcome(function, arguments | {name: value})
            except Exception as other:  # noqa: BLE001  # that is what is looked for
                raw.append(
                    f"{function.__qualname__}({name}): {type(other).__name__}: {other}"[:160]
                )
                continue
            said = str(error)
            if error is not None and ("\n" in said or len(said) > 400):
                nameless.append(f"{function.__qualname__}({name}): too long: {said[:300]}")
    assert not raw, "\n".join(raw)
    assert not nameless, "\n".join(nameless)


INTEGERS = [
    "time_mask_param", "freq_mask_param", "num_time_masks", "num_freq_masks", "n_fft",
    "hop_length", "samples", "classes", "bits", "seed", "sample_len", "target_sr", "context_len",
    "pad_len", "pairs", "embedding_dim", "n_neg", "clusters", "keywords", "epoch",
    "pad_to_multiple_of", "max_length", "sample_rate", "keep_best_k", "keep_last_n",
    "save_interval_epochs", "global_step", "n_splits", "max_attempts", "min_val_segments",
    "random_state", "min_test_segments", "num_classes",
]  # fmt: skip
NUMBERS = [
    "std", "p", "mask_value", "low", "high", "share", "mlm_probability", "ratio_min", "ratio_max",
    "test_size",
]  # fmt: skip
FLAGS = [
    "aggressive", "keep_silence_low", "training", "use_spec_augment", "use_gaussian_noise",
    "per_channel", "drop_last", "is_stereo", "keep_channel", "finite", "exact", "mlm",
    "drive_backup", "spec_augment", "gaussian_noise",
]  # fmt: skip
OPTIONAL = {
    "hop_length", "sample_len", "target_sr", "context_len", "pad_len", "pad_to_multiple_of",
    "max_length", "sample_rate", "global_step", "num_classes", "seed", "low", "high",
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_integers_numbers_and_flags_are_never_taken_for_each_other(places, kind):
    value, accepted = WRONG[kind], []
    fits = {
        "a bool": FLAGS,
        "a fraction": ["std", "mask_value", "high", "low"],
        "a negative": ["mask_value", "low"],
        "a small negative": ["mask_value", "low"],
        "a huge integer": ["std", "mask_value", "high"],
    }.get(kind, [])
    for function, arguments in table(places).items():
        for name in arguments:
            right = name in fits or (value is None and name in OPTIONAL)
            if function is penstock.Standardize or right:
                continue
            if function is penstock.StandardizedDataset and name == "std":
                continue
            if name in (*INTEGERS, *NUMBERS, *FLAGS):
                error = outcome(function, arguments | {name: value})
                if error is None or name not in str(error):
                    accepted.append(f"{function.__qualname__}({name}={kind}): {error}"[:200])
    assert not accepted, "\n".join(accepted)


def test_every_public_callable_of_the_training_side_is_in_the_table(places):
    listed = {getattr(each, "__name__", "") for each in table(places)}
    rooms = ("transforms", "datasets", "collate", "checks", "training")
    for name in penstock.__all__:
        home = penstock._HOME.get(name, "penstock.version")
        if home.split(".")[1] not in rooms:  # others may be of a deleted domain
            continue
        value = getattr(penstock, name)
        if not callable(value):
            continue
        exempt = inspect.isabstract(value) or not inspect.signature(value).parameters
        known = {"TrainingConfig", "CollatorInfo", "CollatorRegistry"}  # values, checked when used
        known |= {"Mixture", "balanced", "pack"}  # in tests/argument_table.py
        assert exempt or value.__name__ in listed | known, name
