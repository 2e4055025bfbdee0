"""The keys of a configuration: which there are, and which values each accepts.

Keys of S4's configurations that have no effect here are listed too, so that an existing
configuration works unchanged and reports what it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from penstock.arguments import LARGEST_INTEGER, choice, flag, real_number, shown, whole_number
from penstock.errors import ConfigError
from penstock.loaders.chunk_settings import ChunkOption, ChunkSettings

Section = dict[str, Any]
Check: TypeAlias = Callable[[str, Any], object]  # raises `ConfigError` for a value of another kind


def whole(least: int, unit: str = "") -> Check:
    """Return the check of integers that are ``least`` or more."""
    return partial(whole_number, minimum=least, unit=unit, error=ConfigError)


def one_of(*choices: str) -> Check:
    """Return the check of these strings."""
    return lambda name, value: choice(name, value, choices, error=ConfigError)


def kind(words: str, accepts: Callable[[Any], bool]) -> Check:
    """Return the check of what ``accepts`` returns True for; ``words`` describe it."""

    def check(name: str, value: Any) -> None:
        if not accepts(value):
            raise ConfigError(f"{name} must be {words}, got {shown(value)}")

    return check


def instance_of(words: str, *types: type) -> Check:
    """Return the check of values of these types."""
    return kind(words, lambda value: isinstance(value, types))


def or_none(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def _of_option(option: ChunkOption) -> Check:
    return lambda name, value: option.check(value, name)


def _is_limit(value: Any) -> bool:
    most = 1.0 if isinstance(value, float) else LARGEST_INTEGER
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


NUMBER: Final = partial(real_number, minimum=0, maximum=LARGEST_INTEGER, error=ConfigError)
LIMIT: Final = kind("a number of batches, or a share of them from 0.0 to 1.0", _is_limit)
NAMES: Final = kind(
    "a list of module names",
    lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
)
YES_OR_NO: Final = partial(flag, error=ConfigError)
TEXT: Final = instance_of("text", str)
SECTION: Final = instance_of("a section with keys of its own", Mapping)
ARRAY: Final = instance_of("a .npy file, or a list of numbers", str, list)
NAMED: Final = instance_of("a name or a section with a _name_ or _target_", str, Mapping)
SEVERAL: Final = instance_of("a name, a section, or a list of those", str, Mapping, list)

SECTIONS: Final[dict[str, Check]] = {
    name: or_none(check)
    for name, check in {
        "train": SECTION,
        "trainer": SECTION,
        "loader": SECTION,
        "dataset": NAMED,
        "model": NAMED,
        "encoder": SEVERAL,
        "decoder": SEVERAL,
        "task": NAMED,
        "optimizer": NAMED,
        "scheduler": NAMED,
        "callbacks": instance_of("sections by name, or a list", dict, list),
        "logger": instance_of("a section, sections, or false", dict, list, bool),
        "imports": NAMES,
        "run_dir": TEXT,
    }.items()
}
IGNORED_SECTIONS: Final = {  # of S4 and Hydra, with the reason
    "wandb": "logs go to the run directory; give a logger section for others",
    "tolerance": "runs are resumed with --resume",
    "hydra": "the run directory is run_dir",
}


CHUNKS: Final[dict[str, Check]] = {
    option.key: _of_option(option)
    for option in ChunkSettings.options()
    if option.name != "start_chunk"  # on the command line: --chunk
}
TRAIN: Final[dict[str, Check]] = CHUNKS | {
    "priority": or_none(SECTION),
    "weights": or_none(ARRAY),
    "epoch_samples": or_none(whole(1, "sample")),
    "batch_by_length": or_none(SECTION),
    "seed": or_none(whole(-LARGEST_INTEGER)),
    "interval": one_of("epoch", "step"),
    "monitor": TEXT,
    "mode": one_of("min", "max"),
    "checkpoint_every": or_none(whole(1, "step")),
}
IGNORED_TRAIN: Final = (  # of S4
    "ckpt", "debug", "disable_dataset", "ema", "ignore_pretrained_layers", "ignore_warnings",
    "layer_decay", "name", "optimizer_param_grouping", "post_init_hook",
    "pretrained_freeze_encoder", "pretrained_model_path", "pretrained_model_state_hook",
    "pretrained_model_strict_load", "remove_test_loader_in_eval", "state", "test",
    "track_grad_norms", "validate_at_start",
)  # fmt: skip

PARTS: Final = ("train", "val", "test", "predict")
LIMITS: Final = {f"limit_{part}_batches": or_none(LIMIT) for part in PARTS}
TRAINER: Final[dict[str, Check]] = LIMITS | {  # simple values; Lightning checks the others itself
    "max_epochs": or_none(whole(-1)),
    "min_epochs": or_none(whole(0)),
    "max_steps": whole(-1),
    "min_steps": or_none(whole(0)),
    "num_nodes": whole(1),
    "overfit_batches": LIMIT,
    "val_check_interval": or_none(NUMBER),
    "check_val_every_n_epoch": or_none(whole(1)),
    "num_sanity_val_steps": or_none(whole(-1)),
    "log_every_n_steps": or_none(whole(0)),
    "accumulate_grad_batches": whole(1),
    "gradient_clip_val": or_none(NUMBER),
    "reload_dataloaders_every_n_epochs": whole(0),
    "enable_progress_bar": or_none(YES_OR_NO),
    "enable_model_summary": or_none(YES_OR_NO),
    "enable_checkpointing": or_none(YES_OR_NO),
    "inference_mode": YES_OR_NO,
    "use_distributed_sampler": YES_OR_NO,
    "detect_anomaly": YES_OR_NO,
    "sync_batchnorm": YES_OR_NO,
}
REMOVED_TRAINER: Final = (  # arguments of Lightning 1 that configurations in use still have
    "amp_backend", "amp_level", "auto_lr_find", "auto_scale_batch_size", "auto_select_gpus",
    "checkpoint_callback", "flush_logs_every_n_steps", "gpus", "ipus", "log_gpu_memory",
    "move_metrics_to_cpu", "multiple_trainloader_mode", "num_processes",
    "prepare_data_per_node", "process_position", "progress_bar_refresh_rate",
    "reload_dataloaders_every_epoch", "replace_sampler_ddp", "resume_from_checkpoint",
    "stochastic_weight_avg", "sync_batchnorm_ddp", "terminate_on_nan", "tpu_cores",
    "track_grad_norm", "truncated_bptt_steps", "weights_save_path", "weights_summary",
)  # fmt: skip

CALLBACKS: Final = ("early_stopping", "learning_rate_monitor")  # named by their key, as in S4
IGNORED_CALLBACKS: Final = {
    "model_checkpoint": "a run keeps its last and best checkpoints",
    "rich_progress_bar": "a run has its own",
    "rich_model_summary": "see trainer.enable_model_summary",
}

LOADER: Final[dict[str, Check]] = {
    "batch_size": whole(1, "sample"),
    "num_workers": whole(0),
    "drop_last": YES_OR_NO,
    "pin_memory": YES_OR_NO,
    "persistent_workers": YES_OR_NO,
    "prefetch_factor": or_none(whole(1, "batch")),
    "timeout": NUMBER,
    "multiprocessing_context": or_none(one_of("fork", "forkserver", "spawn")),
    "executor": or_none(one_of("inline", "threads", "processes")),
    "threads": or_none(whole(1)),
    "collate_fn": or_none(SECTION),
    "worker_init_fn": or_none(SECTION),
}
STREAM_LOADER: Final[dict[str, Check]] = {
    "block_samples": or_none(whole(1, "sample")),
    "window_blocks": or_none(whole(1, "block")),
    "memory_budget": instance_of("bytes, or a text such as '1GB'", int, str),
    "steps": whole(1),
    "device": or_none(TEXT),
    "lanes": or_none(whole(1)),
    "mixing": or_none(NUMBER),
    "transform": or_none(SECTION),
    "collate": or_none(SECTION),
    "threads": or_none(whole(1)),
    "timeout": NUMBER,
}
S4_LOADER: Final = (  # what S4's datasets take from `loader:`
    "_name_", "train_resolution", "eval_resolutions", "img_size", "channels_last", "chunk_len",
    "overlap_len",
)  # fmt: skip

MOVED: Final[dict[tuple[str, str], str]] = {  # a key in the wrong section, and the right one
    ("loader", "chunk_size"): "train.train_chunk_size",
    ("loader", "seed"): "train.chunk_seed",
    ("loader", "shuffle"): "train.chunk_shuffle",
    ("loader", "limit_batches"): "trainer.limit_train_batches",
    ("trainer", "seed"): "train.seed",
    ("trainer", "batch_size"): "loader.batch_size",
    ("", "seed"): "train.seed",
    ("", "batch_size"): "loader.batch_size",
    ("", "max_epochs"): "trainer.max_epochs",
}
MOVED.update({("", key): f"train.{key}" for key in CHUNKS | LIMITS})
MOVED.update({(name, key): f"train.{key}" for name in ("trainer", "loader") for key in CHUNKS})
