"""Collation of samples into batches: collators, their registry, and task specs."""

from penstock.collate.audio import AudioCollator
from penstock.collate.collators import Collator, CollatorInfo, CollatorRegistry
from penstock.collate.default import CollateError, DefaultCollator, stack, unequal
from penstock.collate.task_spec import TaskSpec, get_default_task_specs
from penstock.collate.text import TextCollator
from penstock.collate.vision import NORMALIZATIONS, VisionCollator

# Names used by code written for other engines.
LanguageModelingDataCollator = TextCollator
VisionDataCollator = VisionCollator

__all__ = [
    "NORMALIZATIONS",
    "AudioCollator",
    "CollateError",
    "Collator",
    "CollatorInfo",
    "CollatorRegistry",
    "DefaultCollator",
    "LanguageModelingDataCollator",
    "TaskSpec",
    "TextCollator",
    "VisionCollator",
    "VisionDataCollator",
    "get_default_task_specs",
    "stack",
    "unequal",
]
