"""The tests on every version of Python that is installed here: `make matrix`.

    python -m tests.campaigns.interpreters 3.11 3.12 -- -m "not proof" -n 2

Needs nothing but Python: every version gets an environment of its own, .venv-3.x.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def find(version: str) -> str | None:
    """The command of an interpreter that runs and is this version."""
    shims = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), sys.executable]
    candidates += map(str, sorted(shims.glob(f"{version}*/bin/python{version}")))
    for name in filter(None, candidates):
        asked = subprocess.run(
            [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )  # a shim of pyenv refuses versions that are not switched on
        if asked.stdout.strip() == version:
            return name
    return None


# What tests/sources/test_ome_zarr.py needs, without further dependencies: the newest versions of
# them do not go with what is pinned.
OME_ZARR = [
    "ome-zarr==0.18.0", "dask==2026.8.0", "scikit-image==0.26.0", "s3fs==2026.9.0",
    "importlib_metadata<9", "Deprecated", "aiobotocore", "aioitertools", "botocore", "imageio",
    "jmespath", "lazy-loader", "locket", "partd", "rangehttpserver", "tifffile", "toolz", "wrapt",
    "zipp",
]  # fmt: skip


def install(python: str, version: str) -> Path:
    """The environment of a version, with the package and what tests need."""
    folder = ROOT / f".venv-{version}"
    ready, pip = folder / ".ready", [str(folder / "bin" / "pip"), "install", "-q"]
    pinned = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if not ready.exists() or ready.stat().st_mtime < pinned:
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        constrained = [*pip, "-c", "constraints.txt"]
        subprocess.run([*constrained, "torch", "numpy"], cwd=ROOT, check=True)
        subprocess.run([*constrained, "-e", ".[dev]"], cwd=ROOT, check=True)
        subprocess.run([*pip, "--no-deps", *OME_ZARR], cwd=ROOT, check=True)
        ready.touch()
    return folder


def main(arguments: list[str]) -> int:
    """Run the tests on every version that is found, and say what became of each."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    versions, options = arguments[:cut], arguments[cut + 1 :]
    results = {}
    for version in versions:
        python = find(version)
        if python is None:
            results[version] = "not found on this machine: not tested"
            continue
        try:
            folder = install(python, version)
        except subprocess.CalledProcessError as error:
            results[version] = f"could not be installed: {error}"
            continue
        done = subprocess.run(
            [str(folder / "bin" / "pytest"), "-q", *options], cwd=ROOT, check=False
        )
        results[version] = "passed" if done.returncode == 0 else f"FAILED ({done.returncode})"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    tested = [result for result in results.values() if "not found" not in result]
    return int(not tested or any(result != "passed" for result in tested))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
