"""64-bit keys, the only source of randomness in the library, and permutations computed from them.

A key is a pure function of a seed and a path of integers and names. A change of any key returned
here changes every order and augmentation, and therefore needs a new state format.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from penstock.arguments import whole_number

Indices: TypeAlias = npt.NDArray[np.int64]
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


# -- permutations

LARGEST: Final = 1 << 62
ROUNDS: Final = 8
SMALLEST_DOMAIN: Final = 1 << 6  # smaller ones are biased at any number of rounds
MANY: Final = 2048  # from this many indices on, tables of a round's values are faster
STRIDE: Final = 1 << 14  # elements per pass: temporaries stay in the first two cache levels
FORWARD: Final = range(ROUNDS)
BACKWARD: Final = range(ROUNDS - 1, -1, -1)

_C1, _C2, _29, _32 = (np.array(c, np.uint64) for c in (*MULTIPLIERS, 29, 32))  # 0-d: cheap operands


class Permutation:
    """A keyed bijection of ``range(length)``, computed one index at a time.

    Memory is constant: a trillion samples need as little as ten. The algorithm is an alternating
    Feistel network over the bits of ``length - 1``, in halves of unequal width so that its domain
    is less than twice the length, with cycle walking back into the range.

    Args:
        length: Size of the range, from 1 to 2**62.
        key: Key of the permutation. An array of keys is one permutation per index; the object then
            takes arrays of that length.

    >>> order = Permutation(10, key=7)
    >>> sorted(order)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> order(np.arange(4)), order[3], order.inverse(1)
    (array([6, 9, 7, 1]), 1, 3)
    """

    __slots__ = ("_high", "_keys", "_low", "length")

    def __init__(self, length: int, key: int | Keys) -> None:
        self.length = whole_number("length", length, minimum=1, maximum=LARGEST)
        bits = max(SMALLEST_DOMAIN.bit_length() - 1, (self.length - 1).bit_length())
        self._low = bits // 2
        self._high = bits - self._low
        steps = [GAMMA * (i + 1) & MASK for i in FORWARD]
        self._keys: Sequence[int] | Sequence[Keys]
        if isinstance(key, np.ndarray):
            self._keys = [mix_array(key.astype(np.uint64) + np.uint64(s)) for s in steps]
        else:
            key = whole_number("key", key, maximum=MASK)
            self._keys = [mix(key + s & MASK) for s in steps]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self._walk_one(index, FORWARD)

    @overload
    def __call__(self, index: int) -> int: ...
    @overload
    def __call__(self, index: Indices) -> Indices: ...
    def __call__(self, index: int | Indices) -> int | Indices:
        """Return the values at these indices."""
        return self._walk(index, FORWARD)

    @overload
    def inverse(self, value: int) -> int: ...
    @overload
    def inverse(self, value: Indices) -> Indices: ...
    def inverse(self, value: int | Indices) -> int | Indices:
        """Return the indices of these values: the rounds backwards, along the same cycle."""
        return self._walk(value, BACKWARD)

    # -- one index, in plain integers

    def _walk_one(self, index: int, rounds: range) -> int:
        if not 0 <= index < self.length:
            raise IndexError(f"index {index!r} is not in range({self.length})")
        x = self._scramble_one(int(index), rounds)
        while x >= self.length:
            x = self._scramble_one(x, rounds)
        return x

    def _scramble_one(self, x: int, rounds: range) -> int:
        low_mask, high_mask = (1 << self._low) - 1, (1 << self._high) - 1
        low, high = x & low_mask, x >> self._low
        for i in rounds:
            f = ((high if i % 2 else low) ^ int(self._keys[i])) * MULTIPLIERS[0] & MASK
            f = (f ^ (f >> 29)) * MULTIPLIERS[1] & MASK
            if i % 2:
                low ^= f >> 32 & low_mask
            else:
                high ^= f >> 32 & high_mask
        return high << self._low | low

    # -- many indices, in place, a stride at a time

    def _walk(self, index: int | Indices, rounds: range) -> int | Indices:
        if not isinstance(index, np.ndarray):
            return self._walk_one(index, rounds)
        x = index.astype(np.uint64).ravel()
        if x.size and x.max() >= self.length:  # a negative index wrapped around to a large one
            raise IndexError(f"index out of range({self.length})")
        keys = [k if isinstance(k, np.ndarray) else np.array(k, np.uint64) for k in self._keys]
        if not keys[0].ndim and (self.length < SMALLEST_DOMAIN or self._is_dense(x.size)):
            return self._look_up(x, keys, rounds).reshape(index.shape)
        self._scramble(x, keys, rounds)
        length = np.uint64(self.length)
        outside = np.flatnonzero(x >= length)
        y, keys = x[outside], [k[outside] if k.ndim else k for k in keys]
        while outside.size:  # all of them together: a scramble of a few costs almost as much
            self._scramble(y, keys, rounds)
            x[outside] = y
            still = y >= length
            outside, y = outside[still], y[still]
            keys = [k[still] if k.ndim else k for k in keys]
        return x.view(np.int64).reshape(index.shape)

    def _is_dense(self, indices: int) -> bool:
        return 2 * indices >= (domain := 1 << self._low + self._high) and domain <= STRIDE

    def _look_up(self, x: Keys, keys: list[Keys], rounds: range) -> Indices:
        """Return the values from a table of the domain: walking it costs no further pass."""
        table = np.arange(1 << self._low + self._high, dtype=np.uint64)
        self._scramble(table, keys, rounds)
        return _walked(table.view(np.int64), x.view(np.int64), self.length)

    def _scramble(self, x: Keys, keys: list[Keys], rounds: range) -> None:
        if self._high <= 8 and x.size >= MANY and not keys[0].ndim:
            self._scramble_bytes(x, keys, rounds)
            return
        for begin in range(0, x.size, STRIDE):
            part = slice(begin, begin + STRIDE)
            self._scramble_stride(x[part], [k[part] if k.ndim else k for k in keys], rounds)

    def _scramble_stride(self, x: Keys, keys: list[Keys], rounds: range) -> None:
        shift = np.uint64(self._low)
        low_mask = np.array((1 << self._low) - 1, np.uint64)
        high_mask = np.array((1 << self._high) - 1, np.uint64)
        low, high = x & low_mask, x >> shift
        f, t = np.empty_like(x), np.empty_like(x)
        for i in rounds:
            source, target, mask = (high, low, low_mask) if i % 2 else (low, high, high_mask)
            np.bitwise_xor(source, keys[i], out=f)
            _mix_half(f, t)
            np.bitwise_and(f, mask, out=f)
            np.bitwise_xor(target, f, out=target)
        np.left_shift(high, shift, out=high)
        np.bitwise_or(high, low, out=x)

    def _scramble_bytes(self, x: Keys, keys: list[Keys], rounds: range) -> None:
        """Scramble halves of at most 8 bits: each round is a table of 256 values."""
        f = np.arange(256, dtype=np.uint64) ^ np.array(keys)[:, None]
        _mix_half(f, np.empty_like(f))
        f[0::2] &= np.uint64((1 << self._high) - 1)
        f[1::2] &= np.uint64((1 << self._low) - 1)
        tables = [table.tobytes() for table in f.astype(np.uint8)]
        low = (x & np.uint64((1 << self._low) - 1)).astype(np.uint8)
        high = (x >> np.uint64(self._low)).astype(np.uint8)
        for i in rounds:
            source, target = (high, low) if i % 2 else (low, high)
            change = bytearray(source).translate(tables[i])
            np.bitwise_xor(target, np.frombuffer(change, np.uint8), out=target)
        np.copyto(x, high)
        np.left_shift(x, np.uint64(self._low), out=x)
        np.bitwise_or(x, low, out=x)


def _mix_half(f: Keys, spare: Keys) -> None:
    """Apply the round function to halves combined with their key, in place."""
    np.multiply(f, _C1, out=f)
    np.right_shift(f, _29, out=spare)
    np.bitwise_xor(f, spare, out=f)
    np.multiply(f, _C2, out=f)
    np.right_shift(f, _32, out=f)


@lru_cache(maxsize=1024)
def permutation(length: int, key: int) -> Permutation:
    """Return a cached permutation: orders request the same few repeatedly."""
    return Permutation(length, key)


def _walked(table: Indices, x: Indices, length: int, base: int | Indices = 0) -> Indices:
    """Return the values at ``x`` in a table of a domain, walked back into ``range(length)``."""
    base = np.broadcast_to(base, x.shape)
    found: Indices = table[base + x]
    outside = np.flatnonzero(found >= length)
    while outside.size:
        found[outside] = table[base[outside] + found[outside]]
        outside = outside[found[outside] >= length]
    return found


def all_values(length: int, keys: Keys) -> Indices:
    """Return all values of one permutation per key: an array of keys by ``length``.

    >>> all_values(3, np.array([5, 9], np.uint64)).tolist()
    [[2, 1, 0], [1, 0, 2]]
    """
    each = Permutation(length, keys)
    low, high, domain = each._low, each._high, 1 << each._low + each._high
    many = max(1, STRIDE // domain)  # temporaries stay in the cache
    if len(keys) > many:
        parts = range(0, len(keys), many)
        return np.concatenate([all_values(length, keys[i : i + many]) for i in parts])
    values, rows = np.arange(domain), np.arange(len(keys))
    lows, highs = (
        np.tile(half, (len(keys), 1)) for half in (values & (1 << low) - 1, values >> low)
    )
    halves, first = np.arange(1 << high, dtype=np.uint64), rows[:, None] << high
    at, change = np.empty_like(lows), np.empty_like(lows)
    for i in FORWARD:  # a round is a table, by key, of the few values that a half has
        f = halves ^ np.asarray(each._keys[i])[:, None]
        _mix_half(f, np.empty_like(f))
        f &= np.uint64((1 << (low if i % 2 else high)) - 1)
        source, target = (highs, lows) if i % 2 else (lows, highs)
        np.add(source, first, out=at)
        np.take(f.view(np.int64).ravel(), at, out=change, mode="clip")
        np.bitwise_xor(target, change, out=target)
    x, base = np.tile(values[:length], len(keys)), np.repeat(rows * domain, length)
    return _walked((highs << low | lows).ravel(), x, length, base).reshape(len(keys), length)
