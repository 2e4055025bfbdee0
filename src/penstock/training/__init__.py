"""Training: by folds and splits, in one way, resumable."""

from penstock.training.cross_validation import cross_val_training, single_fold_training
from penstock.training.engine import TrainingEngine
from penstock.training.splits import Folds, Split, author_folds, author_split

__all__ = [
    "Folds",
    "Split",
    "TrainingEngine",
    "author_folds",
    "author_split",
    "cross_val_training",
    "single_fold_training",
]
