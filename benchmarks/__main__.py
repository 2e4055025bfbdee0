"""Run benchmarks: ``python benchmarks [--tiny] [names ...]``; the exit code is 1 if one fails.

Each runs in a process of its own, as its memory and threads are part of what is measured; all run,
also after one that failed. With ``--tiny`` they run one after the other in this process: a smoke
test in seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from measure import run

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All benchmarks; the one that forks comes first, before others have started threads."""
    found = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
    return sorted(found, key=lambda name: name != "bench_ranks")


def tiny(name: str) -> int:
    """Run one in this process."""
    sys.argv = [name, "--tiny"]
    module = import_module(name)
    return run(module.main, module.__file__)


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="run small and short: a smoke test")
    parser.add_argument("names", nargs="*", metavar="name", help="of benchmarks; all by default")
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {names()}")
    failed = []
    for name in [each for each in names() if not options.names or each in options.names]:
        if options.tiny:
            code = tiny(name)
        else:
            code = subprocess.run([sys.executable, FOLDER / f"{name}.py"], check=False).returncode
        failed += [name] if code else []
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
