"""The keys of a configuration: which there are, and which values each accepts.

Keys of S4's configurations that have no effect here are listed too, so that an existing
configuration works unchanged and reports what it ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.arguments import LARGEST_INTEGER
from penstock.errors import ConfigError
from penstock.loaders.chunk_settings import ChunkOption, ChunkSettings

Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Args:
        words: What is accepted, for messages: ``"true or false"``.
        accepts: Whether a value is of this kind.
    """

    words: str
    accepts: Callable[[Any], bool]

    def or_none(self) -> Kind:
        """Return the kind that also accepts None."""
        return Kind(f"{self.words}, or null", lambda value: value is None or self.accepts(value))


def whole(least: int, unit: str = "") -> Kind:
    """Return the kind of integers that are ``least`` or more.

    >>> whole(1, "batch").words, whole(1).accepts(True), whole(1).accepts(2)
    ('a whole number, at least 1 batch, at most 2**62', False, True)
    """
    return Kind(
        f"a whole number, at least {least} {unit}".rstrip() + ", at most 2**62",
        lambda value: _is_int(value) and least <= value <= LARGEST_INTEGER,
    )


def one_of(*choices: str) -> Kind:
    """Return the kind of these strings."""
    return Kind(f"one of {', '.join(choices)}", lambda value: value in choices)


def instance_of(words: str, *types: type) -> Kind:
    """Return the kind of values of these types."""
    return Kind(words, lambda value: isinstance(value, types))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_limit(value: Any) -> bool:
    if isinstance(value, float):
        return 0.0 <= value <= 1.0
    return _is_int(value) and 0 <= value <= LARGEST_INTEGER


INTEGER: Final = Kind(
    "a whole number, at most 2**62",
    lambda value: _is_int(value) and abs(value) <= LARGEST_INTEGER,
)
NUMBER: Final = Kind(
    "a number, 0 or more and finite",
    lambda v: (_is_int(v) or isinstance(v, float)) and 0 <= v <= LARGEST_INTEGER,
)
LIMIT: Final = Kind("a number of batches, or a share of them from 0.0 to 1.0", _is_limit)
NAMES: Final = Kind(
    "a list of module names",
    lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
)
YES_OR_NO: Final = instance_of("true or false", bool)
TEXT: Final = instance_of("text", str)
SECTION: Final = instance_of("a section with keys of its own", Mapping)
NAMED: Final = instance_of("a name or a section with a _name_ or _target_", str, Mapping)
SEVERAL: Final = instance_of("a name, a section, or a list of those", str, Mapping, list)

SECTIONS: Final[dict[str, Kind]] = {
    name: kind.or_none()
    for name, kind in {
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


def _kind_of(option: ChunkOption) -> Kind:
    if option.kind == "flag":
        return YES_OR_NO
    if option.kind == "choice":
        return one_of(*option.choices)
    kind = whole(option.minimum, option.unit).or_none()
    if option.parse is None:
        return kind
    return Kind(f"{option.words}, or null", lambda value: _accepts(option, value))


def _accepts(option: ChunkOption, value: Any) -> bool:
    try:
        option.check(value)
        option.accept(value)
    except ConfigError:
        return False
    return True


CHUNKS: Final[dict[str, Kind]] = {
    option.key: _kind_of(option)
    for option in ChunkSettings.options()
    if option.name != "start_chunk"  # on the command line: --chunk
}
TRAIN: Final[dict[str, Kind]] = CHUNKS | {
    "priority": SECTION.or_none(),
    "seed": INTEGER.or_none(),
    "interval": one_of("epoch", "step"),
    "monitor": TEXT,
    "mode": one_of("min", "max"),
    "checkpoint_every": whole(1, "step").or_none(),
}
IGNORED_TRAIN: Final = (  # of S4
    "ckpt", "debug", "disable_dataset", "ema", "ignore_pretrained_layers", "ignore_warnings",
    "layer_decay", "name", "optimizer_param_grouping", "post_init_hook",
    "pretrained_freeze_encoder", "pretrained_model_path", "pretrained_model_state_hook",
    "pretrained_model_strict_load", "remove_test_loader_in_eval", "state", "test",
    "track_grad_norms", "validate_at_start",
)  # fmt: skip

LIMITS: Final[dict[str, Kind]] = {
    f"limit_{part}_batches": LIMIT.or_none() for part in ("train", "val", "test", "predict")
}
TRAINER: Final[dict[str, Kind]] = LIMITS | {  # simple values; Lightning checks the others itself
    "max_epochs": whole(-1).or_none(),
    "min_epochs": whole(0).or_none(),
    "max_steps": whole(-1),
    "min_steps": whole(0).or_none(),
    "num_nodes": whole(1),
    "overfit_batches": LIMIT,
    "val_check_interval": NUMBER.or_none(),
    "check_val_every_n_epoch": whole(1).or_none(),
    "num_sanity_val_steps": whole(-1).or_none(),
    "log_every_n_steps": whole(0).or_none(),
    "accumulate_grad_batches": whole(1),
    "gradient_clip_val": NUMBER.or_none(),
    "reload_dataloaders_every_n_epochs": whole(0),
    "enable_progress_bar": YES_OR_NO.or_none(),
    "enable_model_summary": YES_OR_NO.or_none(),
    "enable_checkpointing": YES_OR_NO.or_none(),
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

LOADER: Final[dict[str, Kind]] = {
    "batch_size": whole(1, "sample"),
    "num_workers": whole(0),
    "drop_last": YES_OR_NO,
    "pin_memory": YES_OR_NO,
    "persistent_workers": YES_OR_NO,
    "prefetch_factor": whole(1, "batch").or_none(),
    "timeout": NUMBER,
    "multiprocessing_context": one_of("fork", "forkserver", "spawn").or_none(),
    "executor": one_of("inline", "threads", "processes").or_none(),
    "threads": whole(1).or_none(),
    "collate_fn": SECTION.or_none(),
    "worker_init_fn": SECTION.or_none(),
}
STREAM_LOADER: Final[dict[str, Kind]] = {
    "block_samples": whole(1, "sample").or_none(),
    "window_blocks": whole(1, "block").or_none(),
    "memory_budget": instance_of("bytes, or a text such as '1GB'", int, str),
    "steps": whole(1),
    "device": TEXT.or_none(),
    "lanes": whole(1).or_none(),
    "mixing": NUMBER.or_none(),
    "transform": SECTION.or_none(),
    "collate": SECTION.or_none(),
    "threads": whole(1).or_none(),
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
