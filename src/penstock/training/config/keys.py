"""The keys of a configuration: ours with what they may be, and S4's that do nothing here."""

from __future__ import annotations

from typing import Any, Final

from penstock.training.config.values import (
    INTEGER,
    LIMIT,
    NAMED,
    NAMES,
    NUMBER,
    SECTION,
    SEVERAL,
    TEXT,
    YES_OR_NO,
    Kind,
    one_of,
    whole,
)

SECTIONS: Final[dict[str, Kind]] = {
    "train": SECTION.or_none(),
    "trainer": SECTION.or_none(),
    "loader": SECTION.or_none(),
    "dataset": NAMED.or_none(),
    "model": NAMED.or_none(),
    "encoder": SEVERAL.or_none(),
    "decoder": SEVERAL.or_none(),
    "task": NAMED.or_none(),
    "optimizer": NAMED.or_none(),
    "scheduler": NAMED.or_none(),
    "callbacks": Kind(
        "sections by name, or a list", lambda v: isinstance(v, dict | list)
    ).or_none(),
    "logger": Kind("a section, sections, or false", lambda v: isinstance(v, dict | list | bool)),
    "imports": NAMES.or_none(),
    "run_dir": TEXT.or_none(),
}
SECTIONS["logger"] = SECTIONS["logger"].or_none()

IDLE_SECTIONS: Final = {
    "wandb": "logs go to the run directory; give a logger section for others",
    "tolerance": "runs are resumed with --resume",
    "hydra": "the run directory is run_dir",
}

CHUNKS: Final[dict[str, Kind]] = {
    "train_chunk_size": whole(1, "batch").or_none(),
    "val_chunk_size": whole(1, "batch").or_none(),
    "chunk_seed": INTEGER.or_none(),
    "chunk_shuffle": YES_OR_NO,
    "chunk_order": one_of("shuffled", "sequential", "block"),
    "val_cycle": YES_OR_NO,
    "cycle": YES_OR_NO,
    "max_passes": whole(1, "pass").or_none(),
}
LIMITS: Final[dict[str, Kind]] = {
    f"limit_{part}_batches": LIMIT.or_none() for part in ("train", "val", "test", "predict")
}
TRAINER: Final[dict[str, Kind]] = LIMITS | {  # those that are plain; Lightning checks the others
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
TRAIN: Final[dict[str, Kind]] = CHUNKS | {
    "seed": INTEGER.or_none(),
    "interval": one_of("epoch", "step"),
    "monitor": TEXT,
    "mode": one_of("min", "max"),
    "checkpoint_every": whole(1, "step").or_none(),
}

IDLE_TRAIN: Final = (  # of S4
    "ckpt",
    "debug",
    "disable_dataset",
    "ema",
    "ignore_pretrained_layers",
    "ignore_warnings",
    "layer_decay",
    "name",
    "optimizer_param_grouping",
    "post_init_hook",
    "pretrained_freeze_encoder",
    "pretrained_model_path",
    "pretrained_model_state_hook",
    "pretrained_model_strict_load",
    "remove_test_loader_in_eval",
    "state",
    "test",
    "track_grad_norms",
    "validate_at_start",
)

CALLBACKS: Final = ("early_stopping", "learning_rate_monitor")  # of S4's, by the name of their key
IDLE_CALLBACKS: Final = {
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
    "memory_budget": Kind("bytes, or a text such as '1GB'", lambda v: isinstance(v, int | str)),
    "steps": whole(1),
    "device": TEXT.or_none(),
    "lanes": whole(1).or_none(),
    "transform": SECTION.or_none(),
    "collate": SECTION.or_none(),
    "threads": whole(1).or_none(),
    "timeout": NUMBER,
}
S4_LOADER: Final = (  # what its datasets and loaders take from `loader:`
    "_name_",
    "train_resolution",
    "eval_resolutions",
    "img_size",
    "channels_last",
    "chunk_len",
    "overlap_len",
)
MOVED: Final[dict[tuple[str, str], str]] = {
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
MOVED.update(
    {(section, key): f"train.{key}" for section in ("trainer", "loader") for key in CHUNKS}
)

GONE_TRAINER: Final = (  # of Lightning 1, still in trees that are in use
    "amp_backend",
    "amp_level",
    "auto_lr_find",
    "auto_scale_batch_size",
    "auto_select_gpus",
    "checkpoint_callback",
    "flush_logs_every_n_steps",
    "gpus",
    "ipus",
    "log_gpu_memory",
    "move_metrics_to_cpu",
    "multiple_trainloader_mode",
    "num_processes",
    "prepare_data_per_node",
    "process_position",
    "progress_bar_refresh_rate",
    "reload_dataloaders_every_epoch",
    "replace_sampler_ddp",
    "resume_from_checkpoint",
    "stochastic_weight_avg",
    "sync_batchnorm_ddp",
    "terminate_on_nan",
    "tpu_cores",
    "track_grad_norm",
    "truncated_bptt_steps",
    "weights_save_path",
    "weights_summary",
)

Section = dict[str, Any]
