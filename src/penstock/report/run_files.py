"""What `penstock train` writes for a report: one JSON file for each session and rank of a run.

The file is replaced every few seconds. Chunks that end in between are lines of a second file,
which is removed when the first one has them: a run that is killed has every chunk that has ended.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import numpy
import torch

from penstock.atomic_files import append_entry, replace_text
from penstock.errors import ConfigError, StateError
from penstock.metrics import STAGES, Snapshot, merge
from penstock.metrics.snapshot import COLUMNS

FOLDER: Final = "metrics"
FORMAT: Final = 1
LATER: Final = ".chunks"  # the suffix of the file with the chunks since the last write
MAX_CHUNKS: Final = 1000  # more are thinned out: every second one is dropped
MAX_BYTES: Final = 64_000_000  # of a file: ours have less than one megabyte
NAME: Final = re.compile(r"session-(\d{1,6})-rank-(\d{1,6})\.json")


@dataclass(frozen=True, slots=True)
class Session:
    """A part of a run on one rank, from its start or a resume to its end so far.

    Args:
        number: Number of the session, counted from 0.
        state: ``"running"``, ``"done"``, ``"stopped"``, or the name of an error.
        snapshot: The figures of the training loader.
        chunks: Step, position, loss and scores at the end of each chunk.
        coverage: What was seen; see `coverage_map`.
        environment: Versions and the machine.
        written: When it was written, in seconds since 1970.
    """

    number: int
    state: str
    snapshot: Snapshot
    chunks: list[dict[str, Any]] = field(default_factory=list)
    coverage: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0

    def write(self, run_dir: Path) -> None:
        """Write the file of this session, in one atomic step.

        Args:
            run_dir: The run's directory.
        """
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain |= {"format": FORMAT, "snapshot": self.snapshot.to_dict(), "written": time.time()}
        plain["chunks"] = thinned(self.chunks)
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / file_name(self.number, self.snapshot.rank)
        replace_text(path, json.dumps(rounded(plain), separators=(",", ":")))
        path.with_suffix(LATER).unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the session in a file.

        Args:
            path: The file.

        Raises:
            StateError: It is not one that `write` wrote.
        """
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
            plain = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
            if plain["format"] != FORMAT:
                raise ValueError(f"its format is {plain['format']!r}, not {FORMAT}")
            check(plain, SHAPE, "session")
            for name, shape in (("workers", (NUMBER, NUMBER)), ("inside", NUMBER)):
                check(list(plain["snapshot"][name].values()), [shape], name)
            if plain["coverage"] is not None:
                check(plain["coverage"], COVERAGE, "coverage")
            known = {name: plain[name] for name in cls.__dataclass_fields__}
            known["chunks"] += later_chunks(path.with_suffix(LATER), known["chunks"])
            return cls(**{**known, "snapshot": Snapshot.of_dict(plain["snapshot"])})
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise StateError(
                f"{str(path)!r} is not a file of `penstock train` ({error}): move it away"
            ) from error


NUMBER: Final = int | float
COVERAGE: Final = {
    "share": NUMBER,
    "size": int,
    "epochs": [{"epoch": int, "seen": [(int, int)], "skipped": [(int, int)]}],
    "members": [dict.fromkeys(("samples", "seen", "asked"), NUMBER)],
}
SNAPSHOT: Final = {
    **dict.fromkeys(("rank", "world", "samples"), int),
    **dict.fromkeys(("started", "seconds", "first", "probed", "width"), NUMBER),
    **dict.fromkeys(("stages", "inside", "workers", "settings"), dict),
    "slots": [(NUMBER,) * len(COLUMNS)],
    "stalls": [dict.fromkeys(("seconds", "at", "rank", "epoch", "position"), NUMBER)],
    "spans": [(frozenset(STAGES), NUMBER, NUMBER, str, int)],
    "ranks": [dict.fromkeys(("rank", "wait", "step", "first"), NUMBER)],
}
SHAPE: Final = {
    "number": int,
    "state": str,
    "snapshot": SNAPSHOT,
    "chunks": [dict],
    "environment": dict,
    "written": NUMBER,
}


def check(value: Any, shape: Any, name: str) -> None:
    """Raise a ValueError if a value of JSON does not have a shape.

    Args:
        value: The value.
        shape: A type, a set of values, a dictionary of shapes, a list of one shape for any number
            of items, or a tuple with the shape of each item.
        name: What the value is.
    """
    inside: list[tuple[Any, Any, str]] = []
    if isinstance(shape, dict):
        fits = isinstance(value, dict)
        inside = [(value[key], shape[key], f"{name}, {key}") for key in shape] if fits else []
    elif isinstance(shape, list):
        fits = isinstance(value, list)
        inside = [(item, shape[0], name) for item in value] if fits else []
    elif isinstance(shape, tuple):
        fits = isinstance(value, list) and len(value) == len(shape)
        inside = [(*pair, name) for pair in zip(value, shape, strict=True)] if fits else []
    elif isinstance(shape, frozenset):
        fits = value in shape
    else:
        fits = isinstance(value, shape) and not isinstance(value, bool)
    if not fits:
        raise ValueError(f"{name}: unexpected value {str(value)[:40]!r}")
    for each in inside:
        check(*each)


def refuse(constant: str) -> None:
    """Refuse NaN and infinities, which `Session.write` does not write."""
    raise ValueError(f"it has the value {constant}")


def file_name(number: int, rank: int) -> str:
    """Return the name of the file of a session on a rank."""
    return f"session-{number}-rank-{rank}.json"


def append_chunk(run_dir: Path, number: int, rank: int, chunk: Mapping[str, Any]) -> None:
    """Note a chunk that has ended, in one write: it is there if the process is killed now.

    Args:
        run_dir: The run's directory, with the file of the session.
        number: Of the session.
        rank: The rank.
        chunk: As in ``Session.chunks``.
    """
    append_entry((run_dir / FOLDER / file_name(number, rank)).with_suffix(LATER), rounded(chunk))


def later_chunks(path: Path, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the chunks of `append_chunk` that ended after those that a session has."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()  # a kill may have cut the last line
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    check(found, [{"chunk": int}], "chunks")
    last = chunks[-1]["chunk"] if chunks else -1
    return [chunk for chunk in found if chunk["chunk"] > last]


def thinned(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `MAX_CHUNKS` of the chunks, the last included."""
    while len(chunks) > MAX_CHUNKS:
        chunks = chunks[1 - len(chunks) % 2 :: 2]
    return chunks


def rounded(value: Any) -> Any:
    """Return plain values, to six digits or microseconds; None for NaN and infinities."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < 1 else round(value, 6)
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def next_session(run_dir: Path, rank: int) -> int:
    """Return the number of the session that begins now on a rank.

    Args:
        run_dir: The run's directory.
        rank: The rank.
    """
    found = (NAME.fullmatch(path.name) for path in (run_dir / FOLDER).glob("session-*.json"))
    return max((int(name[1]) + 1 for name in found if name and int(name[2]) == rank), default=0)


def environment() -> dict[str, Any]:
    """Return versions and the machine; no names of users or hosts, and no variables."""
    found = {
        "penstock": version("penstock"),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{sys.platform} {os.uname().machine}",
        "cores": getattr(os, "process_cpu_count", os.cpu_count)(),
    }
    if torch.accelerator.is_available():
        found["accelerator"] = str(torch.accelerator.current_accelerator())
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that is known about a run.

    Args:
        root: Its directory.
        sessions: By session and rank.
        config: The configuration, as text.
    """

    root: Path
    sessions: list[Session]
    config: str

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """Return the run in a directory: also one that is in progress, or has crashed.

        Args:
            run_dir: The directory.

        Raises:
            ConfigError: There is no run, or it has no measurements.
        """
        if not run_dir.is_dir():
            raise ConfigError(f"{str(run_dir)!r} is not a directory: pass the run_dir of a run")
        paths = [path for path in (run_dir / FOLDER).glob("*.json") if NAME.fullmatch(path.name)]
        if not paths:
            raise ConfigError(
                f"{str(run_dir)!r} has no measurements in {FOLDER}/: pass the run_dir of a run of "
                "`penstock train` that has begun"
            )
        sessions = [Session.read(path) for path in paths]
        sessions.sort(key=lambda session: (session.number, session.snapshot.rank))
        config = run_dir / "config.yaml"
        text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
        return cls(run_dir, sessions, without_credentials(text))

    @property
    def last(self) -> Session:
        """The last session, of its first rank."""
        last = self.sessions[-1].number
        return next(session for session in self.sessions if session.number == last)

    def snapshot(self) -> Snapshot:
        """Return the figures of all ranks and sessions, one after the other without the pauses."""
        begin, placed = 0.0, []
        for number in sorted({session.number for session in self.sessions}):
            ranks = [each.snapshot for each in self.sessions if each.number == number]
            first = min(each.started for each in ranks)
            placed += [replace(each, started=begin + each.started - first) for each in ranks]
            begin += max(each.started - first + each.seconds for each in ranks)
        return merge(placed)


NAMES: Final = (
    r"[\w.\"'-]*(?:passw|secret|credential|api_?key|access_?key|account_?key|private_?key|signature"
    r"|connection_string|token(?!iz|s)|(?:auth|access|api|bearer|refresh)_?tokens)[\w\"'-]*\s*:"
)
SECRET: Final = re.compile(rf"([\s-]*{NAMES})(?:\s.*)?", re.IGNORECASE)
INLINE: Final = re.compile(rf"([{{,]\s*{NAMES}\s*)(?:\"[^\"]*\"|'[^']*'|[^,}}]+)", re.IGNORECASE)
USER: Final = re.compile(r"(\w://)[^/\s]+@")
QUERY: Final = re.compile(
    r"([?&][\w.-]*(?:sig|signature|token|key|credential|secret)=)[^&\s\"']+", re.IGNORECASE
)


def without_credentials(text: str) -> str:
    """Return a configuration with passwords, tokens and keys replaced by stars.

    >>> print(without_credentials("secret_key: abc"))
    secret_key: '***'
    >>> print(without_credentials("url: s3://me:pw@host/x?token=1"))
    url: s3://***@host/x?token=***
    """
    kept, secret = [], -1  # the indentation of a name whose value may continue in the next lines
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        continued = indent > secret or (indent == secret and line[indent:].startswith("- "))
        if secret >= 0 and line.strip() and continued:
            continue
        found = SECRET.fullmatch(line)
        secret = indent if found else -1
        kept.append(f"{found[1]} '***'" if found else INLINE.sub(r"\1'***'", line))
    return QUERY.sub(r"\1***", USER.sub(r"\1***@", "\n".join(kept)))
