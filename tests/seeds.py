"""The seed documents: user guides whose code must run on Penstock with only its imports changed.

The documents are not part of the repository, and no text of theirs is. Where they lie beside the
checkout (or where ``PENSTOCK_SEEDS`` points to), tests run their code blocks directly; elsewhere
these tests are skipped. Programs of our own with the same calls are tested everywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
DOCUMENTS = Path(os.environ.get("PENSTOCK_SEEDS", TESTS.parents[1] / "shared" / "seeds"))


def seed_document(number: str) -> str:
    """Return the text of a document ("000" to "004"); skip the test where it does not exist."""
    found = sorted(DOCUMENTS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"seed document {number} is not in {DOCUMENTS}")
    return found[0].read_text()


def seed_blocks(
    number: str, changes: Mapping[str, str] | None = None, *, language: str = "python"
) -> list[str]:
    """Return the code blocks of a document in their order, with substitutions made.

    Args:
        number: Of the document, "000" to "004".
        changes: Text to replace and its replacement, a module's name for instance. Every entry
            must occur in one of the blocks, so that no entry outlives its reason.
        language: Of the blocks: "python" or "yaml".
    """
    blocks = re.findall(rf"^```{language}\n(.*?)^```", seed_document(number), re.M | re.S)
    for before, after in (changes or {}).items():
        assert any(before in block for block in blocks), f"{before!r} is in no block of {number}"
        blocks = [block.replace(before, after) for block in blocks]
    return blocks


def run_block(block: str, names: dict[str, Any], title: str = "seed block") -> dict[str, Any]:
    """Run a block in the namespace ``names``, as if it was pasted there; return ``names``."""
    exec(compile(block, title, "exec"), names)
    return names


def passages(text: str, *, lines: int = 4) -> set[str]:
    """Return every run of ``lines`` consecutive lines of a text, to compare two texts by.

    Indentation, blank lines, very short lines and declarations of parameters (which are facts) do
    not count.

    >>> passages("x = 0\\n  a = f(1)\\n\\n  b = g(2)", lines=2)
    {'a = f(1)\\nb = g(2)'}
    """
    kept = [line.strip() for line in text.splitlines() if len(line.strip()) > 6]
    kept = [line for line in kept if not _PARAMETER.fullmatch(line)]
    return {"\n".join(kept[i : i + lines]) for i in range(len(kept) - lines + 1)}


_PARAMETER = re.compile(r"\w+: [^=]+( = [^=]+)?,")
