"""Collation of samples into batches: collators, their registry, and task specs."""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.collate.collators import Collator as Collator
    from penstock.collate.collators import CollatorInfo as CollatorInfo
    from penstock.collate.collators import CollatorRegistry as CollatorRegistry
    from penstock.collate.default import CollateError as CollateError
    from penstock.collate.default import DefaultCollator as DefaultCollator
    from penstock.collate.default import stack as stack
    from penstock.collate.default import unequal as unequal
    from penstock.collate.media import NORMALIZATIONS as NORMALIZATIONS
    from penstock.collate.media import AudioCollator as AudioCollator
    from penstock.collate.media import VisionCollator as VisionCollator
    from penstock.collate.media import VisionDataCollator as VisionDataCollator
    from penstock.collate.task_spec import TaskSpec as TaskSpec
    from penstock.collate.task_spec import get_default_task_specs as get_default_task_specs
    from penstock.collate.text import LanguageModelingDataCollator as LanguageModelingDataCollator
    from penstock.collate.text import TextCollator as TextCollator

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "collators": "Collator CollatorInfo CollatorRegistry",
        "default": "CollateError DefaultCollator stack unequal",
        "media": "NORMALIZATIONS AudioCollator VisionCollator VisionDataCollator",
        "task_spec": "TaskSpec get_default_task_specs",
        "text": "LanguageModelingDataCollator TextCollator",
    },
)
