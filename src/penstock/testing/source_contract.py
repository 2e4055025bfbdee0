"""Tests that every source must pass, and a source that records what is read."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.sources import open_source
from penstock.sources.contract import Arrays, Field, MappedSource, Source, seams_of

Expected = Mapping[str, npt.NDArray[Any]]
RANGES = 40


class SourceContract:
    """Tests for pytest: subclass it, and return your source and the data it should contain.

    >>> from penstock.sources import MemorySource
    >>> class TestMine(SourceContract):
    ...     def make_source(self):
    ...         return MemorySource(np.arange(100))
    ...     def expected(self):
    ...         return {"": np.arange(100)}
    >>> TestMine().test_reads_any_range()
    """

    def make_source(self) -> Source:
        """Return a new source over the same data, each time it is called."""
        raise NotImplementedError

    def expected(self) -> Expected:
        """Return all samples of each field, as the source should return them."""
        raise NotImplementedError

    def test_is_a_source_of_the_expected_length(self) -> None:
        """``len`` and the protocol."""
        source = self.make_source()
        assert isinstance(source, Source)
        assert len(source) == self._length()
        assert source.block_samples >= 1

    def test_fields_have_the_expected_shapes_and_dtypes(self) -> None:
        """``fields`` describes what ``read`` returns."""
        fields = {name: (f.shape, f.dtype) for name, f in self.make_source().fields.items()}
        wanted = {name: (a.shape[1:], a.dtype) for name, a in self.expected().items()}
        assert fields == wanted

    def test_reads_any_range(self) -> None:
        """Empty, whole, single samples, across block borders, and random ones."""
        source, expected = self.make_source(), self.expected()
        for start, stop in self._ranges(source):
            out = _buffers(expected, stop - start)
            source.read(start, stop, out)
            _assert_equal(out, {n: a[start:stop] for n, a in expected.items()}, (start, stop))

    def test_reads_only_the_fields_asked_for(self) -> None:
        """``out`` may name some of the fields."""
        source, expected = self.make_source(), self.expected()
        for name, array in expected.items():
            out = _buffers({name: array}, len(array))
            source.read(0, len(array), out)
            _assert_equal(out, {name: array}, "one field")

    def test_takes_any_samples(self) -> None:
        """In any order, with repetitions, and none at all."""
        source, expected = self.make_source(), self.expected()
        rng = np.random.default_rng(0)
        for count in (0, 1, 5, 64):
            if self._length() == 0 and count:
                continue
            indices = rng.integers(0, max(1, self._length()), count)
            out = _buffers(expected, count)
            source.take(indices, out)
            _assert_equal(out, {n: a[indices] for n, a in expected.items()}, indices)

    def test_views_equal_what_is_read(self) -> None:
        """A view has the same data as ``read``, and is read-only."""
        source, expected = self.make_source(), self.expected()
        if not isinstance(source, MappedSource):
            return
        for start, stop in self._ranges(source):
            seen = source.view(start, stop)
            if seen is not None:
                _assert_equal(seen, {n: a[start:stop] for n, a in expected.items()}, (start, stop))
                assert not any(array.flags.writeable for array in seen.values())

    def test_leaves_the_rest_of_larger_buffers_alone(self) -> None:
        """Only ``out[name][: count]`` is written, by ``read`` and by ``take``."""
        source, expected = self.make_source(), self.expected()
        for start, stop in self._ranges(source):
            for fill in (0, 255):
                out = _buffers(expected, stop - start + 7, fill)
                source.read(start, stop, out)
                _assert_untouched(out, stop - start, fill)
                source.take(np.arange(start, stop), out)
                _assert_untouched(out, stop - start, fill)

    def test_reads_into_strided_buffers(self) -> None:
        """A buffer need not be contiguous."""
        source, expected = self.make_source(), self.expected()
        wide = {n: np.zeros((len(a), 2, *a.shape[1:]), a.dtype) for n, a in expected.items()}
        source.read(0, self._length(), {n: a[:, 1] for n, a in wide.items()})
        _assert_equal({n: a[:, 1] for n, a in wide.items()}, expected, "strided")
        assert not any(a[:, 0].view(f"V{a.itemsize}").tobytes().strip(b"\0") for a in wide.values())

    def test_survives_pickling(self) -> None:
        """A copy made by pickle reads the same and is the same data."""
        source, expected = self.make_source(), self.expected()
        self._read_all(source)  # open files must not prevent it
        other = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
        _assert_equal(self._read_all(other), expected, "unpickled")
        assert other.fingerprint() == source.fingerprint()

    def test_fingerprint_is_the_same_for_the_same_data(self) -> None:
        """It does not depend on the instance, or on what was read before."""
        first, second = self.make_source(), self.make_source()
        before = first.fingerprint()
        self._read_all(first)
        assert before == first.fingerprint() == second.fingerprint()
        assert isinstance(before, str) and before

    def test_threads_read_at_once(self) -> None:
        """Several threads that share a source read the same as one."""
        source, expected = self.make_source(), self.expected()
        ranges = list(self._ranges(source)) * 2

        def read(span: tuple[int, int]) -> dict[str, npt.NDArray[Any]]:
            out = _buffers(expected, span[1] - span[0])
            source.read(*span, out)
            return out

        with ThreadPoolExecutor(4) as pool:
            for (start, stop), out in zip(ranges, pool.map(read, ranges), strict=True):
                _assert_equal(out, {n: a[start:stop] for n, a in expected.items()}, (start, stop))

    def test_refuses_what_is_out_of_range(self) -> None:
        """Ranges and indices outside raise a ``PlanError`` with the number of samples."""
        source, length = self.make_source(), self._length()
        out = _buffers(self.expected(), length + 3)
        calls = [
            lambda: source.read(0, length + 1, out),
            lambda: source.read(-1, 0, out),
            lambda: source.read(1, 0, out),
            lambda: source.take(np.array([length]), out),
            lambda: source.take(np.array([-1]), out),
        ]
        for call in calls:
            assert str(length) in _refusal(call)

    def test_refuses_buffers_that_do_not_fit(self) -> None:
        """Too few rows, another dtype and an unknown field are errors; nothing is cast."""
        source, expected = self.make_source(), self.expected()
        name, array = next(iter(expected.items()))
        if not self._length():
            return
        _refusal(lambda: source.read(0, self._length(), _buffers(expected, self._length() - 1)))
        wrong = np.dtype("i2" if array.dtype != np.dtype("i2") else "f8")
        other = {name: np.empty(array.shape, wrong)}
        _refusal(lambda: source.read(0, 1, other))
        _refusal(lambda: source.read(0, 1, {"no such field": array.copy()}))

    def _length(self) -> int:
        return len(next(iter(self.expected().values())))

    def _read_all(self, source: Source) -> dict[str, npt.NDArray[Any]]:
        out = _buffers(self.expected(), self._length())
        source.read(0, self._length(), out)
        return out

    def _ranges(self, source: Source) -> Iterator[tuple[int, int]]:
        length, block = self._length(), source.block_samples
        yield from [(0, 0), (length, length), (0, length)]
        if length:
            yield from [(0, 1), (length - 1, length), (0, min(block, length))]
        for border in range(block, length, max(block, length // 8 // block * block)):
            yield (border - 1, min(length, border + 1))
            yield (border, min(length, border + block))
        rng = np.random.default_rng(1)
        for pair in rng.integers(0, length + 1, (RANGES, 2)).tolist():
            yield (min(pair), max(pair))


class WatchedSource:
    """A wrapper of a source that records every range read, and calls a function before each read.

    The function may count, wait for an event, or raise an exception, to simulate slow, hanging or
    broken storage.

    Args:
        source: What `open_source` accepts.
        before_read: Called with start and stop before each read.
        block_samples: Block size to report instead of the source's.

    >>> source = WatchedSource(np.arange(10), block_samples=5)
    >>> source.read(0, 5, {"": np.empty(5, np.int64)})
    >>> source.reads
    [(0, 5)]
    """

    def __init__(
        self,
        source: Any,
        before_read: Callable[[int, int], object] = lambda start, stop: None,
        *,
        block_samples: int | None = None,
    ) -> None:
        self._source, self.before_read = open_source(source), before_read
        self._block = block_samples or self._source.block_samples
        self._lock = threading.Lock()
        self.reads: list[tuple[int, int]] = []

    @property
    def fields(self) -> Mapping[str, Field]:
        """Fields of the source."""
        return self._source.fields

    @property
    def block_samples(self) -> int:
        """Block size of the source, or the one passed in."""
        return self._block

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"WatchedSource({self._source!r})"

    @property
    def seams(self) -> list[int]:
        """Seams of the source."""
        return seams_of(self._source)

    def fingerprint(self) -> str:
        """Return the fingerprint of the source."""
        return self._source.fingerprint()

    def read(self, start: int, stop: int, out: Arrays) -> None:
        """Record the range, call ``before_read``, and read."""
        with self._lock:
            self.reads.append((start, stop))
        self.before_read(start, stop)
        self._source.read(start, stop, out)

    def take(self, indices: npt.NDArray[np.int64], out: Arrays) -> None:
        """Read those samples, without a record."""
        self._source.take(indices, out)


def _buffers(expected: Expected, samples: int, fill: int = 170) -> dict[str, npt.NDArray[Any]]:
    """Return buffers filled with a byte, so that a sample that is not written is detected."""
    out = {n: np.empty((samples, *a.shape[1:]), a.dtype) for n, a in expected.items()}
    for array in out.values():
        array.reshape(-1).view(np.uint8)[:] = fill
    return out


def _assert_equal(found: Mapping[str, npt.NDArray[Any]], wanted: Expected, where: object) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        # bit by bit: NaN equals itself, and -0.0 is not 0.0
        assert found[name].tobytes() == array.tobytes(), f"field {name!r} differs at {where}"


def _assert_untouched(out: Mapping[str, npt.NDArray[Any]], count: int, fill: int) -> None:
    for name, array in out.items():
        rest = array[count:].tobytes()
        assert rest == bytes([fill]) * len(rest), f"field {name!r} was written past its samples"


def _refusal(call: Any) -> str:
    try:
        call()
    except PlanError as error:
        return str(error)
    raise AssertionError("expected a PlanError, and nothing was raised")
