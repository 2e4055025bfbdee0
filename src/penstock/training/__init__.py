"""Training from a configuration, checkpoints, and the settings of a run."""

from penstock.training.checkpoint_files import CheckpointError as CheckpointError
from penstock.training.checkpoint_files import CheckpointMetadata as CheckpointMetadata
from penstock.training.checkpoint_files import NoCheckpointError as NoCheckpointError
from penstock.training.checkpoints import CheckpointManager as CheckpointManager
from penstock.training.training_config import TrainingConfig as TrainingConfig
