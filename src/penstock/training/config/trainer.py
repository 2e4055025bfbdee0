"""The section ``trainer``: arguments of Lightning's Trainer, as this machine can take them."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from penstock.extras import optional
from penstock.training.config.checking import Checker
from penstock.training.config.keys import GONE_TRAINER, LIMITS, MOVED, SECTIONS, TRAINER, Section

DEVICES = {"gpu": ("cuda", "mps", "xpu"), "cuda": ("cuda",), "mps": ("mps",)}


def without_listeners(resolved: Section, check: Checker) -> tuple[Section, Section]:
    """The section ``trainer`` without ``logger`` and ``callbacks``; and those, wherever given."""
    trainer, listeners = dict(resolved.get("trainer") or {}), {}
    for name in ("logger", "callbacks"):
        inside, listeners[name] = trainer.pop(name, None), resolved.get(name)
        if inside is None:
            continue
        if listeners[name] is not None:
            raise check.refuse(f"trainer.{name}", f"is given twice: the section {name!r} is enough")
        check.value(f"trainer.{name}", inside, SECTIONS[name])
        listeners[name] = inside
    limits = {name for name in LIMITS if trainer.get(name, 0) is None}
    return {name: value for name, value in trainer.items() if name not in limits}, listeners


def read_trainer(found: Section, check: Checker) -> Section:
    """What the Trainer is built with."""
    trainer = optional("lightning.pytorch", extra="lightning").Trainer
    known = [
        name for name in inspect.signature(trainer).parameters if ("trainer", name) not in MOVED
    ]
    kept = dict(found)
    target = kept.pop("_target_", None)
    if target is not None and not str(target).endswith(".Trainer"):
        raise check.refuse("trainer._target_", "is not Lightning's Trainer: leave it out")
    for name in found:
        if name in GONE_TRAINER:
            check.note(f"trainer.{name} is of an older Lightning and has no effect")
            del kept[name]
        elif name in kept and name not in known:
            check.unknown("trainer", str(name), known, strict=True)
    check.values("trainer", kept, TRAINER)
    if kept.pop("enable_checkpointing", None) is False:
        check.note("trainer.enable_checkpointing has no effect: a run is always saved")
    return _on_this_machine(kept, check)


def _on_this_machine(found: Section, check: Checker) -> Section:
    asked = found.get("accelerator")
    if asked not in DEVICES or _present() in DEVICES[asked]:
        return found
    check.note(f"trainer.accelerator={asked!r} is not on this machine: training on the cpu")
    kept = found | {"accelerator": "cpu"}
    if "devices" in kept:
        kept["devices"] = 1
    return kept


def _present() -> Any:
    found = torch.accelerator.current_accelerator(check_available=True)
    return None if found is None else found.type
