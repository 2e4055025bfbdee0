"""Code on collators written for another engine runs on Penstock, with only its imports changed.

Programs of our own make the same calls; the document's blocks run where the document is available.
"""

from __future__ import annotations

import pytest
import torch

import penstock.transforms
from penstock.collate import (
    CollatorRegistry,
    LanguageModelingDataCollator,
    TaskSpec,
    TextCollator,
    VisionCollator,
    VisionDataCollator,
)
from tests.seeds import run_block, seed_blocks

CHANGES = {
    "from utils.training.engine.data import": "from penstock import",
    "from utils.training.task_spec import": "from penstock.collate import",
    "from utils.tokenization.data_collator import": "from penstock.collate import",
    "import torchaudio.transforms": "import penstock.transforms",
}
COLLATOR_BLOCKS = range(1, 5)  # of document 003: by task, by name, audio, images with text


class SpectrogramCollator:
    """A user's collator: spectrograms of equally long waveforms."""

    def __init__(self, rate: int, n_fft: int) -> None:
        self.sample_rate, self.n_fft = rate, n_fft
        self.spectrogram = penstock.transforms.Spectrogram(n_fft=n_fft)

    def __call__(self, samples):
        sound = torch.stack([each["waveform"] for each in samples])
        labels = torch.tensor([each["label"] for each in samples])
        return {"spectrograms": self.spectrogram(sound), "labels": labels}


def register_spectrograms(registry):
    @registry.register("audio", modality="audio", description="spectrograms")
    def spectrograms(task_spec=None, sample_rate=16000, n_fft=512):
        return SpectrogramCollator(sample_rate, n_fft)


def register_captions(registry):
    @registry.register("multimodal", modality="vision", description="images with captions")
    def captions(task_spec=None, tokenizer=None, normalize=True):
        images = VisionDataCollator(normalize=normalize)
        words = LanguageModelingDataCollator(tokenizer=tokenizer)

        def collate(samples):
            pixels = images([{"pixel_values": each["pixel_values"]} for each in samples])
            return words([{"input_ids": each["input_ids"]} for each in samples]) | pixels

        return collate


@pytest.fixture
def by_our_programs(shared_registry, padding):
    """The collator after each step of our own programs, by the step's number."""
    registry = CollatorRegistry.get_instance()
    vision = registry.get_collator(task_spec=TaskSpec.vision_tiny())
    assert isinstance(vision, VisionCollator)
    text = registry.get_collator(task_spec=TaskSpec.lm_tiny(), tokenizer=padding)
    named = registry.get_collator(
        collator_name="vision", normalize=True, mean=[0.5] * 3, std=[0.5] * 3
    )
    register_spectrograms(registry)
    speech = TaskSpec(name="speech", modality="audio", task_type="classification")
    audio = registry.get_collator(task_spec=speech, sample_rate=22050)
    register_captions(registry)
    return [text, named, audio]


@pytest.fixture
def by_the_document(shared_registry, padding):
    """The collator after each block of the document, block after block in one namespace."""
    names, found = {"tokenizer": padding}, []
    blocks = seed_blocks("003", CHANGES)
    for number in COLLATOR_BLOCKS:
        found.append(run_block(blocks[number], names)["collator"])
    return found[:3]


@pytest.fixture(params=["by_our_programs", "by_the_document"])
def collators(request):
    return request.getfixturevalue(request.param)


def test_a_task_selects_its_collator(collators):
    assert isinstance(collators[0], TextCollator)
    batch = collators[0]([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    assert batch["labels"].tolist() == [[1, 2], [3, -100]]


def test_a_name_selects_a_collator_with_options(collators):
    collator = collators[1]
    assert (collator.normalize, collator.mean, collator.std) == (True, (0.5,) * 3, (0.5,) * 3)


def test_a_registered_audio_collator_is_chosen_and_runs(collators):
    collator = collators[2]
    assert (collator.sample_rate, collator.n_fft) == (22050, 512)
    batch = collator([{"waveform": torch.ones(2048), "label": i} for i in range(3)])
    assert batch["spectrograms"].shape == (3, 257, 9)
    assert batch["labels"].tolist() == [0, 1, 2]


def test_a_registered_multimodal_collator_is_chosen_and_runs(collators, padding):
    registry = CollatorRegistry.get_instance()
    collator = registry.get_collator(TaskSpec.vision_tiny(), tokenizer=padding)
    batch = collator([{"pixel_values": torch.rand(3, 8, 8), "input_ids": [1, 2]}])
    assert sorted(batch) == ["attention_mask", "input_ids", "labels", "pixel_values"]
