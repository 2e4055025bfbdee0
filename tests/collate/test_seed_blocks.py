"""The guide's code on collators and task specs runs; only the import lines below are changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.collate import CollatorRegistry, TaskSpec, TextCollator
from tests.seeds import seed_document

HERE = Path(__file__).parent / "seed_blocks"
CHANGED_LINES = {
    "from utils.training.engine.data import CollatorRegistry": (
        "from penstock.collate import CollatorRegistry"
    ),
    "from utils.training.task_spec import TaskSpec": "from penstock.collate import TaskSpec",
    "import torchaudio.transforms as T": "import penstock.transforms as T",
    "from utils.tokenization.data_collator import VisionDataCollator, "
    "LanguageModelingDataCollator": (
        "from penstock.collate import VisionDataCollator, LanguageModelingDataCollator"
    ),
}
BLOCKS = sorted(path.stem for path in HERE.glob("*.txt"))


def block(name: str) -> str:
    return (HERE / f"{name}.txt").read_text()


def runnable(name: str) -> str:
    lines = []
    for line in block(name).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(indent + CHANGED_LINES.get(line.strip(), line.strip()))
    return "\n".join(lines)


@pytest.fixture
def guide(shared_registry, padding):
    """Everything the guide defined, block after block, as a reader would paste it."""
    names = {"tokenizer": padding}
    for name in BLOCKS:
        exec(compile(runnable(name), name, "exec"), names)
        names[f"collator after {name[0]}"] = names.get("collator")
    return names


def test_the_blocks_are_the_guides_own():
    assert len(BLOCKS) == 4
    seed = seed_document("003")
    for name in BLOCKS:
        assert f"```python\n{block(name)}```" in seed


def test_only_import_lines_are_changed():
    for name in BLOCKS:
        for before, after in zip(
            block(name).splitlines(), runnable(name).splitlines(), strict=True
        ):
            if before.rstrip() != after.rstrip():
                assert before.strip().startswith(("from ", "import "))


def test_a_task_selects_its_collator(guide):
    assert isinstance(guide["collator after 1"], TextCollator)
    batch = guide["collator after 1"]([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    assert batch["labels"].tolist() == [[1, 2], [3, -100]]


def test_a_name_selects_a_collator_with_options(guide):
    collator = guide["collator after 2"]
    assert (collator.normalize, collator.mean, collator.std) == (True, (0.5,) * 3, (0.5,) * 3)


def test_the_guides_audio_collator_is_chosen_and_runs(guide):
    collator = guide["collator after 3"]
    assert (collator.sample_rate, collator.n_fft) == (22050, 512)
    batch = collator([{"waveform": torch.ones(2048), "label": i} for i in range(3)])
    assert batch["spectrograms"].shape == (3, 257, 9)
    assert batch["labels"].tolist() == [0, 1, 2]


def test_the_guides_multimodal_collator_is_chosen_and_runs(guide):
    registry = CollatorRegistry.get_instance()
    collator = registry.get_collator(TaskSpec.vision_tiny(), tokenizer=guide["tokenizer"])
    batch = collator([{"pixel_values": torch.rand(3, 8, 8), "input_ids": [1, 2]}])
    assert sorted(batch) == ["attention_mask", "input_ids", "labels", "pixel_values"]
