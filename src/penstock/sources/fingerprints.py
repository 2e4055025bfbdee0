"""Identity of data that survives copying: what it is and a few stored bytes, never where it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from penstock.sources.base import Field

SAMPLED_BLOCKS = 4  # per field: enough to notice regenerated data, cheap on object storage too


def sampled_blocks(blocks: int) -> list[int]:
    """The few blocks whose bytes stand for all: the first, the last, and evenly between.

    >>> sampled_blocks(100), sampled_blocks(2), sampled_blocks(0)
    ([0, 33, 66, 99], [0, 1], [])
    """
    if blocks <= SAMPLED_BLOCKS:
        return list(range(blocks))
    return [i * (blocks - 1) // (SAMPLED_BLOCKS - 1) for i in range(SAMPLED_BLOCKS)]


def digest(facts: object, parts: Iterable[bytes | npt.NDArray[np.uint8]]) -> str:
    """A hex digest of JSON-able ``facts`` and of byte strings, each with its length.

    >>> digest({"samples": 1}, [b"a", b"bc"]) == digest({"samples": 1}, [b"ab", b"c"])
    False
    """
    hashed = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for part in parts:
        size = part.nbytes if isinstance(part, np.ndarray) else len(part)
        hashed.update(size.to_bytes(8, "little"))
        hashed.update(part.data if isinstance(part, np.ndarray) else part)
    return hashed.hexdigest()[:32]


def field_facts(fields: Mapping[str, Field]) -> dict[str, list[object]]:
    """Shape and dtype of each field in plain JSON values.

    >>> field_facts({"x": Field((3,), np.dtype("f4"))})
    {'x': [[3], '<f4']}
    """
    return {name: [list(field.shape), field.dtype.str] for name, field in fields.items()}


def row_bytes(rows: npt.NDArray[np.generic]) -> bytes:
    """The bytes of some rows in C order."""
    return np.ascontiguousarray(rows).tobytes()
