"""The settings of a run: a configuration, read and checked by a table of keys, as one record.

Keys of S4's configurations that have no effect here are listed too, so that an existing
configuration works unchanged and reports what it ignores.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import torch

from penstock.arguments import LARGEST_INTEGER, choice, flag, real_number, shown, whole_number
from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.loaders.chunk_settings import ChunkOption, ChunkSettings
from penstock.registry import close_name
from penstock.training.config.compose import Provenance, compose, resolve

lightning: Any = optional("lightning.pytorch", extra="train")

log = logging.getLogger("penstock")

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
    "wandb": "logs go to the run directory; add a logger section for others",
    "tolerance": "runs are resumed with --resume",
    "hydra": "the run directory is run_dir",
}


CHUNKS: Final[dict[str, Check]] = {
    option.key: _of_option(option)
    for option in ChunkSettings.options()
    if option.name != "start_chunk"  # on the command line: --chunk
}
OTHER_TRAIN: Final[dict[str, tuple[Check, Any]]] = {  # the check and the default of each key
    "priority": (or_none(SECTION), None),
    "weights": (or_none(ARRAY), None),
    "epoch_samples": (or_none(whole(1, "sample")), None),
    "batch_by_length": (or_none(SECTION), None),
    "seed": (or_none(whole(-LARGEST_INTEGER)), 0),
    "interval": (one_of("epoch", "step"), "epoch"),
    "monitor": (TEXT, "val/loss"),
    "mode": (one_of("min", "max"), "min"),
    "checkpoint_every": (or_none(whole(1, "step")), None),
}
TRAIN: Final = CHUNKS | {key: check for key, (check, _) in OTHER_TRAIN.items()}
TRAIN_DEFAULTS: Final = {  # options of chunks are declared in `ChunkSettings` only
    **{option.key: option.default for option in ChunkSettings.options() if option.key in CHUNKS},
    **{key: default for key, (_, default) in OTHER_TRAIN.items()},
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

SIZES: Final = ("train_chunk_size", "val_chunk_size")
DEVICES: Final = {"gpu": ("cuda", "mps", "xpu"), "cuda": ("cuda",), "mps": ("mps",)}


@dataclass(slots=True)
class Checker:
    """Checks of keys and values; collects notes about keys that have no effect."""

    provenance: Provenance
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        if text not in self.notes:
            self.notes.append(text)

    def error(self, key: str, why: str) -> ConfigError:
        """Return the error for a key, with the file and line that set it."""
        return ConfigError(f"{key} ({self.provenance.where(key)}) {why}")

    def value(self, key: str, value: Any, check: Check) -> None:
        """Refuse a value that ``check`` does not accept."""
        try:
            check(key, value)
        except ConfigError as error:
            raise self.error(key, str(error).removeprefix(key).lstrip()) from error

    def values(self, section: str, found: Section, checks: Mapping[str, Check]) -> None:
        """Refuse every value that its check does not accept."""
        for name in [each for each in checks if each in found]:
            self.value(f"{section}.{name}", found[name], checks[name])

    def unknown(self, section: str, name: str, known: Iterable[str], *, strict: bool) -> None:
        """Refuse an unknown key that is misspelled or misplaced; with ``strict``, every one."""
        key, known = f"{section}.{name}".lstrip("."), list(known)
        if (section, name) in MOVED:
            where = f"set {MOVED[section, name]} instead"
            raise self.error(key, f"is in the wrong section: {where}")
        near = close_name(name, known)
        if near is not None:
            raise self.error(key, f"is unknown: did you mean {near!r}?")
        if strict:
            raise self.error(key, f"is unknown: {section} has {', '.join(sorted(known))}")


def check_sections(found: Mapping[str, Any], check: Checker) -> None:
    """Refuse misspelled sections; note those that have no effect."""
    for name, value in found.items():
        if name in SECTIONS:
            check.value(str(name), value, SECTIONS[name])
        elif name in IGNORED_SECTIONS:
            if value is not None:
                check.note(f"section {name!r} has no effect: {IGNORED_SECTIONS[name]}")
        else:
            check.unknown("", str(name), SECTIONS, strict=False)
            check.note(f"section {name!r} has no effect by itself")


def check_train(found: Section, dataset: Any, check: Checker) -> Section:
    """Return the known keys of ``train``, with chunk sizes that the dataset has instead."""
    kinds = TRAIN | LIMITS
    ignored = [name for name in found if name not in kinds]
    for name in ignored:
        if name not in IGNORED_TRAIN:
            check.unknown("train", str(name), kinds, strict=False)
    if ignored:
        check.note(f"train: {', '.join(sorted(map(str, ignored)))} have no effect")
    check.values("train", found, kinds)
    known = {name: value for name, value in found.items() if name in TRAIN}
    return _dataset_sizes(dataset, found, check) | known


def _dataset_sizes(dataset: Any, train: Section, check: Checker) -> Section:
    if not isinstance(dataset, Mapping):
        return {}
    sizes = {name: dataset[name] for name in SIZES if dataset.get(name) is not None}
    check.values("dataset", sizes, TRAIN)
    for name, size in sizes.items():
        if train.get(name, size) != size:
            check.note(f"train.{name}={train[name]!r} overrides dataset.{name}={size!r}")
    return sizes


def check_loader(found: Section, dataset: Any, check: Checker) -> None:
    """Refuse unknown loader keys; a dataset with a ``_name_`` may take keys of its own."""
    known = LOADER | STREAM_LOADER
    by_name = isinstance(dataset, Mapping) and "_name_" in dataset
    for name in found:
        if name not in known and name not in S4_LOADER:
            check.unknown("loader", str(name), known, strict=not by_name)
    check.values("loader", found, known)


def check_callbacks(found: Any, check: Checker) -> Any:
    """Return the section ``callbacks`` without those of S4 that have no effect."""
    if not isinstance(found, dict) or "_target_" in found or "_name_" in found:
        return found
    used = {}
    for name, section in found.items():
        described = isinstance(section, Mapping) and {"_target_", "_name_"} & section.keys()
        if described or name in CALLBACKS:
            used[name] = section
        elif section is not None:
            if name not in IGNORED_CALLBACKS:
                check.unknown("callbacks", str(name), CALLBACKS, strict=False)
            why = IGNORED_CALLBACKS.get(name, "add a _target_")
            check.note(f"callback {name!r} has no effect: {why}")
    return used


# -- the section trainer


def split_trainer(resolved: Section, check: Checker) -> tuple[Section, Any, Any]:
    """Return the trainer's arguments, the callbacks and the logger.

    Callbacks and logger may be sections of their own or keys of ``trainer``. Limits may be under
    ``train`` too.
    """
    trainer, train = dict(resolved.get("trainer") or {}), resolved.get("train") or {}
    observers = {}
    for name in ("callbacks", "logger"):
        inside, outside = trainer.pop(name, None), resolved.get(name)
        if inside is not None:
            if outside is not None:
                raise check.error(f"trainer.{name}", f"is given twice: keep the section {name!r}")
            check.value(f"trainer.{name}", inside, SECTIONS[name])
        observers[name] = outside if inside is None else inside
    # null is as good as a key that is left out, which the one under train replaces
    for name in LIMITS:
        if trainer.get(name, 0) is None:
            del trainer[name]
    limits = {name: train[name] for name in LIMITS if train.get(name) is not None}
    both = [name for name in limits if name in trainer]
    if both:
        check.note(f"{', '.join(both)} are under train and trainer: those under trainer are used")
    arguments = check_trainer(limits | trainer, check)
    return arguments, check_callbacks(observers["callbacks"], check), observers["logger"]


def check_trainer(found: Section, check: Checker) -> Section:
    """Return the arguments of Lightning's Trainer."""
    known = [
        n for n in inspect.signature(lightning.Trainer).parameters if ("trainer", n) not in MOVED
    ]
    used = dict(found)
    target = used.pop("_target_", None)
    if target is not None and not str(target).endswith(".Trainer"):
        raise check.error("trainer._target_", "is not Lightning's Trainer: leave it out")
    for name in found:
        if name in REMOVED_TRAINER:
            check.note(f"trainer.{name} is of an older Lightning and has no effect")
            del used[name]
        elif name in used and name not in known:
            check.unknown("trainer", str(name), known, strict=True)
    check.values("trainer", used, TRAINER)
    if used.pop("enable_checkpointing", None) is False:
        check.note("trainer.enable_checkpointing has no effect: a run always saves checkpoints")
    wanted, present = used.get("accelerator"), torch.accelerator.current_accelerator(True)
    if wanted in DEVICES and getattr(present, "type", None) not in DEVICES[wanted]:
        check.note(f"trainer.accelerator={wanted!r} is not on this machine: training on the cpu")
        used |= {"accelerator": "cpu"} | ({"devices": 1} if "devices" in used else {})
    return used


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole configuration by section; a section that is left out is None or empty.

    Args:
        path: The main file.
        root: The folder of the configuration tree.
        resolved: The configuration as a plain dict, with every ``${...}`` resolved.
        train: The section ``train``: an attribute for each key of `TRAIN_DEFAULTS`.
        trainer: Arguments of Lightning's Trainer.
        loader: The section ``loader``.
        dataset: The section ``dataset``; so for the sections that follow.
        run_dir: The directory of the run.
        notes: Remarks for the user, such as keys that have no effect.
        provenance: The file and line of every key.
    """

    path: Path
    root: Path
    resolved: dict[str, Any]
    train: SimpleNamespace
    trainer: dict[str, Any]
    loader: dict[str, Any]
    dataset: Any
    model: Any
    encoder: Any
    decoder: Any
    task: Any
    optimizer: Any
    scheduler: Any
    callbacks: Any
    logger: Any
    imports: tuple[str, ...]
    run_dir: Path
    notes: tuple[str, ...]
    provenance: Provenance = field(repr=False)

    @property
    def chunks(self) -> ChunkSettings:
        """The options of training in chunks."""
        return ChunkSettings.of_config(self)

    def where(self, key: str) -> str:
        """Return where a key (``"model.d_model"``) was set: the file and line, or the override."""
        return self.provenance.where(key)

    def refused(self, key: str, why: str) -> ConfigError:
        """Return the error for a key, with the file and line that set it."""
        return ConfigError(f"{key} ({self.where(key)}): {why}")


def read_settings(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
) -> Settings:
    """Return the settings of a YAML file, alone or in a tree of files.

    Keys that have no effect are logged.

    Args:
        path: The file. Its ``defaults`` are looked up in the folders above it.
        overrides: ``key=value``, as Hydra takes them; a key that no file has needs no ``+``.
        config_dir: The folder of its ``defaults``, if that is not above it.

    Raises:
        ConfigError: A file cannot be read, or a key or value is invalid; with file and line.
    """
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise ConfigError(f"invalid override {override!r}: expected key=value")
    composed = compose(path, overrides, None if config_dir is None else Path(config_dir))
    resolved, check = resolve(composed, IGNORED_SECTIONS), Checker(composed.provenance)
    check_sections(resolved, check)
    loader, dataset = resolved.get("loader") or {}, resolved.get("dataset")
    check_loader(loader, dataset, check)
    train = check_train(resolved.get("train") or {}, dataset, check)
    trainer, callbacks, logger = split_trainer(resolved, check)
    for note in check.notes:
        log.info("%s", note)
    # a directory per file and experiment, so that two experiments never share one
    default = Path("runs", composed.provenance.path.stem, *composed.experiments)
    objects = ("model", "encoder", "decoder", "task", "optimizer", "scheduler")
    return Settings(
        path=composed.provenance.path,
        root=composed.root,
        resolved=resolved,
        train=SimpleNamespace(**TRAIN_DEFAULTS | train),
        trainer=trainer,
        loader=loader,
        dataset=dataset,
        **{name: resolved.get(name) for name in objects},
        callbacks=callbacks,
        logger=logger,
        imports=tuple(resolved.get("imports") or ()),
        run_dir=Path(resolved.get("run_dir") or default),
        notes=tuple(check.notes),
        provenance=composed.provenance,
    )
