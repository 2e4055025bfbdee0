"""The local cache of remote blocks."""

import os
import subprocess
import sys

import numpy as np
import pytest

from penstock.errors import SourceError
from penstock.sources.cache import BlockCache


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_what_was_put_is_there_for_others(tmp_path):
    BlockCache(tmp_path, 10_000).put("a", b"hello")
    assert BlockCache(tmp_path, 10_000).get("a").tobytes() == b"hello"
    assert BlockCache(tmp_path, 10_000).get("b") is None


def test_the_size_is_bounded_and_what_was_used_longest_ago_goes_first(tmp_path):
    cache = BlockCache(tmp_path, 10_000)
    for number in range(100):
        cache.put(str(number), bytes(500))
        os.utime(cache._file(str(number)), (number, number))
        assert size_of(tmp_path) <= 10_000 + 10_000 // 16 + 512
    assert cache.get("0") is None
    assert cache.get("99") is not None


def test_a_block_that_is_used_stays(tmp_path):
    cache = BlockCache(tmp_path, 4_000)
    cache.put("used", bytes(500))
    for number in range(50):
        assert cache.get("used") is not None
        cache.put(str(number), bytes(500))
        os.utime(cache._file(str(number)), (number, number))


@pytest.mark.parametrize("damage", [b"", b"short", bytes(517), b"\1" * 512])
def test_damaged_files_are_dropped(tmp_path, damage):
    cache = BlockCache(tmp_path, 10_000)
    cache.put("a", np.random.default_rng(0).bytes(500))
    cache._file("a").write_bytes(damage)
    assert cache.get("a") is None
    assert not cache._file("a").exists()


FILL = """
import os, sys
import numpy as np
from penstock.sources.cache import BlockCache
cache = BlockCache(sys.argv[1], 50_000)
rng = np.random.default_rng(os.getpid())
for _ in range(400):
    name = int(rng.integers(0, 200))
    found = cache.get(str(name))
    assert found is None or found.tobytes() == bytes([name]) * 600
    cache.put(str(name), bytes([name]) * 600)
"""


def test_several_processes_share_it(tmp_path):
    runs = [subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path)]) for _ in range(3)]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    assert size_of(tmp_path) <= 50_000 * (1 + 3 / 16)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_full_disk_only_means_that_nothing_is_kept(tmp_path, monkeypatch):
    cache = BlockCache(tmp_path, 10_000)

    def full(*_args, **_options):
        raise OSError(28, "no space left")

    monkeypatch.setattr("penstock.sources.cache.replacing", full)
    cache.put("a", b"hello")
    assert cache.get("a") is None


def test_impossible_caches_are_refused(tmp_path):
    with pytest.raises(SourceError, match="at least 1 byte"):
        BlockCache(tmp_path, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot create"):
        BlockCache(tmp_path / "file" / "cache", 10)
