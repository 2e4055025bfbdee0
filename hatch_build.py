"""Compiles the one file of C, where there is a compiler; without it numpy does the same, slower.

A wheel with the compiled file is tagged by the oldest C library it runs with (``manylinux_2_17``
and so on), which package indexes accept and installers check. One whose compiled file needs
anything but that library gets the machine's own tag: to be installed here, not to be published.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/penstock/native.c"
LIBRARY = "src/penstock/libnative.so"
OLDEST = (2, 17)  # of the C library, that any interpreter of today runs with


class Compiling(BuildHookInterface):
    """Puts the compiled file next to its source, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is built, an editable one too."""
        library = Path(self.root, LIBRARY)
        library.unlink(missing_ok=True)
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return
        compiler = shlex.split(os.environ.get("CC", "cc"))
        command = [*compiler, "-O2", "-fPIC", "-shared", Path(self.root, SOURCE), "-o", library]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"not compiled, streams will be slower: {error}")
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library.read_bytes())}"


def platform_tag(library: bytes) -> str:
    """The tag of a wheel with this compiled file, by the names it holds of what it needs."""
    needed = set(re.findall(rb"\0(lib[\w.+-]+\.so\.[\d.]+)\0", library))
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)
    if needed - {b"libc.so.6"} or b"musl" in library:
        return sysconfig.get_platform().replace("-", "_")
    major, minor = max([OLDEST, *((int(major), int(minor)) for major, minor in versions)])
    return f"manylinux_{major}_{minor}_x86_64"
