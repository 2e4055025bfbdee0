"""Wheels are built with the compiled file where there is a compiler, and without it elsewhere."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.steady,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64",
        reason="it is compiled for Linux on x86-64 alone",
    ),
]

ROOT = Path(__file__).parents[1]
LIBRARY = "penstock/libnative.so"
SOURCE = "penstock/native.c"


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
    assert {LIBRARY, SOURCE, "penstock/py.typed"} <= set(files)
    tag = re.fullmatch(r"penstock-.*-py3-none-manylinux_2_(\d+)_x86_64.whl", name)
    assert tag, f"a package index refuses {name}"
    (compiled,) = project.rglob("libnative.so")
    assert newest_glibc(compiled) <= int(tag[1])


def newest_glibc(library):
    """The newest 2.x of the C library that a file needs, as binutils read it."""
    told = {}
    for flag in ("-T", "-p"):
        told[flag] = subprocess.run(
            ["objdump", flag, library], check=True, capture_output=True, text=True
        ).stdout
    assert set(re.findall(r"NEEDED +(\S+)", told["-p"])) <= {"libc.so.6"}
    return max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", told["-T"] + "GLIBC_2.0"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="nothing to compile with")
@pytest.mark.parametrize(
    ("uses", "library", "tag"),
    [
        ("#include <stdlib.h>", "-lc", "manylinux_2_17_x86_64"),
        # gettid came with 2.30: an older C library cannot load it
        ("#define _GNU_SOURCE\n#include <unistd.h>\nint x(void){return gettid();}", "-lc",
         "manylinux_2_30_x86_64"),
        ("#include <math.h>\ndouble x(double a){return sin(a);}", "-lm", "linux_x86_64"),
    ],
)  # fmt: skip
def test_the_tag_is_what_the_compiled_file_needs(tmp_path, uses, library, tag):
    (tmp_path / "a.c").write_text(f"{uses}\n")
    command = ["cc", "-shared", "-fPIC", "a.c", "-o", "a.so", library]
    subprocess.run(command, cwd=tmp_path, check=True)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert build.platform_tag((tmp_path / "a.so").read_bytes()) == tag


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_it_is_pure_and_says_so(project, compiler):
    name, files, said = built(project, compiler)
    assert name.endswith("-py3-none-any.whl")
    assert LIBRARY not in files and SOURCE in files
    assert "not compiled, streams will be slower" in said
