"""Cores, accelerator and memory of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from penstock.arguments import flag, whole_number
from penstock.errors import ConfigError
from penstock.streaming.budget import CGROUP, UNLIMITED, usable_cores


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a machine that matter for loading.

    Args:
        cores: Cores that this process may use, 1 or more.
        accelerator: Whether there is one.
        memory_bytes: Memory that this process may use.

    >>> Machine(cores=32, accelerator=True).cores
    32
    """

    cores: int
    accelerator: bool
    memory_bytes: int = 16 * 10**9

    def __post_init__(self) -> None:
        whole_number("cores", self.cores, minimum=1, error=ConfigError)
        flag("accelerator", self.accelerator, error=ConfigError)
        whole_number("memory_bytes", self.memory_bytes, minimum=1, error=ConfigError)


@cache
def this_machine() -> Machine:
    """Return this machine: cores and memory within affinity and cgroup limits."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = min(physical, limit_bytes(CGROUP))
    return Machine(usable_cores(), torch.accelerator.is_available(), memory)


def limit_bytes(cgroup: Path) -> int:
    """Return the bytes a container may use; `UNLIMITED` without a limit."""
    try:
        return int((cgroup / "memory.max").read_text())
    except (OSError, ValueError):  # "max" is not a number
        return UNLIMITED
