"""What this process and its children use."""

from __future__ import annotations

import multiprocessing
import os
import resource
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def tree_pids() -> list[int]:
    """This process and the workers it has started."""
    return [os.getpid(), *(p.pid for p in multiprocessing.active_children() if p.pid is not None)]


def tree_bytes() -> int:
    """Memory of this process and its workers; shared pages are counted once, by their share."""
    return sum(_proportional_bytes(pid) for pid in tree_pids())


def tree_cpu_seconds() -> float:
    """Processor time that this process and its workers have used so far, ended ones too."""
    alive = sum(_cpu_seconds(pid) for pid in tree_pids())  # this also collects those that ended
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return alive + ended.ru_utime + ended.ru_stime


def _proportional_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # gone, not ours, or another system
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return own if pid == os.getpid() else 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        times = os.times()
        return times.user + times.system if pid == os.getpid() else 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
