from penstock.domains.folds.engine import TrainingEngine as TrainingEngine
from penstock.domains.folds.engine import cross_val_training as cross_val_training
from penstock.domains.folds.engine import single_fold_training as single_fold_training
from penstock.domains.folds.splits import Folds as Folds
from penstock.domains.folds.splits import Split as Split
from penstock.domains.folds.splits import author_folds as author_folds
from penstock.domains.folds.splits import author_split as author_split
