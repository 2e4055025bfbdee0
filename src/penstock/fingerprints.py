"""Fingerprints: short strings that identify data by content, and not by where they are stored.

Fingerprints are part of saved states: if their computation changes, existing states refuse their
data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLED_BLOCKS = 4  # per field: enough to notice regenerated data, and cheap on object storage


def sampled_blocks(blocks: int, count: int = SAMPLED_BLOCKS) -> list[int]:
    """Return the blocks whose bytes stand for all: the first, the last, and some evenly between.

    Args:
        blocks: Number of blocks.
        count: How many to choose.

    >>> sampled_blocks(100), sampled_blocks(2), sampled_blocks(0)
    ([0, 33, 66, 99], [0, 1], [])
    """
    if blocks <= count:
        return list(range(blocks))
    return [i * (blocks - 1) // (count - 1) for i in range(count)]


def digest(facts: object, parts: Iterable[bytes | npt.NDArray[np.uint8]]) -> str:
    """Return a digest of 32 hex digits of facts and byte strings, each with its length.

    Args:
        facts: Values that JSON can represent: sizes, names, dtypes.
        parts: Bytes of the data.

    >>> digest({"samples": 1}, [b"a", b"bc"]) == digest({"samples": 1}, [b"ab", b"c"])
    False
    """
    hashed = sha256(json.dumps(facts, sort_keys=True).encode())
    for part in parts:
        size = part.nbytes if isinstance(part, np.ndarray) else len(part)
        hashed.update(size.to_bytes(8, "little"))
        hashed.update(part.data if isinstance(part, np.ndarray) else part)
    return hashed.hexdigest()[:32]


def short_digest(parts: Iterable[bytes]) -> str:
    """Return a digest of 16 hex digits of the concatenated parts.

    >>> short_digest([b"a", b"bc"]) == short_digest([b"abc"])
    True
    """
    hashed = blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def digest_of(array: npt.NDArray[Any]) -> str:
    """Return the digest that identifies an array in a state: `short_digest` of its bytes.

    >>> digest_of(np.arange(3)) == digest_of(np.arange(4))
    False
    """
    return short_digest([row_bytes(array)])


def field_facts(fields: Mapping[str, Any]) -> dict[str, list[object]]:
    """Return shape and dtype of each field as JSON values.

    >>> field_facts({"x": np.zeros(3, np.float32)})
    {'x': [[3], '<f4']}
    """
    return {name: [list(field.shape), field.dtype.str] for name, field in fields.items()}


def row_bytes(rows: npt.NDArray[np.generic]) -> bytes:
    """Return the bytes of some rows in C order."""
    return np.ascontiguousarray(rows).tobytes()
