"""Type checkers understand programs that use Penstock: accepted, and refused where they are wrong.

One run of mypy checks all programs, with the cache of ``make check``.
"""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TYPED_PROGRAM = Path(__file__).with_name("loaders") / "typed_program.py"
PROGRAM = """
from typing import Any

import numpy as np
import torch
from penstock import BlockOrder, ChunkedDataLoader, ChunkedSampler, StateError, sample_generator


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8, generator=sample_generator(index, "noise"))


def train(saved: dict[str, Any] | None) -> dict[str, Any]:
    order = BlockOrder(1000, seed=7, block=10, window=4)
    with ChunkedDataLoader(Noisy(), 32, chunk_size=10, order=order, num_workers=2) as loader:
        if saved is not None:
            loader.load_state_dict(saved)
        total: int = len(loader) + loader.remaining
        for batch in loader:
            print(batch, total)
        loader.set_epoch(3)
        indices: np.ndarray[Any, np.dtype[np.int64]] = loader.samples_at(3)
        print(indices, loader.describe(), ChunkedSampler(1000, 30).total_chunks + 1)
        return loader.state_dict()


try:
    train(None)
except StateError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory) -> list[str]:
    """What mypy finds in all programs: in a process of its own, which it fills with objects."""
    folder = tmp_path_factory.mktemp("programs")
    right, wrong = folder / "right_program.py", folder / "wrong_program.py"
    right.write_text(PROGRAM)
    wrong.write_text(PROGRAM.replace("chunk_size=10, order", "chunk_size=1.5, order"))
    cache = os.environ.get("MYPY_CACHE_DIR", str(ROOT / ".mypy_cache"))
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--strict", "--cache-dir", cache]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, right, wrong, TYPED_PROGRAM],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def of(program: str, errors: list[str]) -> list[str]:
    return [line for line in errors if f"{program}.py" in line]


def test_the_package_says_that_it_is_typed():
    assert files("penstock").joinpath("py.typed").is_file()


def test_a_users_program_passes_mypy_strict(errors):
    assert not of("right_program", errors)


def test_a_wrong_argument_is_found(errors):
    (line,) = of("wrong_program", errors)
    assert "chunk_size" in line


def test_a_program_that_uses_loaders_where_torchs_are_accepted_passes(errors):
    assert not of("typed_program", errors)
