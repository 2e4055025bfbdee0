"""Type checkers accept loaders where torch's are accepted, and know the type of a batch."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_typed_program_that_uses_loaders_is_accepted(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    program = Path(__file__).with_name("typed_program.py")
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    cache = os.environ.get("MYPY_CACHE_DIR", str(ROOT / ".mypy_cache"))
    found, errors, code = api.run(
        ["--strict", "--cache-dir", cache, "--follow-imports=silent", str(program)]
    )
    assert code == 0, found + errors
