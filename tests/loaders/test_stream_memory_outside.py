"""The budget as the system sees it: memory of a child process, measured from outside."""

import json
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from penstock import StreamLoader
from penstock.arguments import parse_bytes

TOLERANCE = 64e6  # what does not grow with the data: temporary arrays, stacks, the allocator's own

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system says how much memory is in use"
)

# each line of its input is a case, run in a fork: importing torch takes longer than all of them
PROGRAM = """
import json, os, sys
import numpy as np
from penstock import StreamLoader, open_source

def run(path, options, batches):
    patches = options.pop("patches", None)
    warm = StreamLoader(np.zeros((50, 3), "f4"), 5)
    list(warm)
    warm.close()
    source = path if patches is None else open_source(path).patches(**patches)
    loader = StreamLoader(source, **options)
    print(os.getpid(), loader.buffer_bytes, flush=True)
    sys.stdin.readline()
    batches_of_loader = iter(loader)
    for _ in range(batches):
        next(batches_of_loader, None)
    print("done", flush=True)
    sys.stdin.readline()
    loader.close()

while line := sys.stdin.readline():
    if os.fork() == 0:
        try:
            run(*json.loads(line))
        finally:
            os._exit(0)
    os.wait()
"""


def anonymous_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


@pytest.fixture(scope="module")
def program():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], **pipes) as program:
        yield program
        program.stdin.close()


def growth(program, path, options, batches):
    """Bytes that a loader counts, and the most that its process was seen to grow by."""
    print(json.dumps([str(path), options, batches]), file=program.stdin)
    pid, counted = map(int, program.stdout.readline().split())
    before = most = anonymous_bytes(pid)
    print(file=program.stdin)
    deadline = time.monotonic() + 100
    while not select.select([program.stdout], [], [], 0.005)[0]:
        assert time.monotonic() < deadline
        most = max(most, anonymous_bytes(pid))
    most = max(most, anonymous_bytes(pid))
    assert program.stdout.readline() == "done\n"
    print(file=program.stdin)
    return counted, most - before


def stored(tmp_path, shape, dtype):
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """200 MB of images."""
    path = tmp_path_factory.mktemp("images")
    data = np.repeat(np.arange(100, dtype="u2"), 1 << 20).reshape(100, 1024, 1024)
    zarr.create_array(path, data=data, chunks=(1, 256, 256), shards=(1, 1024, 1024))
    return path


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A sparse matrix of 200 MB whose rows have very different lengths, sorted by length."""
    path, rows, width = tmp_path_factory.mktemp("cells"), 50_000, 4_000
    lengths = np.sort(np.random.default_rng(0).exponential(500, rows).clip(1, width).astype(int))
    offsets = np.append(0, np.cumsum(lengths))
    group = zarr.create_group(path, attributes={"encoding-type": "anndata"})
    kind = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, width]}
    x = group.create_group("X", attributes=kind)
    x.create_array("indptr", data=offsets)
    for name, dtype in (("indices", "i4"), ("data", "f4")):
        ones = np.ones(offsets[-1], dtype)
        x.create_array(name, data=ones, chunks=(20_000,), shards=(2_000_000,))
    return path


NARROW, WIDE = ((6_000_000,), "u2"), ((40_000, 1024), "f4")
CASES = {
    "scalars, all in one window": (NARROW, {"batch_size": 1024, "memory_budget": "80MB"}),
    "scalars, small batches": (NARROW, {"batch_size": 16, "memory_budget": "100MB"}),
    "scalars, batches of one": (NARROW, {"batch_size": 1, "memory_budget": "100MB"}),
    "scalars, small blocks": (
        NARROW,
        {"batch_size": 1024, "block_samples": 64, "memory_budget": "40MB"},
    ),
    "scalars, very many small blocks": (
        NARROW,
        {"batch_size": 1024, "block_samples": 64, "memory_budget": "100MB"},
    ),
    "scalars, tiny blocks": (
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


PATCHES = {
    "side by side": {"sizes": [128, 128]},
    "that overlap": {"sizes": [128, 128], "stride": 32},
    "at random": {"sizes": [128, 128], "random": True},
}

LONG = {"scalars, tiny blocks", "scalars, very many small blocks"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.proof] * (case in LONG)) for case in CASES]
)
def test_a_process_grows_by_no_more_than_the_budget(tmp_path, program, case):
    (shape, dtype), options = CASES[case]
    path = stored(tmp_path, shape, dtype)
    budget = parse_bytes(options["memory_budget"])
    counted, grown = growth(program, path, options, batches=300)
    assert counted <= budget
    assert grown <= budget + TOLERANCE, (case, counted, grown)
    assert grown <= counted + TOLERANCE, (case, counted, grown)  # describe() agrees


@pytest.mark.parametrize("case", PATCHES)
def test_patches_stay_within_the_budget(images, program, case):
    options = {"patches": PATCHES[case], "batch_size": 32, "memory_budget": "60MB"}
    counted, grown = growth(program, images, options, batches=110)
    assert counted <= 60e6
    assert grown <= counted + TOLERANCE, (counted, grown)


def test_ragged_rows_stay_within_the_budget(cells, program):
    options = {"batch_size": 64, "memory_budget": "60MB"}
    counted, grown = growth(program, cells, options, batches=600)
    assert counted <= 60e6
    assert grown <= counted + TOLERANCE, (counted, grown)


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
