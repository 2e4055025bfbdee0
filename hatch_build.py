"""Compiles the one file of C, where there is a compiler; without it numpy does the same, slower."""

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/penstock/streaming/past_cache.c"
LIBRARY = "src/penstock/streaming/libpast_cache.so"


class Compiling(BuildHookInterface):
    """Puts the compiled file beside its source, and into the wheel."""

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
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_')}"
