"""Training: by folds and splits, in one way, resumable."""

from penstock.training.checkpoint_files import CheckpointError as CheckpointError
from penstock.training.checkpoint_files import CheckpointMetadata as CheckpointMetadata
from penstock.training.checkpoint_files import NoCheckpointError as NoCheckpointError
from penstock.training.checkpoints import CheckpointManager as CheckpointManager
from penstock.training.training_config import TrainingConfig as TrainingConfig
