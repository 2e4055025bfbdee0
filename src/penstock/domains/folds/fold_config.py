"""The settings of training by folds: defaults, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from penstock.arguments import (
    LARGEST_INTEGER,
    LARGEST_SEED,
    flag,
    mapping,
    real_number,
    whole_number,
)
from penstock.errors import ConfigError
from penstock.registry import unknown_name

log = logging.getLogger("penstock")

COMMON: Final[dict[str, Any]] = {
    "num_epochs": 220,
    "batch_size": 24,
    "learning_rate": 0.001,
    "use_class_weights": False,
    "early_stopping": 35,  # epochs without a lower validation loss; 0 never stops early
    "standardize": True,
    "spec_augment": False,
    "gaussian_noise": False,
    "optimize_dataloaders": True,  # False: torch's own loaders, as they come
    "benchmark_performance": False,  # True: figures of the loaders in the result
    "l2_regularization": 0.0,
    "gradient_clipping": 0.0,  # largest norm of the gradients; 0 leaves them
    "mixed_precision": False,  # forward passes in bfloat16
    "seed": 42,  # of weights, order, augmentation and dropout
}
CROSS_VALIDATION: Final[dict[str, Any]] = COMMON | {
    "k_folds": 4,
    "aggregate_predictions": True,
    "max_split_attempts": 30000,
    "min_val_segments": 0,
}
SINGLE_FOLD: Final[dict[str, Any]] = COMMON | {
    "num_epochs": 250,
    "batch_size": 48,
    "test_size": 0.2,  # share of the segments
    "random_state": 435,
    "max_split_attempts": 10000,
    "min_test_segments": 5,
    "l2_regularization": 1e-4,
}
ENGINE: Final[dict[str, Any]] = COMMON | {"aggregate_predictions": True}
RETIRED: Final = {
    "standardize_sample_size": "statistics are exact",
    "parallel_folds": "folds run one after the other, so that results can be repeated",
    "max_parallel_folds": "folds run one after the other, so that results can be repeated",
    "debug_dataloaders": "the loaders chosen are logged",
}
EVERY: Final = CROSS_VALIDATION | SINGLE_FOLD
_AT_MOST: Final = {"random_state": 2**32 - 1}  # scikit-learn's
_AT_LEAST: Final = {"num_epochs": 1, "batch_size": 1, "k_folds": 2, "max_split_attempts": 1}


def fold_config(
    given: Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``defaults`` with what was ``given``; an unknown name or a wrong value is refused.

    Args:
        given: a user's own settings.
        defaults: all that is set, where nothing else is given.
        known: names that may be given; None are those of ``defaults``.

    >>> fold_config({"batch_size": 8}, CROSS_VALIDATION)["k_folds"]
    4
    >>> fold_config({"batchsize": 8}, CROSS_VALIDATION)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown setting 'batchsize': did you mean 'batch_size'? ...
    """
    config = dict(defaults)
    settings = {} if given is None else mapping("config", given, error=ConfigError)
    for name, value in settings.items():
        if name in RETIRED:
            log.info("setting %r is not used: %s", name, RETIRED[name])
        elif name not in (known or defaults):
            raise ConfigError(unknown_name("setting", name, known or defaults))
        else:
            config[name] = _checked(name, value)
    return config


def _checked(name: str, value: Any) -> Any:
    default = EVERY[name]
    if isinstance(default, bool):
        return flag(name, value, error=ConfigError)
    if isinstance(default, float):
        number = real_number(name, value, error=ConfigError)
        if name == "test_size" and not 0 < number < 1:
            raise ConfigError(f"test_size must be a share between 0 and 1, got {value!r}")
        return real_number(name, value, minimum=0, error=ConfigError)
    most_whole = LARGEST_SEED if name == "seed" else _AT_MOST.get(name, LARGEST_INTEGER)
    least = _AT_LEAST.get(name, 0)
    return whole_number(name, value, minimum=least, maximum=most_whole, error=ConfigError)
