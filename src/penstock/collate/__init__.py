"""Samples become batches: task specs, the registry of collators, and the built-in ones."""

from penstock.collate.audio import AudioCollator
from penstock.collate.collators import Collator, CollatorInfo, CollatorRegistry
from penstock.collate.default import DefaultCollator
from penstock.collate.errors import CollateError
from penstock.collate.task_spec import TaskSpec, get_default_task_specs
from penstock.collate.text import TextCollator
from penstock.collate.vision import NORMALIZATIONS, VisionCollator

# what code written for other engines calls them
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
]
