"""Training: by folds and splits, in one way, resumable."""

from penstock.training.checkpoint_files import CheckpointError, NoCheckpointError
from penstock.training.checkpoint_registry import CheckpointMetadata
from penstock.training.checkpoints import CheckpointManager
from penstock.training.config import TrainingConfig
from penstock.training.cross_validation import cross_val_training, single_fold_training
from penstock.training.engine import TrainingEngine
from penstock.training.splits import Folds, Split, author_folds, author_split

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CheckpointMetadata",
    "Folds",
    "NoCheckpointError",
    "Split",
    "TrainingConfig",
    "TrainingEngine",
    "author_folds",
    "author_split",
    "cross_val_training",
    "single_fold_training",
]
