"""Memory and processor time of this process, its workers, and the accelerator."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path

import torch

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")  # clock ticks per second in /proc/PID/stat


def tree_pids() -> list[int]:
    """Return the ids of this process and of the workers it has started."""
    return [os.getpid(), *(p.pid for p in multiprocessing.active_children() if p.pid is not None)]


def tree_bytes() -> int:
    """Return the memory of this process and its workers, in bytes.

    A page that several processes share counts once in the sum.
    """
    return sum(_proportional_bytes(pid) for pid in tree_pids())


def tree_cpu_seconds() -> float:
    """Return the processor time that this process and all its workers have used so far."""
    alive = sum(_cpu_seconds(pid) for pid in tree_pids())  # also collects workers that ended
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return alive + ended.ru_utime + ended.ru_stime


def accelerator_utilization() -> list[float]:
    """Return the share of time in which kernels ran, as one number; empty if it is unknown."""
    if not torch.cuda.is_available():
        return []
    try:
        return [torch.cuda.utilization() / 100]
    except (ModuleNotFoundError, RuntimeError):  # the library that asks the driver is missing
        return []


def accelerator_memory() -> dict[str, float]:
    """Return allocated, reserved and peak bytes; empty without an accelerator."""
    if not torch.accelerator.is_available():
        return {}
    return {
        "accelerator_allocated_bytes": torch.accelerator.memory_allocated(),
        "accelerator_reserved_bytes": torch.accelerator.memory_reserved(),
        "accelerator_peak_bytes": torch.accelerator.max_memory_allocated(),
    }


def _proportional_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended, belongs to another user, or there is no /proc
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return own if pid == os.getpid() else 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _cpu_seconds(pid: int) -> float:
    try:
        # the name of the program, in parentheses, may contain spaces
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        times = os.times()
        return times.user + times.system if pid == os.getpid() else 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
