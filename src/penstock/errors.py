"""The exceptions of Penstock. Each is also the builtin exception that a caller expects.

    PenstockError
    ├── PlanError(ValueError)            invalid sizes, batches, ranks or chunks
    ├── StateError(ValueError)           a saved state that does not fit this loader
    ├── ConfigError(ValueError)          an invalid configuration
    ├── SourceError(OSError)             storage that cannot be read
    ├── BatchError(AssertionError)       a batch that fails a check
    ├── WorkerError(RuntimeError)        a worker process or reader thread that died
    │   └── RankError                    another rank that failed (in penstock.distributed)
    ├── RunFailedError(RuntimeError)     training that failed after it had begun
    ├── MissingExtraError(ImportError)   an optional library that is not installed
    └── MissingNameError(AttributeError) the same, where a name is looked up as an attribute

A message says what was requested, what was found and what to do.
"""

from __future__ import annotations

MOST_CHARACTERS = 400  # of one line: torch lists hundreds of differences


class PenstockError(Exception):
    """Base class of the exceptions of Penstock."""


class PlanError(PenstockError, ValueError):
    """Invalid sizes, batches, ranks or chunks."""


class StateError(PenstockError, ValueError):
    """A saved state that does not fit this loader."""


class ConfigError(PenstockError, ValueError):
    """An invalid configuration."""


class SourceError(PenstockError, OSError):
    """Storage that cannot be read."""


class BatchError(PenstockError, AssertionError):
    """A batch that fails a check."""


class WorkerError(PenstockError, RuntimeError):
    """A worker process or reader thread that died."""


class RunFailedError(PenstockError, RuntimeError):
    """Training failed after it had begun; its run directory can be resumed."""


class MissingExtraError(PenstockError, ImportError):
    """An optional library that is not installed."""


class MissingNameError(PenstockError, AttributeError):
    """A name of Penstock that is looked up as an attribute and whose library is not installed.

    Not an ``ImportError``: ``hasattr`` and ``inspect`` expect this one. An import statement raises
    `MissingExtraError`.
    """


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message; the name of its class where it has none.

    >>> first_line(ValueError("shapes differ\nhere and there")), first_line(KeyError())
    ('shapes differ', 'KeyError')
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def one_line(error: BaseException) -> str:
    r"""Return the class and message of an error in one line, without a worker's traceback.

    >>> one_line(ValueError("shapes differ:\n  2 and 3")), one_line(KeyError())
    ('ValueError: shapes differ: 2 and 3', 'KeyError')
    """
    text = str(error).strip()
    if "\n" in text and "Traceback" in text:
        return text.splitlines()[-1].strip()  # torch puts a worker's error after its traceback
    line = " ".join(f"{type(error).__name__}: {text}".split()).rstrip(":")
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}..."
