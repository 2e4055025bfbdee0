"""Wheels are built with the compiled file where there is a compiler, and without it elsewhere."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="it is compiled for Linux on x86-64 alone",
)

ROOT = Path(__file__).parents[1]
LIBRARY = "penstock/streaming/libpast_cache.so"
SOURCE = "penstock/streaming/past_cache.c"


@pytest.fixture
def project(tmp_path):
    """What a wheel is built from, where nothing was compiled yet."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def built(project, compiler):
    """Name, files and what was said of a wheel built with this compiler."""
    said = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=project, env={**os.environ, "CC": compiler}, check=True, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip
    (wheel,) = (project / "dist").iterdir()
    with zipfile.ZipFile(wheel) as files:
        return wheel.name, files.namelist(), said.stdout + said.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="nothing to compile with")
def test_a_wheel_has_the_compiled_file(project):
    name, files, _ = built(project, "cc")
    assert name.endswith("-py3-none-linux_x86_64.whl")
    assert {LIBRARY, SOURCE, "penstock/py.typed"} <= set(files)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_it_is_pure_and_says_so(project, compiler):
    name, files, said = built(project, compiler)
    assert name.endswith("-py3-none-any.whl")
    assert LIBRARY not in files and SOURCE in files
    assert "not compiled, streams will be slower" in said
