"""Run by test_import.py in a fresh interpreter: what each import loads, as JSON.

Standard input is a JSON object: library names by extra, and domains. Each extra and each domain is
left out in a fork of this process, which has imported the libraries already: importing torch and
Lightning takes seconds.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import pydoc
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

# a fork imports the package again: without this it would compile it again too
SourceFileLoader.get_code = cache(SourceFileLoader.get_code)  # type: ignore[method-assign]


def libraries() -> list[str]:
    """Return the libraries loaded so far."""
    return sorted({name.partition(".")[0] for name in sys.modules})


def forget_penstock() -> None:
    """Remove the modules of the package, so that they are imported again."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "penstock":
            del sys.modules[name]


def import_all(package: ModuleType) -> list[str]:
    """Import all modules of a package, and return what cannot be imported."""
    failed = []
    for each in [*pkgutil.walk_packages(package.__path__, "penstock.")]:
        if not each.name.endswith("__main__") and "lib" not in each.name.rpartition(".")[2][:3]:
            try:
                importlib.import_module(each.name)
            except ImportError as error:
                failed.append(f"{each.name}: {error}")
    return failed


def without_domains(removed: list[str]) -> list[str]:
    """Return what cannot be imported from a copy of the package without some of the domains."""
    import penstock

    source = Path(penstock.__file__).parent
    homes = dict(penstock._HOME)
    forget_penstock()
    with TemporaryDirectory() as folder:
        ignore = shutil.ignore_patterns(*removed)  # what is compiled already is copied too
        shutil.copytree(source, Path(folder, "penstock"), ignore=ignore)
        sys.path.insert(0, folder)
        package = importlib.import_module("penstock")
        assert Path(package.__file__ or "").is_relative_to(folder)
        failed = import_all(package)
        gone = tuple(f"penstock.domains.{each}" for each in removed)
        failed += [n for n, at in homes.items() if at not in gone and not hasattr(package, n)]
    return failed


def without(missing: list[str]) -> list[str]:
    """Return the root names that cannot be imported when these libraries are not installed."""
    forget_penstock()
    hidden = [name for name in sys.modules if name.partition(".")[0] in missing]
    sys.modules.update(dict.fromkeys([*missing, *hidden]))
    import penstock

    before = {name: hasattr(penstock, name) for name in penstock._HOME}
    scope: dict[str, Any] = {}
    exec("from penstock import *", scope)
    assert set(penstock.__all__) <= set(scope)
    assert {name for name, _ in inspect.getmembers(penstock)} >= set(penstock.__all__)
    assert set(dir(penstock)) == set(penstock.__all__) and pydoc.render_doc(penstock)
    gone = [name for name, there in before.items() if not there]
    assert not set(gone) & set(penstock.__all__)
    for name in gone:
        try:
            exec(f"from penstock import {name}")
        except penstock.MissingExtraError as error:
            assert "pip install 'penstock[" in str(error), error
    return gone


def in_a_fork(function: Callable[[list[str]], list[str]], missing: list[str]) -> Any:
    """Return what ``function(missing)`` returns in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, json.dumps(function(missing)).encode())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(found) if status == 0 else f"failed without {missing}"


def main() -> None:
    """Print what is found."""
    import penstock

    found: dict[str, Any] = {"import penstock": libraries()}
    penstock.ShuffledOrder(9, 1)
    found["an order"] = libraries()
    from penstock import StreamLoader as StreamLoader

    modules = [name for name in sys.modules if name.partition(".")[0] == "penstock"]
    found["modules of StreamLoader"] = len(modules)
    from penstock import ChunkedDataLoader as ChunkedDataLoader

    found["the loaders"] = libraries()
    for name in penstock._HOME:
        getattr(penstock, name)
    asked = json.load(sys.stdin)
    for extra, missing in asked["extras"].items():
        found[extra] = in_a_fork(without, missing.split())
    import_all(penstock)  # the libraries of all modules, once and not in every fork
    for domain, removed in asked["domains"].items():
        found[domain] = in_a_fork(without_domains, removed.split())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
