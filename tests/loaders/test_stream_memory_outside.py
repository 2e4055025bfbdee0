"""The budget as the system sees it: memory of a child process, measured from outside."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from penstock import StreamLoader
from penstock.sizes import parse_bytes

TOLERANCE = 64e6  # what does not grow with the data: temporary arrays, stacks, the allocator's own

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system says how much memory is in use"
)

PROGRAM = """
import sys
import numpy as np
from penstock import StreamLoader
options = eval(sys.argv[2])
warm = StreamLoader(np.zeros((50, 3), "f4"), 5)
list(warm)
warm.close()
loader = StreamLoader(sys.argv[1], **options)
print(loader.buffer_bytes, flush=True)
sys.stdin.readline()
batches = iter(loader)
for _ in range(int(sys.argv[3])):
    next(batches, None)
print("done", flush=True)
sys.stdin.readline()
"""


def anonymous_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def growth(path, options, batches):
    """Bytes that a loader counts, and the most that its process was seen to grow by."""
    program = [sys.executable, "-c", PROGRAM, str(path), repr(options), str(batches)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, **pipes) as child:
        try:
            counted = int(child.stdout.readline())
            before = most = anonymous_bytes(child.pid)
            child.stdin.write("\n")
            child.stdin.flush()
            done = []
            reading = threading.Thread(target=lambda: done.append(child.stdout.readline()))
            reading.start()
            while reading.is_alive():
                most = max(most, anonymous_bytes(child.pid))
                time.sleep(0.005)
            reading.join()
            assert done == ["done\n"]
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.wait(60) == 0
        finally:
            child.kill()
    return counted, most - before


def stored(tmp_path, shape, dtype):
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
    return path


NARROW, WIDE = ((6_000_000,), "u2"), ((40_000, 1024), "f4")
CASES = {
    "scalars, all in one window": (NARROW, {"batch_size": 1024, "memory_budget": "80MB"}),
    "scalars, small batches": (NARROW, {"batch_size": 16, "memory_budget": "100MB"}),
    "scalars, batches of one": (NARROW, {"batch_size": 1, "memory_budget": "100MB"}),
    "scalars, small blocks": (
        NARROW,
        {"batch_size": 1024, "block_samples": 4, "memory_budget": "100MB"},
    ),
    "scalars, one of three ranks": (
        NARROW,
        {"batch_size": 512, "memory_budget": "60MB", "rank": 1, "world_size": 3, "lanes": 2},
    ),
    "narrow rows": (((2_000_000, 4), "f4"), {"batch_size": 1024, "memory_budget": "64MB"}),
    "wide rows": (WIDE, {"batch_size": 32, "memory_budget": "100MB"}),
    "windows of rows": (
        ((100_000, 64), "f4"),
        {"batch_size": 32, "steps": 25, "memory_budget": "100MB"},
    ),
    "windows of tokens": (
        NARROW,
        {"batch_size": 64, "steps": 256, "memory_budget": "60MB"},
    ),
    "windows of rows, of three ranks": (
        ((60_000, 256), "f4"),
        {
            "batch_size": 32,
            "steps": 25,
            "block_samples": 500,
            "memory_budget": "120MB",
            "rank": 1,
            "world_size": 3,
            "lanes": 1,
        },
    ),
    "in order": (NARROW, {"batch_size": 64, "shuffle": False, "memory_budget": "30MB"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_grows_by_no_more_than_the_budget(tmp_path, case):
    (shape, dtype), options = CASES[case]
    path = stored(tmp_path, shape, dtype)
    budget = parse_bytes(options["memory_budget"])
    counted, grown = growth(path, options, batches=300)
    assert counted <= budget
    assert grown <= budget + TOLERANCE, (case, counted, grown)
    assert grown <= counted + TOLERANCE, (case, counted, grown)  # describe() agrees


def test_what_is_counted_for_wide_rows_is_their_buffers(tmp_path):
    """Bookkeeping is within the tolerance there: the geometry is that of earlier releases."""
    path = stored(tmp_path, *WIDE)
    for options in ({}, {"steps": 5}, {"batch_size": 256}, {"rank": 1, "world_size": 4}):
        loader = StreamLoader(path, **{"batch_size": 32, "memory_budget": "100MB", **options})
        resolver = loader._orders.resolver(loader.batch_size, loader.world_size)
        samples = resolver.round_samples(loader.geometry)
        needed = resolver.demand.buffers(loader.block_samples, samples, loader.lanes)
        assert loader.buffer_bytes == needed


def test_narrow_samples_are_mixed_by_the_million_and_no_more(tmp_path):
    """All of a window is read before its first batch: 50 million scalars took half a minute."""
    path = stored(tmp_path, (50_000_000,), "u2")
    loader = StreamLoader(path, 1024)
    window = loader.window_blocks * loader.block_samples
    assert 8_000_000 <= window <= 1 << 24
    assert "enough for a shuffle of samples this small" in loader.describe()
    assert StreamLoader(path, 1024, window_blocks=90).window_blocks == 90  # as you like
    few = StreamLoader(stored(tmp_path, (8_000_000,), "u2"), 1024)
    assert "all there is" in few.describe()
