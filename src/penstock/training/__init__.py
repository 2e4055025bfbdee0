"""Training: by folds and splits, in one way, resumable."""

from penstock.training.checkpoint_files import CheckpointError, NoCheckpointError
from penstock.training.checkpoint_registry import CheckpointMetadata
from penstock.training.checkpoints import CheckpointManager
from penstock.training.training_config import TrainingConfig

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CheckpointMetadata",
    "NoCheckpointError",
    "TrainingConfig",
]
