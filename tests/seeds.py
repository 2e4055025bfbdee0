"""The documents whose code blocks are copied into the tests, and the digests of the copies.

The documents are not part of the repository. Where they lie beside it, the copies are compared
with them; elsewhere such a test is skipped, and the copies are only compared with the digests that
were recorded when they were compared last (tests/test_seeds.py).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENTS = TESTS.parents[1] / "shared" / "seeds"
DIGESTS = TESTS / "seed_digests.json"
FOLDERS = {
    "modules/chunking/seed_blocks": "000",
    "examples/seed_blocks": "001",
    "loaders/seed_002": "002",
    "training/seed_002": "002",
    "collate/seed_blocks": "003",
    "modules/seed_blocks": "003",
    "loaders/steering_seed_blocks": "004",
}


def seed_document(number: str) -> str:
    """The text of a document; skips the test where it is not there."""
    found = sorted(DOCUMENTS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"seed document {number} is not beside this checkout: nothing to compare with")
    return found[0].read_text()


def copies(folder: str) -> dict[str, str]:
    """The copied blocks of a folder: path -> text."""
    return {
        path.relative_to(TESTS).as_posix(): path.read_text()
        for path in sorted((TESTS / folder).iterdir())
    }


def digest(text: str) -> str:
    """What a block is recognised by."""
    return hashlib.sha256(text.encode()).hexdigest()
