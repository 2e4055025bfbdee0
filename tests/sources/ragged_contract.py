"""What every source with ragged fields must do, against the rows it should have."""

import pickle

import numpy as np

from penstock.sources import Source
from penstock.sources.ragged_rows import new_buffers, ragged_fields


def check(source, expected, *, seed=0):
    """``expected``: by field, an array, or for a ragged field a list of arrays."""
    assert isinstance(source, Source)
    assert {n for n, rows in expected.items() if isinstance(rows, list)} == set(
        ragged_fields(source, source.fields)
    )
    assert list(source.fields) == list(expected)
    length = len(next(iter(expected.values())))
    assert len(source) == length and 1 <= source.block_samples <= max(1, length)
    for name in ragged_fields(source, source.fields):
        lengths = [len(row) for row in expected[name]]
        assert np.array_equal(source.offsets(name), np.append(0, np.cumsum(lengths)))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    rng = np.random.default_rng(seed)
    pairs = np.sort(rng.integers(0, length + 1, (20, 2)), axis=1).tolist()
    for start, stop in [(0, length), (0, 0), *pairs]:
        for each in (source, copy):
            out = new_buffers(each, each.fields, start, stop)
            each.read(start, stop, out)
            assert_rows(out, expected, np.arange(start, stop))
    for count in (0, 1, 40):
        indices = rng.integers(0, max(1, length), count)
        out = {}
        for name, field in source.fields.items():
            rows = count
            if field.ragged:
                rows = sum(len(expected[name][i]) for i in indices)
            out[name] = np.empty((rows, *field.shape), field.dtype)
        source.take(indices, out)
        assert_rows(out, expected, indices)


def assert_rows(out, expected, indices):
    for name, rows in expected.items():
        if isinstance(rows, list):
            wanted = [np.asarray(rows[i]) for i in indices]
            wanted = np.concatenate(wanted) if wanted else np.empty((0, *out[name].shape[1:]))
        else:
            wanted = rows[indices]
        assert out[name].shape == wanted.shape, name
        assert np.array_equal(out[name], wanted), name


def text(rows):
    """Strings as rows of bytes."""
    return [np.frombuffer(row.encode(), np.uint8) for row in rows]
