"""Cross-validation of classifiers, with splits in which no author is in two parts."""

from penstock.domains.folds.cross_validation import cross_val_training, single_fold_training
from penstock.domains.folds.engine import TrainingEngine
from penstock.domains.folds.splits import Folds, Split, author_folds, author_split

__all__ = [
    "Folds",
    "Split",
    "TrainingEngine",
    "author_folds",
    "author_split",
    "cross_val_training",
    "single_fold_training",
]
