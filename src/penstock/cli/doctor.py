"""`penstock doctor`: what is wrong with a dataset, and what to change."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, default_collate

from penstock.cli.output import print_result
from penstock.errors import ConfigError, PenstockError, first_line
from penstock.loaders.stream import StreamLoader
from penstock.sources import Source, open_source
from penstock.tuning.doctor import CHECKS, Finding, diagnose
from penstock.tuning.examination import Examination, Subject

OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # module:object, and no URL
BUILT = ("train_dataloader", "val_dataloader", "test_dataloader")


def run_doctor(target: str, *, as_json: bool) -> None:
    """Print the findings; exit with 0 if there are none, 1 if there are, 2 if it is refused."""
    with ExitStack() as opened:
        subjects, program = subjects_of_target(target, opened)
        found, examined = diagnose(subjects, program)
        print_result(as_text(found, examined) if not as_json else to_json(found, examined))
    raise SystemExit(1 if found else 0)


def as_text(found: list[Finding], examined: list[Examination]) -> str:
    """Return what was read, and a line for each finding."""
    lines = []
    for each in examined:
        read = len(each.read.indices)
        shown = "all" if read == each.samples else f"{read:,}"
        title = each.subject.name or type(each.subject.data).__name__
        lines.append(f"{title}: {each.samples:,} samples, read {shown}")
    if not found:
        return "\n".join([*lines, f"nothing found by {len(CHECKS) + 2} checks"])
    count = f"{len(found)} finding{'s' * (len(found) > 1)}"
    return "\n".join([*lines, *map(str, found), count])


def to_json(found: list[Finding], examined: list[Examination]) -> str:
    """Return the findings and what they are based on as one JSON object."""
    parts = [
        {
            "part": each.subject.name,
            "kind": type(each.subject.data).__name__,
            "samples": each.samples,
            "read": len(each.read.indices),
            "sample_bytes": each.read.sample_bytes,
            "sample_seconds": each.cost.seconds,
        }
        for each in examined
    ]
    return json.dumps({"parts": parts, "findings": [each.to_dict() for each in found]}, indent=1)


# -- what is examined


def subjects_of_target(target: str, opened: ExitStack) -> tuple[list[Subject], str]:
    """Return the parts of the data that a command names, and the program that defines them.

    Args:
        target: A path or URL of data, a configuration, or ``module:object``.
        opened: Closes what is opened here.
    """
    if target.endswith((".yaml", ".yml")):
        return subjects_of_config(Path(target), opened), ""
    if OBJECT.fullmatch(target) and not Path(target).exists():
        value, program = named_object(target)
        return list(subjects_of(value, "", opened)), program
    return [Subject("", open_source(target))], ""


def named_object(target: str) -> tuple[Any, str]:
    """Return the object of ``module:object``, and the text of the module's file.

    The module is the user's own, named by the user: importing it runs it.
    """
    name, _, attribute = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        value: Any = import_module(name)
        file = getattr(value, "__file__", None)
        program = Path(file).read_text() if file and file.endswith(".py") else ""
        for part in attribute.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{target}: there is no module {error.name!r} here: start in its folder"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"{target}: {first_line(error)}") from error
    return value, program


def subjects_of(value: Any, name: str, opened: ExitStack) -> Iterator[Subject]:
    """Yield the parts of an object: of a dataset, a source, a loader, a data module, or a dict."""
    if isinstance(value, type):  # a class that can be created without arguments
        yield from subjects_of(_called(value), name, opened)
    elif isinstance(value, StreamLoader):
        loading: dict[str, Any] = {"batch_size": value.batch_size, "loader": value}
        opened.callback(value.close)
        yield Subject(name, value.source, **loading)
    elif isinstance(value, DataLoader):
        collate = None if value.collate_fn is default_collate else value.collate_fn
        loading = {"workers": value.num_workers, "collate_fn": collate}
        opened.callback(getattr(value, "close", lambda: None))
        yield Subject(name, value.dataset, batch_size=value.batch_size or 1, **loading)
    elif any(hasattr(value, hook) for hook in BUILT):
        for hook, arguments in (("prepare_data", ()), ("setup", ("fit",))):
            method = getattr(value, hook, lambda *_: None)
            method(*arguments[: len(inspect.signature(method).parameters)])
        for hook in BUILT[:2]:
            made = getattr(value, hook, lambda: None)()
            part = hook.removesuffix("_dataloader")
            parts = made if isinstance(made, list | tuple) else [made]
            for number, each in enumerate(parts if made is not None else []):
                yield from subjects_of(each, part + f"[{number}]" * (len(parts) > 1), opened)
    elif isinstance(value, Source | Dataset):
        yield Subject(name, value)
    elif isinstance(value, str | Path):
        yield Subject(name, open_source(value))
    elif isinstance(value, Mapping):
        for part, each in value.items():
            yield from subjects_of(each, f"{name}.{part}".lstrip("."), opened)
    elif hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        yield Subject(name, value)
    elif callable(value):
        yield from subjects_of(_called(value), name, opened)
    else:
        raise ConfigError(
            f"{type(value).__name__} is not a dataset: name a dataset, a source, a loader, a "
            "data module, a dict of these, or a function without arguments that returns one"
        )


def _called(function: Any) -> Any:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{name} needs arguments ({first_line(error)}): name a function without arguments that "
            "returns the dataset"
        ) from error
    except ValueError:  # it has no signature
        pass
    return function()


def subjects_of_config(path: Path, opened: ExitStack) -> list[Subject]:
    """Return the parts of the data of a configuration, as `penstock train` loads them."""
    # imported here: other targets work without the libraries of training
    from penstock.training.build import build
    from penstock.training.config import read_settings

    settings = read_settings(path)
    job = build(settings)
    found = list(subjects_of(job.data if job.data is not None else job.module, "", opened))
    section = settings.dataset if isinstance(settings.dataset, Mapping) else {}
    return [_with_packed(each, section.get(each.name, section)) for each in found]


def _with_packed(subject: Subject, section: Any) -> Subject:
    """Add which fields are packed and not decoded, because of ``decode: false``."""
    if not isinstance(section, Mapping) or section.get("decode") is not False:
        return subject
    options = {n: v for n, v in section.items() if n not in ("path", "val_split", "decode")}
    try:
        decoded = open_source(section["path"], **options).fields
    except PenstockError:
        return subject
    stored = subject.data.fields
    packed = [n for n in stored if n in decoded and stored[n].dtype != decoded[n].dtype]
    return replace(subject, packed=tuple(f"field {name!r}" for name in packed))
