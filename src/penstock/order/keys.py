"""64-bit keys: the only source of randomness in the library.

A key is a pure function of a seed and a path of integers and names. A change of any key returned
here changes every order and augmentation, and therefore needs a new state format.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number

Keys: TypeAlias = npt.NDArray[np.uint64]
Part: TypeAlias = int | str | npt.NDArray[np.integer]

MASK: Final = (1 << 64) - 1
GAMMA: Final = 0x9E3779B97F4A7C15
MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(x: int) -> int:
    """Return splitmix64's finaliser of ``x``: every input bit affects every output bit."""
    x = (x ^ (x >> 30)) * MULTIPLIERS[0] & MASK
    x = (x ^ (x >> 27)) * MULTIPLIERS[1] & MASK
    return x ^ (x >> 31)


def mix_array(x: Keys) -> Keys:
    """Return `mix` of every element; arrays of uint64 wrap around without a warning."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=256)
def _name(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _integer(part: int | np.integer | str) -> int:
    if isinstance(part, str):  # names separate purposes: "order", "augment", ...
        return _name(part)
    if type(part) is int and 0 <= part <= MASK:  # the fast case: keys are derived for every sample
        return part
    return whole_number("a part of a key (seed, path or purpose)", part, minimum=0, maximum=MASK)


@overload
def derive_key(seed: int, *path: int | str) -> int: ...
@overload
def derive_key(seed: int | Keys, *path: Part) -> int | Keys: ...
def derive_key(seed: int | Keys, *path: Part) -> int | Keys:
    """Return the 64-bit key of ``(seed, *path)``; an array of keys if a part is an array.

    Args:
        seed: A number in [0, 2**64), or an array of keys.
        path: What the key is for: names and numbers.

    >>> derive_key(42, "order", 0)
    14118440112556768869
    >>> derive_key(42, "augment", np.arange(3)).tolist() == [
    ...     derive_key(42, "augment", i) for i in range(3)
    ... ]
    True
    """
    key: int | Keys = MASK  # replaced by the first part
    for depth, part in enumerate((seed, *path)):
        step = GAMMA * (depth + 1) & MASK
        if isinstance(part, np.ndarray) and part.ndim:
            mixed: int | Keys = mix_array(part.astype(np.uint64) + np.uint64(step))
        else:
            mixed = mix(_integer(part) + step & MASK)  # type: ignore[arg-type]
        key = mixed if depth == 0 else _combine(key, mixed)
    return key


def _combine(key: int | Keys, part: int | Keys) -> int | Keys:
    if isinstance(key, int) and isinstance(part, int):
        return mix(key ^ part)
    return mix_array(np.bitwise_xor(np.asarray(key, np.uint64), np.asarray(part, np.uint64)))


def digest_of(array: npt.NDArray[Any]) -> str:
    """Return the name of an array in a state: 16 hex digits of its bytes.

    >>> digest_of(np.arange(3)) == digest_of(np.arange(4))
    False
    """
    return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
