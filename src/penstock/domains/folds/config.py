"""The settings of training by folds: names, defaults and checks."""

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
    "optimize_dataloaders": True,  # False: torch's own loaders
    "benchmark_performance": False,  # True: add measurements of the loaders to the result
    "l2_regularization": 0.0,
    "gradient_clipping": 0.0,  # largest norm of the gradients; 0 disables clipping
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
ALL: Final = CROSS_VALIDATION | SINGLE_FOLD
# accepted, so that older configurations still run
UNUSED: Final = {
    "standardize_sample_size": "statistics are exact",
    "parallel_folds": "folds run one after the other, so that results can be repeated",
    "max_parallel_folds": "folds run one after the other, so that results can be repeated",
    "debug_dataloaders": "the chosen loaders are logged",
}
_MINIMUM: Final = {"num_epochs": 1, "batch_size": 1, "k_folds": 2, "max_split_attempts": 1}
_MAXIMUM: Final = {"seed": LARGEST_SEED, "random_state": 2**32 - 1}  # the latter by scikit-learn


def fold_config(
    given: Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return ``defaults`` updated with the settings that the user passed.

    Args:
        given: The user's settings.
        defaults: All settings and their default values.
        known: The names that may be passed. None means those of ``defaults``.

    Raises:
        ConfigError: A name is unknown or a value is invalid.

    >>> fold_config({"batch_size": 8}, CROSS_VALIDATION)["k_folds"]
    4
    >>> fold_config({"batchsize": 8}, CROSS_VALIDATION)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown setting 'batchsize': did you mean 'batch_size'? ...
    """
    config, known = dict(defaults), known or defaults
    settings = {} if given is None else mapping("config", given, error=ConfigError)
    for name, value in settings.items():
        if name in UNUSED:
            log.info("setting %r is not used: %s", name, UNUSED[name])
        elif name not in known:
            raise ConfigError(unknown_name("setting", name, known))
        else:
            config[name] = _checked(name, value)
    return config


def _checked(name: str, value: Any) -> Any:
    default = ALL[name]
    if isinstance(default, bool):
        return flag(name, value, error=ConfigError)
    if isinstance(default, float):
        number = real_number(name, value, error=ConfigError)
        if name == "test_size" and not 0 < number < 1:
            raise ConfigError(f"test_size must be a share between 0 and 1, got {value!r}")
        return real_number(name, value, minimum=0, error=ConfigError)
    least, most = _MINIMUM.get(name, 0), _MAXIMUM.get(name, LARGEST_INTEGER)
    return whole_number(name, value, minimum=least, maximum=most, error=ConfigError)
