"""Headers that promise more than any memory holds: one sentence or data, soon, in little memory.

Large numbers are written over the beginning and the end of a file of every kind, where formats have
their sizes, and the file is opened, read and streamed in a process with little memory to spare: no
crash, no hang, and no error that is not a sentence of ours.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import struct
import warnings

import pytest

from penstock import StreamLoader
from penstock.errors import PenstockError
from penstock.sources.ragged_rows import items_of, new_buffers
from tests.sources.bad_files import KINDS, files_of, opened

ENDS, STRIDE = 400, 20  # bytes at each end of a file, and between two numbers written over them
SPARE_BYTES, MOST_SECONDS = 1 << 30, 30
MOST_GROWN_MB = 100
TRUSTING = "x.h5ad"  # HDF5 allocates what a string of variable length says, up to 4 GB
HUGE = [struct.pack(form, n) for form, n in (("<q", 10**18), (">q", 10**18), (">i", 2**31 - 1))]
HUGE += [struct.pack("<i", 2 * 10**9), b"9" * 11]  # also in digits: tar, ppm
TEXTS = {  # headers in words
    "x.npy": [(b"(40, 8, 6), ", b"(%d, 8, 6), "), (b"(40, 8, 6), ", b"(40, 8, %d), ")],
    "arrays": [(b"(8, 6), ", b"(8, %d), "), (b"(8, 6), ", b"(%d, 6), ")],
    "x.jsonl": [(b'"a": 39', b'"a": 1%d'), (b'"t": ""', b'"t": [1e%d]')],
    "ppm": [(b"16 16", b"%d 16"), (b"255", b"%d")],
    "x.zarr": [(b"40,", b"%d,"), (b"10,", b"%d,")],
    "shards.zarr": [(b"40,", b"%d,"), (b"5,", b"%d,"), (b"20,", b"%d,")],
}


def in_turn(numbers, turn, count):
    """Return ``count`` of the numbers, or all of them; those of the next turn begin one later."""
    first = turn % len(numbers)
    return (numbers[first:] + numbers[:first])[:count]


def damaged(name, content, each):
    """Yield the content of a file with a large number in it, at every place ``each`` of them."""
    if "zarr" not in name or name.endswith(".zip"):
        last = max(ENDS, len(content) - ENDS)
        places = [*range(0, min(ENDS, len(content)), STRIDE), *range(last, len(content), STRIDE)]
        for turn, at in enumerate(places):
            for number in in_turn(HUGE, turn, each):
                yield content[:at] + number + content[at + len(number) :]
    for turn, (old, new) in enumerate(TEXTS.get(name, ())):
        for huge in in_turn([10**18, 10**10], turn, each):
            assert old in content
            changed = content.replace(old, new % huge, 1)
            if name in ("x.npy", "arrays"):  # the header is padded, and ends with a new line
                end = content.index(b"\n")
                changed = changed[: end + len(changed) - len(content)].rstrip()[:end]
                changed = changed.ljust(end) + content[end:]
            yield changed


def use(path):
    """Read the first and the last samples of a source and its first batches."""
    source = opened(path)
    for first, last in ((0, min(3, len(source))), (max(0, len(source) - 3), len(source))):
        counts = {
            name: items_of(source, name, first, last) if field.ragged else last - first
            for name, field in source.fields.items()
        }
        if sum(count * source.fields[name].nbytes for name, count in counts.items()) > 1 << 26:
            return  # the caller has no memory for so many, which is not the source's to say
        source.read(first, last, new_buffers(source, source.fields, first, last))
    source.fingerprint()
    with StreamLoader(source, 2, drop_last=False, memory_budget="64MB", threads=1) as loader:
        next(iter(loader))


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def sweep(path, answer, each):
    """Use every damaged file in turn, in a process of its own; say what went wrong."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    file = next(f for f in files_of(path) if path.suffix != ".zarr" or f.name == "zarr.json")
    content = file.read_bytes()
    with open("/proc/self/statm") as memory:
        used = int(memory.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES,) * 2)
    before = peak_mb()
    for number, changed in enumerate(damaged(path.name, content, each)):
        file.write_bytes(changed)
        signal.alarm(MOST_SECONDS)
        os.write(answer, f"{number}\n".encode())
        try:
            use(path)
            said = ""
        except PenstockError as error:
            said = repr(error) if "\n" in str(error) or len(str(error)) > 700 else ""
        except Exception as error:  # noqa: BLE001 - the test is about these
            said = repr(error)
        if peak_mb() - before > MOST_GROWN_MB and path.name != TRUSTING:
            said, before = f"{peak_mb() - before} MB more memory", peak_mb()
        os.write(answer, f"wrong: {number}, {said}\n".encode() if said else b"")
    os.write(answer, b"end\n")


@pytest.mark.parametrize("name", [n for n in KINDS if n != "x.bin"])
@pytest.mark.parametrize(
    "each", [1, pytest.param(len(HUGE), marks=pytest.mark.proof)], ids=["one by one", "all"]
)
def test_a_header_that_promises_too_much_is_bounded(name, each, tmp_path, monkeypatch):
    """Every number is written, at every place one of them; as proof all of them."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = tmp_path / name
    KINDS[name](path)
    use(path)  # libraries are imported here
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sweep(path, send, each)
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as answers:
        lines = answers.read().decode().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [line for line in lines if line.startswith("wrong")] == []
    assert lines[-1] == "end" and code == 0  # else this is the last case: a crash, or a hang
